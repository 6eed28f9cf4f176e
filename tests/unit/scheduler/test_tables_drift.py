"""Self-check of the card tables: a difference is counted, logged and repaired."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hami.cluster import self_check, state
from hami.scheduler import maintenance
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


def spoil(replica: rig.Replica, node: str, memory: int = 4000) -> None:
    """Take memory off a node's first card behind the ledger's back."""
    located = replica.scheduler.watched.cluster.locate(node)
    assert located is not None
    table, row = located
    table.cards[NVIDIA.name].memory_left[0, row] -= memory


def drift(replica: rig.Replica) -> int:
    return replica.scheduler.maintenance.table_drift


async def test_a_healthy_cluster_has_none(times: Times, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedApi() as api:
        for name in ("a", "b", "c"):
            api.put(rig.node(name, cards=2))
        async with rig.running(api, clock=times.clock, now=times.now, resync_interval=1) as replica:
            for number in range(5):
                await replica.place(rig.pod(f"p{number}"))
            await replica.filter(api.put(rig.pod("held")))
            api.remove("pods", "p0")
            api.put(rig.node("b", cards=1))
            api.remove("nodes", "c")
            await replica.seen()
            for _ in range(3):
                await replica.scheduler.maintenance.check_tables()
            assert drift(replica) == 0
            assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_a_planted_difference_is_counted_logged_and_repaired(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("b"))
        async with rig.running(api, clock=times.clock, now=times.now, resync_interval=1) as replica:
            await replica.filter(api.put(rig.pod("p", memory=5000)), ["b"])
            spoil(replica, "b")
            assert replica.used("b") == [9000]
            await replica.scheduler.maintenance.check_tables()
            found = drift(replica)
            assert found > 0
            records = [
                r for r in caplog.records if r.getMessage() == "card table is wrong, repairing it"
            ]
            assert len(records) == found
            assert all("table of node b" in vars(record)["difference"] for record in records)
            assert replica.used("b") == [5000]
            await replica.scheduler.maintenance.check_tables()
            assert drift(replica) == found
            assert (await replica.filter(api.put(rig.pod("q", memory=3000)), ["b"]))["NodeNames"]


async def test_every_node_has_its_turn_within_the_interval(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedApi() as api:
        for number in range(20):
            api.put(rig.node(f"n{number:02}"))
        async with rig.running(
            api, clock=times.clock, now=times.now, resync_interval=10
        ) as replica:
            # A round per second: two nodes in each.
            monkeypatch.setattr(maintenance, "ROUND_S", 1.0)
            spoil(replica, "n19")
            rounds = 0
            while drift(replica) == 0:
                rounds += 1
                await replica.scheduler.maintenance.check_tables()
            assert rounds == 10


async def test_other_tasks_run_after_each_checked_node(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = [0], []
    check = self_check.node_drift

    def noted(cluster: state.Cluster, name: str) -> list[str]:
        seen.append(turns[0])
        return check(cluster, name)

    async def tick() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async with ScriptedApi() as api:
        for number in range(20):
            api.put(rig.node(f"n{number:02}"))
        async with rig.running(api, clock=times.clock, now=times.now, resync_interval=1) as replica:
            monkeypatch.setattr(self_check, "node_drift", noted)
            ticking = asyncio.create_task(tick())
            await replica.scheduler.maintenance.check_tables()
            ticking.cancel()
    assert len(seen) == len(set(seen)) == 20
