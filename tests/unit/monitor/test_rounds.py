"""A round from the driver's word to the metrics and events, on folders that a test has written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hami.monitor.audit import Audit
from hami.monitor.driver import CardNow, DriverSample, Part
from hami.monitor.events import AuditEvents
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes
from hami.monitor.scrape import Scrape
from hami.monitor.usage import Readings
from hami.node.layout import NodeLayout
from hami.node.nvml import GpuProcess
from hami.wire.shares import Share
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, Series

ID = "5f2c" * 16


class Sampler:
    """Says what it is told to say; who is in `gone` has left when it is asked again."""

    def __init__(self) -> None:
        self.on_card: dict[int, int | None] = {}
        self.busy: dict[int, int] | None = {}
        self.gone: set[int] = set()
        self.taken = 0.0

    def take(self) -> DriverSample:
        processes = tuple(GpuProcess(pid=pid, memory=had) for pid, had in self.on_card.items())
        part = Part(uuid=CARD, index=0, processes=processes, compute=self.busy)
        cards: tuple[CardNow, ...] = ()
        return DriverSample(taken=self.taken, cards=cards, parts=(part,))

    def still_there(self, uuids: Sequence[str]) -> dict[str, frozenset[int]]:
        return {uuid: frozenset(self.on_card) - self.gone for uuid in uuids}


class Recorder:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def record(self, **said: Any) -> None:
        self.said.append(said)


class Desk:
    """A node without a driver, and what the monitor says of it."""

    def __init__(self, folder: Path, pods: Pods | None = None) -> None:
        self.node: NodeLayout = nodes.layout(folder)
        self.proc = folder / "proc"
        self.sampler = Sampler()
        self.events = Recorder()
        self.pods = pods or nodes.pods(synced=False)
        self.clock = 0.0
        unreadable, self.counter = nodes.unreadable()
        self.readings = Readings(self.node, self.pods, unreadable)
        self.rounds = Audit(
            sampler=self.sampler,  # type: ignore[arg-type]
            processes=Processes(self.proc),
            readings=self.readings,
            pods=self.pods,
            teller=AuditEvents(self.events, "n1"),  # type: ignore[arg-type]
        )
        self.scrape = Scrape(
            node="n1",
            readings=self.readings,
            rounds=self.rounds,
            pods=self.pods,
            legacy=False,
            clock=lambda: self.clock,
        )

    def process(
        self, pid: int, *, inner: int = 1, pod: str = "", token: str = "", start: int = 5
    ) -> None:
        """Write what /proc says of a process; it is in a pod, or in none."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = " ".join(["S", *"0" * 18, str(start), "0"])
        (folder / "stat").write_text(f"{pid} (x) {fields}\n")
        (folder / "status").write_text(f"NSpid:\t{pid}\t{inner}\nVmSize:\t1 kB\n")
        place = f"/kubepods/pod{nodes.uid_of(pod)}/{ID}" if pod else "/"
        (folder / "cgroup").write_text(f"0::{place}\n")
        root = f"/x/vgpu/tokens/{token}" if token else "/"
        (folder / "mountinfo").write_text(f"1 1 8:1 {root} /a ro - ext4 /dev/sda rw\n")

    async def shown(self) -> Series:
        return nodes.series(b"".join([chunk async for chunk in self.scrape.families()]).decode())

    @property
    def reasons(self) -> list[str]:
        return [said["reason"] for said in self.events.said]


def prepared(desk: Desk, name: str = "a", limit: int = GIB, *, slots: Sequence[int] = (1,)) -> Path:
    path = nodes.prepare(desk.node, name, {CARD: limit})
    path.write_bytes(
        nodes.state([CARD], *(nodes.slot(pid, nodes.usage(linear=MIB)) for pid in slots))
    )
    return path


async def test_an_honest_container_is_shown_and_nothing_is_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card, desk.sampler.busy = {100: MIB}, {100: 30}
    with nodes.held(path, 0):
        await desk.rounds.look()
        found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="a") == [MIB]
    assert nodes.values(found, "hami_vgpu_core_used_percent", pod="a") == [30]
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [0]
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes") == [0]
    assert desk.events.said == []


async def test_above_the_limit_is_shown_and_said_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: GIB + 256 * MIB}
    with nodes.held(path, 0):
        for _ in range(3):
            await desk.rounds.look()
        found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [256 * MIB]
    [said] = desk.events.said
    assert (said["namespace"], said["name"], said["uid"]) == ("team", "a", nodes.uid_of("a"))
    assert (said["type"], said["reason"]) == ("Warning", "VGPUOverLimit")
    for part in ("container main", "1280 MiB", CARD, "256 MiB above", "1024 MiB", "100 with"):
        assert part in said["message"]


async def test_another_process_above_the_limit_is_said_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk, slots=(1, 2))
    for pid, inner in ((100, 1), (101, 2)):
        desk.process(pid, inner=inner, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: 2 * GIB}
    with nodes.held(path, 0, 1):
        await desk.rounds.look()
        desk.sampler.on_card = {100: 2 * GIB, 101: MIB}
        await desk.rounds.look()
    assert desk.reasons == ["VGPUOverLimit"] * 2
    assert "101 with 1 MiB" in desk.events.said[1]["message"]


async def test_a_process_without_the_preload_is_reported(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, inner=1, pod="a", token=nodes.token_of("a"))
    desk.process(101, inner=2, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: MIB, 101: 500 * MIB}
    with nodes.held(path, 0):
        for _ in range(2):
            await desk.rounds.look()
        found = await desk.shown()
    name = "hami_gpu_unmanaged_memory_bytes"
    assert nodes.values(found, name, pod="a", container="main", node="n1") == [500 * MIB]
    assert desk.reasons == ["UnmanagedGPUProcess"]
    assert "process 101 of the node has 500 MiB" in desk.events.said[0]["message"]


async def test_a_state_that_a_tenant_broke_hides_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: 2 * GIB}
    with nodes.held(path, 0):
        path.write_bytes(b"x" * 100)
        await desk.rounds.look()
        found = await desk.shown()
    assert desk.reasons == ["VGPUOverLimit", "UnmanagedGPUProcess"]
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="a") == []
    assert nodes.values(found, "hami_vgpu_memory_limit_bytes", pod="a") == [GIB]
    assert nodes.values(found, "hami_vgpu_over_limit_bytes", pod="a") == [GIB]
    assert nodes.counts(desk.counter) == {"truncated": 2}


async def test_a_state_that_is_not_mounted_is_nobodys_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    prepared(desk).unlink()
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: MIB}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await desk.rounds.look()
    assert desk.events.said == []
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
        await desk.rounds.look()
    assert desk.events.said == []


async def test_a_process_of_the_host_is_told_on_the_node(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.process(100)
    desk.sampler.on_card = {100: 3 * MIB}
    await desk.rounds.look()
    found = await desk.shown()
    assert nodes.values(
        found, "hami_gpu_unmanaged_memory_bytes", namespace="", pod="", container=""
    ) == [3 * MIB]
    [said] = desk.events.said
    assert (said["kind"], said["name"], said["namespace"]) == ("Node", "n1", "")
    assert "belongs to no pod" in said["message"]


async def test_a_pod_that_asked_for_no_card_is_named(tmp_path: Path) -> None:
    pod = nodes.pod("sneaky", containers=("x",), ids={"x": ID})
    desk = Desk(tmp_path, nodes.pods(pod))
    desk.process(100, pod="sneaky")
    desk.sampler.on_card = {100: MIB}
    await desk.rounds.look()
    found = await desk.shown()
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes", pod="sneaky", container="x")
    assert desk.events.said[0]["name"] == "sneaky"


async def test_whole_card_containers_are_managed_and_measured(tmp_path: Path) -> None:
    pod = nodes.pod("whole", ids={"main": ID})
    desk = Desk(tmp_path, nodes.pods(pod))
    grant = Share(card=CARD, vendor="NVIDIA", memory_mib=24 * 1024, cores=100)
    nodes.write_record(desk.node, nodes.record("whole", [grant]))
    desk.process(100, pod="whole")
    desk.sampler.on_card, desk.sampler.busy = {100: 5 * GIB}, {100: 99}
    await desk.rounds.look()
    found = await desk.shown()
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="whole") == [5 * GIB]
    assert nodes.values(found, "hami_vgpu_core_used_percent", pod="whole") == [99]
    assert desk.events.said == []


@pytest.mark.parametrize("how", ["driver", "process"])
async def test_who_ends_between_two_questions_is_not_accused(tmp_path: Path, how: str) -> None:
    desk = Desk(tmp_path)
    prepared(desk)  # its lock is gone already
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card = {100: MIB}
    if how == "driver":
        desk.sampler.gone = {100}
    else:
        (desk.proc / "100" / "status").write_text("NSpid:\t100\t1\n")
    await desk.rounds.look()
    assert desk.events.said == []
    assert nodes.values(await desk.shown(), "hami_gpu_unmanaged_memory_bytes") == [0]


async def test_another_process_of_the_same_pid_is_said_anew(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.process(100)
    desk.sampler.on_card = {100: MIB}
    await desk.rounds.look()
    desk.process(100, start=6)
    await desk.rounds.look()
    assert desk.reasons == ["UnmanagedGPUProcess"] * 2


async def test_without_the_hosts_processes_it_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    desk.sampler.on_card = {100: MIB}
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            await desk.rounds.look()
    [record] = caplog.records
    assert "hostPID" in record.getMessage()


async def test_what_the_driver_said_long_ago_is_not_shown(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = prepared(desk)
    desk.process(100, pod="a", token=nodes.token_of("a"))
    desk.sampler.on_card, desk.sampler.busy = {100: MIB}, {100: 30}
    with nodes.held(path, 0):
        await desk.rounds.look()
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
