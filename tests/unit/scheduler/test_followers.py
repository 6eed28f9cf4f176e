"""Replicas that do not lead: deleted nodes, and the leader's label."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hami.kube import errors
from hami.kube.client import Client
from hami.scheduler import readiness
from hami.scheduler.leadership import AlwaysLeading
from hami.scheduler.readiness import LeaderLabel
from hami.wire import annotation_keys
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


async def test_a_lease_lost_and_gained_in_one_moment_leaves_the_leader_its_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "LABEL_AGAIN_S", 1e6)
    monkeypatch.setattr(readiness, "LABEL_AT_MOST_S", 1e6)
    roles, changes = Roles(1), cast("asyncio.Queue[bool]", asyncio.Queue())
    async with _following(roles, changes):
        await rig.eventually(lambda: not roles.failures)
        for leads in (False, True):  # the process was stopped, and sees the renewal first
            changes.put_nowait(leads)
        await asyncio.wait_for(roles.done.wait(), rig.PATIENCE_S)
    assert roles.written == ["others"]


async def test_a_leader_whose_demotion_failed_before_does_not_demote_itself() -> None:
    async with ScriptedApi() as api:
        name, namespace = "scheduler-0", "hami-system"
        api.put(_scheduler_pod(name, namespace, readiness.LEADER))
        api.put(_scheduler_pod("scheduler-1", namespace, readiness.LEADER))
        always = AlwaysLeading(clock=lambda: 0.0)
        async with Client(api.access(), user_agent="hami-tests") as client:
            label = LeaderLabel(
                client,
                cast("readiness.Watch", None),
                namespace=namespace,
                name=name,
                leadership=always,
                now=lambda: 0.0,
            )
            api.fault(path=f"/pods/{name}", method="PATCH", status=500)
            with pytest.raises(errors.KubeError):
                await label.demote_self()
            await label.demote_others()
        roles = {}
        for each in (name, "scheduler-1"):
            pod = api.find("pods", each, namespace)
            assert pod is not None
            roles[each] = pod["metadata"]["labels"][annotation_keys.ROLE_LABEL]
        assert roles == {name: readiness.LEADER, "scheduler-1": readiness.FOLLOWER}


def _scheduler_pod(name: str, namespace: str, role: str) -> dict[str, Any]:
    labels = {
        annotation_keys.COMPONENT_LABEL: readiness.COMPONENT,
        annotation_keys.ROLE_LABEL: role,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": []},
    }


class _following:  # noqa: N801 - reads as a word
    def __init__(self, roles: Roles, changes: asyncio.Queue[bool]) -> None:
        self._work = readiness.follow(cast("LeaderLabel", roles), changes)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
