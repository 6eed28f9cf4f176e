"""Pods with more of a card than they were given are marked while they have it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami.kube.client import Client
from hami.monitor import audit, overuse
from hami.monitor.driver import DriverSample
from hami.monitor.overuse import OveruseMarks
from hami.monitor.pods import Pods
from hami.wire import annotation_keys, pod_marks
from hami.wire.pod_marks import Overuse
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER
from tests.unit.monitor.test_audit import ID, Desk, prepared
from tests.unit.scheduler.conftest import Times

PATIENCE_S = 20.0


@pytest.fixture
def times() -> Times:
    """Return clocks that the test moves."""
    return Times()


TOLERANCE = 128 * MIB


class Node:
    """A node's audits, and its pods on a scripted API server."""

    def __init__(self, desk: Desk, api: ScriptedApi, pods: Pods, marks: OveruseMarks) -> None:
        self.desk = desk
        self.api = api
        self.pods = pods
        self.marks = marks

    async def audit(self, times: int = 1) -> None:
        for _ in range(times):
            await self.seen()
            await self.desk.audit.audit()
            await self.marks.write()

    async def seen(self) -> None:
        version = self.api.store.version
        await asyncio.wait_for(self.pods.informer.wait_version(version), PATIENCE_S)

    def text(self, name: str) -> str | None:
        found = self.api.find("pods", name, "team")
        assert found is not None
        text: str | None = found["metadata"]["annotations"].get(annotation_keys.OVERUSE)
        return text

    def mark(self, name: str) -> Overuse | None:
        text = self.text(name)
        return None if text is None else pod_marks.decode_overuse(text)

    def writes(self) -> int:
        return len(self.api.sent("PATCH", "/pods/"))


@contextlib.asynccontextmanager
async def running(
    folder: Path, times: Times, *made: dict[str, Any], api: ScriptedApi | None = None
) -> AsyncIterator[Node]:
    """Run the informer of a node with these pods; audits are made by the test."""
    async with contextlib.AsyncExitStack() as stack:
        if api is None:
            api = await stack.enter_async_context(ScriptedApi())
        for each in made:
            api.put(each)
        client = await stack.enter_async_context(Client(api.access(), user_agent="test"))
        pods = Pods(client, node="n1", resync_interval=900)
        watching = asyncio.create_task(pods.informer.run())
        marks = OveruseMarks(
            client, pods, node="n1", tolerance_mib=128, clock=times.clock, now=times.now
        )
        try:
            await asyncio.wait_for(pods.informer.wait_synced(), PATIENCE_S)
            yield Node(Desk(folder, pods, marks), api, pods, marks)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def using(node: Node, memory: int, name: str = "a") -> None:
    """Let one process of a pod have memory of the card."""
    node.desk.process(100, pod=name, allocation_id=nodes.allocation_of(name))
    node.desk.sampler.on_card = {100: memory}


async def test_a_pod_above_its_limit_is_marked_within_ten_seconds_and_unmarked_at_once(
    tmp_path: Path, times: Times
) -> None:
    assert audit.INTERVAL * overuse.TIMES <= 10
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        await node.audit()
        assert node.mark("a") is None  # one sample proves nothing
        times.pass_by(5)
        await node.audit()
        mark = node.mark("a")
        assert mark is not None
        assert (mark.uid, mark.node, mark.container) == (nodes.uid_of("a"), "n1", "main")
        assert (mark.card, mark.used, mark.limit) == (CARD, 2 * GIB, GIB)
        using(node, GIB)
        await node.audit()
        assert node.mark("a") is None
        using(node, 2 * GIB)
        await node.audit()
        assert node.mark("a") is None  # counted from one again


@pytest.mark.parametrize(
    ("memory", "marked"), [(GIB + TOLERANCE, False), (GIB + TOLERANCE + 1, True), (None, False)]
)
async def test_what_is_natural_is_tolerated(
    tmp_path: Path, times: Times, memory: int | None, *, marked: bool
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 0)
        node.desk.sampler.on_card = {100: memory}
        await node.audit(3)
        assert (node.mark("a") is not None) == marked


@pytest.mark.parametrize(
    ("locked", "memory", "marked"),
    [
        ((0, 1), GIB + 2 * TOLERANCE, False),
        ((0, 1), GIB + 2 * TOLERANCE + 1, True),
        # The second one runs without libvgpu, and is granted nothing for what it loads.
        ((0,), GIB + TOLERANCE, False),
        ((0,), GIB + TOLERANCE + 1, True),
    ],
)
async def test_every_process_with_libvgpu_may_load_code(
    tmp_path: Path, times: Times, locked: tuple[int, ...], memory: int, *, marked: bool
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        path = prepared(node.desk, pids=(1, 2))
        for pid, inner in ((100, 1), (101, 2)):
            node.desk.process(pid, inner=inner, pod="a", allocation_id=nodes.allocation_of("a"))
        node.desk.sampler.on_card = {100: MIB, 101: memory - MIB}
        with nodes.held(path, *locked):
            await node.audit(2)
        assert (node.mark("a") is not None) == marked


async def test_a_mark_is_renewed_at_a_rate_with_the_time_of_its_beginning(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        await node.audit(2)
        first = node.mark("a")
        assert first is not None
        await node.audit(3)
        assert node.writes() == 1
        times.pass_by(overuse.RENEW_S)
        await node.audit()
        second = node.mark("a")
        assert second is not None
        assert (node.writes(), second.since) == (2, first.since)
        assert second.seen != first.seen


async def test_a_mark_that_was_removed_or_rewritten_by_others_is_restored(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        await node.audit(2)
        for value in (None, "garbage"):
            found = node.api.find("pods", "a", "team")
            assert found is not None
            found["metadata"]["annotations"] = {annotation_keys.OVERUSE: value} if value else {}
            node.api.put(found)
            await node.audit()
            assert node.mark("a") is not None


async def test_a_monitor_that_starts_keeps_the_time_and_removes_what_is_not_so(
    tmp_path: Path, times: Times
) -> None:
    async with ScriptedApi() as api:
        for name in ("a", "b"):
            mark = Overuse(
                uid=nodes.uid_of(name), node="n1", card=CARD, used=1, since="then", seen="then"
            )
            annotations = {annotation_keys.OVERUSE: pod_marks.encode(mark)}
            api.put(nodes.pod(name, annotations=annotations))
        api.put(nodes.pod("c", annotations={annotation_keys.OVERUSE: "garbage"}))
        async with running(tmp_path, times, api=api) as node:
            await node.marks.write()
            assert node.text("b") is not None  # before the first audit nothing is known
            prepared(node.desk)
            using(node, 2 * GIB)
            await node.audit(2)
            kept = node.mark("a")
            assert kept is not None
            assert (kept.since, kept.used) == ("then", 2 * GIB)
            assert (node.text("b"), node.text("c")) == (None, None)


async def test_without_the_driver_marks_stay_as_they_are(
    tmp_path: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        await node.audit(2)
        marked = node.text("a")
        with monkeypatch.context() as patched:
            patched.setattr(node.desk.sampler, "take", lambda: DriverSample(taken=0.0))
            times.pass_by(60)
            await node.audit(3)
        assert node.text("a") == marked  # not renewed: the leader ignores it soon
        await node.audit()
        assert node.text("a") not in (marked, None)


async def test_a_container_on_a_card_that_it_was_not_given_is_marked(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        nodes.prepare(node.desk.node, "a", {OTHER: GIB})
        using(node, MIB)
        await node.audit(2)
        mark = node.mark("a")
        assert mark is not None
        assert (mark.card, mark.limit) == (CARD, 0)


@pytest.mark.parametrize("resource", ["", "cpu", "nvidia.com/gpu", "vgpu.example.com/cards"])
async def test_a_pod_without_a_request_is_marked_and_one_of_another_plugin_is_not(
    tmp_path: Path, times: Times, resource: str
) -> None:
    pod: dict[str, Any] = nodes.pod("sneaky", containers=("x",), ids={"x": ID})
    if resource:
        pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    async with running(tmp_path, times, pod) as node:
        node.desk.process(100, pod="sneaky")
        node.desk.sampler.on_card = {100: MIB}
        await node.audit(2)
        assert (node.mark("sneaky") is not None) == ("/" not in resource)
        assert node.desk.reasons == ["UnmanagedGPUProcess"]


async def test_a_process_without_libvgpu_within_the_limit_is_no_overuse(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)  # its lock is free: no living process entry
        using(node, MIB)
        await node.audit(3)
        assert node.desk.reasons == ["UnmanagedGPUProcess"]
        assert node.mark("a") is None


async def test_a_pod_that_took_the_name_is_not_marked(tmp_path: Path, times: Times) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        await node.audit()
        await node.desk.audit.audit()
        node.api.remove("pods", "a", "team")
        other: dict[str, Any] = nodes.pod("a")
        other["metadata"]["uid"] = nodes.uid_of("another")
        node.api.put(other)
        await node.marks.write()
        assert node.text("a") is None


async def test_a_failed_write_is_retried(tmp_path: Path, times: Times) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk)
        using(node, 2 * GIB)
        node.api.fault(method="PATCH", path="/pods/a", status=500, times=1)
        await node.audit(2)
        assert node.mark("a") is None
        await node.audit()
        assert node.mark("a") is not None
