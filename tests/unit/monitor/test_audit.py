"""An audit from the driver's sample to metrics and events, on folders of a test."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hami.monitor.audit import Audit
from hami.monitor.collect import Collector
from hami.monitor.containers import PreparedContainers
from hami.monitor.driver import CardProcesses, CardSample, DriverSample
from hami.monitor.events import AuditEvents
from hami.monitor.hami import HamiContainers
from hami.monitor.metrics import NodeMetrics
from hami.monitor.overuse import OveruseMarks
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes
from hami.monitor.usage import UsageReader
from hami.node.layout import NodeLayout
from hami.node.nvml import GpuProcess
from hami.wire.shares import Share
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, Series

ID = "5f2c" * 16


class Sampler:
    """Answers from its fields; a process in `ended` is missing when it is asked again."""

    def __init__(self) -> None:
        self.on_card: dict[int, int | None] = {}
        self.busy: dict[int, int] | None = {}
        self.ended: set[int] = set()
        self.taken = 0.0

    def take(self) -> DriverSample:
        processes = tuple(GpuProcess(pid=pid, memory=had) for pid, had in self.on_card.items())
        on_card = CardProcesses(uuid=CARD, index=0, processes=processes, compute=self.busy)
        cards: tuple[CardSample, ...] = ()
        return DriverSample(taken=self.taken, cards=cards, processes=(on_card,))

    def still_there(self, uuids: Sequence[str]) -> dict[str, frozenset[int]]:
        return {uuid: frozenset(self.on_card) - self.ended for uuid in uuids}


class Recorder:
    def __init__(self) -> None:
        self.recorded: list[dict[str, Any]] = []

    def record(self, **event: Any) -> None:
        self.recorded.append(event)


class Desk:
    """A node without a driver, and the monitor's parts."""

    def __init__(
        self, folder: Path, pods: Pods | None = None, marks: OveruseMarks | None = None
    ) -> None:
        self.node: NodeLayout = nodes.layout(folder)
        self.proc = folder / "proc"
        self.sampler = Sampler()
        self.events = Recorder()
        self.pods = pods or nodes.pods(synced=False)
        self.clock = 0.0
        unreadable, self.counter = nodes.unreadable()
        prepared = PreparedContainers(self.node, unreadable)
        usage = UsageReader(self.node, unreadable)
        hami_containers = HamiContainers(self.node, self.pods, unreadable)
        self.audit = Audit(
            sampler=self.sampler,  # type: ignore[arg-type]
            processes=Processes(self.proc),
            prepared=prepared,
            usage=usage,
            hami_containers=hami_containers,
            pods=self.pods,
            events=AuditEvents(self.events, "n1"),  # type: ignore[arg-type]
            marks=marks or OveruseMarks(None, self.pods, node="n1", tolerance_mib=128),  # type: ignore[arg-type]
        )
        collector = Collector(
            node="n1",
            prepared=prepared,
            usage=usage,
            hami_containers=hami_containers,
            audit=self.audit,
            pods=self.pods,
            clock=lambda: self.clock,
        )
        self.metrics = NodeMetrics(collector, legacy=False)

    def process(
        self, pid: int, *, inner: int = 1, pod: str = "", allocation_id: str = "", start: int = 5
    ) -> None:
        """Write the files of a process in /proc; it is in a pod, or in none."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = " ".join(["S", *"0" * 18, str(start), "0"])
        (folder / "stat").write_text(f"{pid} (x) {fields}\n")
        (folder / "status").write_text(f"NSpid:\t{pid}\t{inner}\nVmSize:\t1 kB\n")
        place = f"/kubepods/pod{nodes.uid_of(pod)}/{ID}" if pod else "/"
        (folder / "cgroup").write_text(f"0::{place}\n")
        root = f"/x/vgpu/tokens/{allocation_id}" if allocation_id else "/"
        (folder / "mountinfo").write_text(f"1 1 8:1 {root} /a ro - ext4 /dev/sda rw\n")

    async def shown(self) -> Series:
        return nodes.series(b"".join([chunk async for chunk in self.metrics.families()]).decode())

    @property
    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.events.recorded]


def prepared(desk: Desk, name: str = "a", limit: int = GIB, *, pids: Sequence[int] = (1,)) -> Path:
    path = nodes.prepare(desk.node, name, {CARD: limit})
    path.write_bytes(
        nodes.state([CARD], *(nodes.entry(pid, nodes.usage(linear=MIB)) for pid in pids))
    )
    return path


async def test_an_honest_container_is_shown_and_has_no_event(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card, desk.sampler.busy = {100: MIB}, {100: 30}
    with nodes.held(path, 0):
        await desk.audit.audit()
        found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="a") == [MIB]
    assert nodes.values(found, "hami_vgpu_core_used_percent", pod="a") == [30]
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [0]
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes") == [0]
    assert desk.events.recorded == []


async def test_above_the_limit_is_shown_and_reported_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: GIB + 256 * MIB}
    with nodes.held(path, 0):
        for _ in range(3):
            await desk.audit.audit()
        found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [256 * MIB]
    [event] = desk.events.recorded
    assert (event["namespace"], event["name"], event["uid"]) == ("team", "a", nodes.uid_of("a"))
    assert (event["type"], event["reason"]) == ("Warning", "VGPUOverLimit")
    for part in ("container main", "1280 MiB", CARD, "256 MiB above", "1024 MiB", "100 with"):
        assert part in event["message"]


async def test_another_process_above_the_limit_is_reported_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk, pids=(1, 2))
    for pid, inner in ((100, 1), (101, 2)):
        desk.process(pid, inner=inner, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: 2 * GIB}
    with nodes.held(path, 0, 1):
        await desk.audit.audit()
        desk.sampler.on_card = {100: 2 * GIB, 101: MIB}
        await desk.audit.audit()
    assert desk.reasons == ["VGPUOverLimit"] * 2
    assert "101 with 1 MiB" in desk.events.recorded[1]["message"]


async def test_a_process_without_the_preload_is_reported(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, inner=1, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.process(101, inner=2, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: MIB, 101: 500 * MIB}
    with nodes.held(path, 0):
        for _ in range(2):
            await desk.audit.audit()
        found = await desk.shown()
    name = "hami_gpu_unmanaged_memory_bytes"
    assert nodes.values(found, name, pod="a", container="main", node="n1") == [500 * MIB]
    assert desk.reasons == ["UnmanagedGPUProcess"]
    message = desk.events.recorded[0]["message"]
    assert "process 101 of the node has 500 MiB" in message
    assert "no limit of container main holds for it" in message
    assert "its image has musl (Alpine)" in message
    assert "use a dynamic program and an image with glibc 2.17 or newer" in message


async def test_a_state_file_that_a_tenant_broke_hides_no_process(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: 2 * GIB}
    with nodes.held(path, 0):
        path.write_bytes(b"x" * 100)
        await desk.audit.audit()
        found = await desk.shown()
    assert desk.reasons == ["VGPUOverLimit", "UnmanagedGPUProcess"]
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="a") == []
    assert nodes.values(found, "hami_vgpu_memory_limit_bytes", pod="a") == [GIB]
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [GIB]
    assert nodes.counts(desk.counter) == {"truncated": 2}


async def test_a_state_file_that_is_not_mounted_is_no_fault_of_the_container(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    prepared(desk).unlink()
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: MIB}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await desk.audit.audit()
    assert desk.events.recorded == []
    assert nodes.counts(desk.counter) == {"missing": 2}
    [record] = caplog.records
    assert "HostToContainer" in record.__dict__["detail"]


async def test_a_process_that_left_the_mounts_is_still_known_by_its_control_group(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a")
    desk.sampler.on_card = {100: MIB}
    with nodes.held(path, 0):
        await desk.audit.audit()
    assert desk.events.recorded == []


async def test_a_process_of_the_host_is_reported_on_the_node(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.process(100)
    desk.sampler.on_card = {100: 3 * MIB}
    await desk.audit.audit()
    found = await desk.shown()
    assert nodes.values(
        found, "hami_gpu_unmanaged_memory_bytes", namespace="", pod="", container=""
    ) == [3 * MIB]
    [event] = desk.events.recorded
    assert (event["kind"], event["name"], event["namespace"]) == ("Node", "n1", "")
    assert "belongs to no pod" in event["message"]


async def test_a_pod_that_asked_for_no_card_is_named(tmp_path: Path) -> None:
    pod = nodes.pod("sneaky", containers=("x",), ids={"x": ID})
    desk = Desk(tmp_path, nodes.pods(pod))
    desk.process(100, pod="sneaky")
    desk.sampler.on_card = {100: MIB}
    await desk.audit.audit()
    found = await desk.shown()
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes", pod="sneaky", container="x")
    assert desk.events.recorded[0]["name"] == "sneaky"


async def test_whole_card_containers_are_managed_and_measured(tmp_path: Path) -> None:
    pod = nodes.pod("whole", ids={"main": ID})
    desk = Desk(tmp_path, nodes.pods(pod))
    grant = Share(card=CARD, vendor="NVIDIA", memory_mib=24 * 1024, cores=100)
    nodes.write_record(desk.node, nodes.record("whole", [grant]))
    desk.process(100, pod="whole")
    desk.sampler.on_card, desk.sampler.busy = {100: 5 * GIB}, {100: 99}
    await desk.audit.audit()
    found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="whole") == [5 * GIB]
    assert nodes.values(found, "hami_vgpu_core_used_percent", pod="whole") == [99]
    assert desk.events.recorded == []


@pytest.mark.parametrize("how", ["driver", "process"])
async def test_a_process_that_ends_between_two_samples_is_not_reported(
    tmp_path: Path, how: str
) -> None:
    desk = Desk(tmp_path)
    prepared(desk)  # its lock is free already
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card = {100: MIB}
    if how == "driver":
        desk.sampler.ended = {100}
    else:
        (desk.proc / "100" / "status").write_text("NSpid:\t100\t1\n")
    await desk.audit.audit()
    assert desk.events.recorded == []
    assert nodes.values(await desk.shown(), "hami_gpu_unmanaged_memory_bytes") == [0]


async def test_another_process_of_the_same_pid_is_reported_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.process(100)
    desk.sampler.on_card = {100: MIB}
    await desk.audit.audit()
    desk.process(100, start=6)
    await desk.audit.audit()
    assert desk.reasons == ["UnmanagedGPUProcess"] * 2


async def test_missing_processes_of_the_host_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    desk.sampler.on_card = {100: MIB}
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            await desk.audit.audit()
    [record] = caplog.records
    assert "hostPID" in record.getMessage()


async def test_an_old_sample_is_not_shown(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", allocation_id=nodes.allocation_of("a"))
    desk.sampler.on_card, desk.sampler.busy = {100: MIB}, {100: 30}
    with nodes.held(path, 0):
        await desk.audit.audit()
        desk.clock = 31.0
        found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="a") == [MIB]
    assert nodes.values(found, "hami_vgpu_core_used_percent") == []
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes") == []


async def test_series_end_when_the_container_has_ended(tmp_path: Path) -> None:
    desk = Desk(tmp_path, nodes.pods(nodes.pod("a"), nodes.pod("b")))
    prepared(desk, "a")
    prepared(desk, "b")
    name = "hami_vgpu_memory_limit_bytes"
    assert len(nodes.values(await desk.shown(), name)) == 2
    desk.pods.informer.put(nodes.kept(nodes.pod("a", ended=["main"])))
    assert nodes.values(await desk.shown(), name, pod="a") == []
    desk.node.record(nodes.uid_of("b")).unlink()
    assert nodes.values(await desk.shown(), name) == []


async def test_a_process_whose_pod_becomes_known_is_reported_on_the_pod(tmp_path: Path) -> None:
    desk = Desk(tmp_path, nodes.pods(synced=False))
    desk.process(100, pod="late")
    desk.sampler.on_card = {100: GIB}
    await desk.audit.audit()
    assert [event["name"] for event in desk.events.recorded] == ["n1"]
    desk.pods.informer.put(nodes.kept(nodes.pod("late")))
    for _ in range(2):
        await desk.audit.audit()
    assert [event["name"] for event in desk.events.recorded] == ["n1", "late"]
