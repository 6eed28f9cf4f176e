"""Replicas that do not lead: deleted nodes, and the leader's label."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hami.kube import errors
from hami.scheduler import readiness
from hami.scheduler.readiness import LeaderLabel
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig


async def test_a_follower_forgets_nodes_that_were_deleted() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("stays"))
        election: dict[str, Any] = {
            "leader_elect": True,
            "leader_elect_resource_name": "kube-scheduler",
            "leader_elect_resource_namespace": "kube-system",
        }
        async with rig.running(api, ready=False, **election) as follower:
            for number in range(5):
                api.put(rig.node(f"n{number}"))
                await follower.seen()
                api.remove("nodes", f"n{number}")
            await follower.seen()
            assert list(follower.scheduler.handshakes._changed) == ["stays"]


class Roles:
    """Labels whose first writes fail."""

    def __init__(self, failures: int) -> None:
        self.leads = True
        self.failures = failures
        self.written: list[str] = []
        self.done = asyncio.Event()

    async def demote_others(self) -> None:
        self._write("others")

    async def demote_self(self) -> None:
        self._write("self")

    def _write(self, what: str) -> None:
        if self.failures:
            self.failures -= 1
            raise errors.Unreachable("no answer in time")
        self.written.append(what)
        self.done.set()


@pytest.mark.parametrize("failures", [1, 4])
async def test_a_leader_label_that_could_not_be_written_is_written_later(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "LABEL_AGAIN_S", 0.001)
    roles = Roles(failures)
    async with _following(roles, asyncio.Queue()):
        await asyncio.wait_for(roles.done.wait(), rig.PATIENCE_S)
    assert roles.written == ["others"]


async def test_a_change_of_the_leader_supersedes_the_label_that_could_not_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "LABEL_AGAIN_S", 1e6)
    monkeypatch.setattr(readiness, "LABEL_AT_MOST_S", 1e6)
    roles, changes = Roles(1), cast("asyncio.Queue[bool]", asyncio.Queue())
    async with _following(roles, changes):
        await rig.eventually(lambda: not roles.failures)
        changes.put_nowait(not roles.leads)
        await asyncio.wait_for(roles.done.wait(), rig.PATIENCE_S)
    assert roles.written == ["self"]


class _following:  # noqa: N801 - reads as a word
    def __init__(self, roles: Roles, changes: asyncio.Queue[bool]) -> None:
        self._work = readiness.follow(cast("LeaderLabel", roles), changes)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
