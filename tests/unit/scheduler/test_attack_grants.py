"""Pods without a valid grant beside pods that are being bound."""

from __future__ import annotations

import asyncio
import pathlib
import time
from typing import Any

import pytest

from hami.scheduler.errors import CardsChangedError
from hami.scheduler.placer import Placer
from tests import builders
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_failover import Election

ALLOCATED = NVIDIA.annotations.allocated
CARD, OTHER = (card.id for card in builders.cards("a", 2))


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "current").write_bytes(b"k" * 32)
    return tmp_path


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def unsigned(name: str, *, memory: int, devices: str = "") -> dict[str, Any]:
    """Make a pod on node a without a valid grant."""
    pod = rig.pod(name, memory=memory)
    pod["spec"]["nodeName"] = "a"
    pod["metadata"]["uid"] = name
    pod["metadata"]["annotations"] = {ALLOCATED: devices} if devices else {}
    return pod


def reports(api: ScriptedApi) -> list[tuple[str, str]]:
    """Return reason and pod of all events."""
    return [(event["reason"], event["involvedObject"]["name"]) for event in api.objects("events")]


async def bound(replica: rig.Replica, pod: dict[str, Any]) -> str:
    """Place and bind a pod on node a; returns the error of /bind."""
    stored = replica.api.put(pod)
    assert (await replica.filter(stored, ["a"]))["NodeNames"] == ["a"]
    return await asyncio.wait_for(replica.bind(stored, "a"), rig.PATIENCE_S)


async def test_a_pod_without_a_grant_does_not_move_onto_the_card_of_an_exclusive_pod(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(unsigned("stripped", memory=800))
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == [800, 0]
            alone = rig.pod("alone", memory=4000)
            limits(alone)["nvidia.com/gpucores"] = "100"
            assert await bound(replica, alone) == ""
            await replica.seen()
            assert replica.used("a") == [800, 4000]


async def test_a_bind_ends_if_its_own_cards_make_pods_without_a_grant_move(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        # 5200 MiB are left of one card, 8000 of the other.
        api.put(unsigned("a-first", memory=2800, devices=f"{CARD},NVIDIA,2800,0:;"))
        api.put(unsigned("b-unknown", memory=4000))
        api.put(unsigned("c-listed", memory=4000, devices=f"{OTHER},NVIDIA,4000,0:;"))
        async with rig.running(api, keys=keys) as replica:
            assert replica.used("a") == [6800, 4000]
            # On the other card it leaves less than there is on the first: the second pod moves.
            assert await bound(replica, rig.pod("p", memory=3500)) == ""


async def test_a_bind_whose_cards_change_again_and_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(*_: object) -> None:
        raise CardsChangedError

    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api) as replica:
            with monkeypatch.context() as always:
                always.setattr(Placer, "require_fit", changed)
                assert "changed 8 times" in await bound(replica, rig.pod("p"))
            assert replica.used("a") == [0, 0]
            assert await bound(replica, rig.pod("q")) == ""


FORGED = {
    "too little": f"{CARD},NVIDIA,1,0:;",
    "nothing that can be read": f"{CARD},NVIDIA,much,0:{OTHER},NVIDIA,much,0:;",
}


@pytest.mark.parametrize("devices", FORGED.values(), ids=FORGED)
async def test_what_a_pod_listed_before_another_scheduler_bound_it_proves_nothing(
    keys: pathlib.Path, devices: str
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            pod = rig.pod("p", memory=3000)
            pod["metadata"]["annotations"] = {
                "hami.io/vgpu-node": "a",
                "hami.io/vgpu-time": str(int(time.time())),
                ALLOCATED: devices,
            }
            stored = api.put(pod)
            await replica.seen()
            stored["spec"]["nodeName"] = "a"
            api.put(stored)
            await replica.seen()
            assert replica.used("a") == [3000, 0]
            # No card is closed by it, as after a restart.
            assert await bound(replica, rig.pod("next", memory=5000, gpu=2)) == ""


@pytest.mark.parametrize(
    ("scheduler", "reason"), [("", "GrantInvalid"), ("default-scheduler", "AdmissionBypassed")]
)
async def test_a_new_leader_reports_what_it_has_seen_before_it_led(
    keys: pathlib.Path, times: Times, scheduler: str, reason: str
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        for name in ("stripped", "mended"):
            pod = unsigned(name, memory=800)
            if scheduler:
                pod["spec"]["schedulerName"] = scheduler
            api.put(pod)
        election = Election(api, times)
        async with election.replica("sched-1", keys=keys) as replica:
            api.remove("pods", "mended")
            await replica.seen()
            for _ in range(2):
                await election.elect("sched-1")
                await rig.eventually(lambda: reports(api) == [(reason, "stripped")])
