"""Cost of a scrape of a full node: 64 containers on eight cards.

    python -m benchmarks.monitor

The state files are as libvgpu leaves them, with their locks held. The baseline, in the same run and
in turns with what is measured, is reading the 64 files whole. Then a real `hami monitor` on
stand-in GPUs is scraped over HTTP, and its memory is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hami.monitor.audit import Audit
from hami.monitor.collect import Collector
from hami.monitor.containers import Key, PreparedContainers
from hami.monitor.driver import CardProcesses, CardSample, DriverSample, Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.findings import Findings
from hami.monitor.hami import HamiContainers
from hami.monitor.metrics import NodeMetrics
from hami.monitor.overuse import OveruseMarks
from hami.monitor.processes import Processes
from hami.monitor.usage import UsageReader
from hami.node.layout import NodeLayout
from hami.node.nvml_cards import Card
from hami_sandbox import gpus
from tests.integration.monitor.monitors import NODE, Machine
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes

CONTAINERS, PROCESSES, CARDS = 64, 2, 8
ROUNDS = 50
GIB, MIB = 1 << 30, 1 << 20
AIM_MS = 20.0


def fill(node: NodeLayout, cards: list[str]) -> None:
    """Leave what agent and containers leave of a full node."""
    limits = dict.fromkeys(cards, 4 * GIB)
    usage = nodes.usage(overhead=300 * MIB, linear=GIB, pool=64 * MIB)
    entries = [nodes.entry(pid + 1, *[usage] * len(cards)) for pid in range(PROCESSES)]
    state = nodes.state(cards, *entries)
    for number in range(CONTAINERS):
        nodes.prepare(node, f"pod-{number}", limits, cores=30).write_bytes(state)


@contextlib.contextmanager
def living(node: NodeLayout) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for path in state_files(node):
            stack.enter_context(nodes.held(path, *range(PROCESSES)))
        yield


def state_files(node: NodeLayout) -> list[Path]:
    return sorted(node.states.glob("*/state"))


def sampled(cards: list[str]) -> Findings:
    """Make the findings of an audit when the driver reports everything."""
    made = [
        Card(
            uuid=uuid,
            index=index,
            minor=index,
            name="NVIDIA H200",
            memory=140 * GIB,
            numa=0,
            bus_id="",
            mig_enabled=False,
        )
        for index, uuid in enumerate(cards)
    ]
    sample = DriverSample(
        taken=time.monotonic() + 3600,
        cards=tuple(CardSample(card=each, memory_used=GIB, utilization=(50, 50)) for each in made),
        processes=tuple(CardProcesses(uuid=each.uuid, index=each.index) for each in made),
    )
    nothing: dict[str, dict[Key, int]] = {card: {} for card in cards}
    return Findings(sample=sample, memory=nothing, compute=nothing)


def metrics_of(node: NodeLayout, cards: list[str]) -> NodeMetrics:
    pods = nodes.pods(synced=False)
    unreadable, _ = nodes.unreadable()
    prepared = PreparedContainers(node, unreadable)
    usage = UsageReader(node, unreadable)
    hami_containers = HamiContainers(node, pods, unreadable)
    audit = Audit(
        sampler=Sampler(),
        processes=Processes(Path("/proc")),
        prepared=prepared,
        usage=usage,
        hami_containers=hami_containers,
        pods=pods,
        events=AuditEvents(None, NODE),  # type: ignore[arg-type]  # no audit is run
        marks=OveruseMarks(None, pods, node=NODE, tolerance_mib=0),  # type: ignore[arg-type]
    )
    audit.latest = sampled(cards)
    collector = Collector(
        node=NODE,
        prepared=prepared,
        usage=usage,
        hami_containers=hami_containers,
        audit=audit,
        pods=pods,
    )
    return NodeMetrics(collector, legacy=False)


async def in_process(node: NodeLayout, cards: list[str]) -> None:
    node_metrics, files = metrics_of(node, cards), state_files(node)
    ours, whole, size = [], [], 0
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        size = sum([len(chunk) async for chunk in node_metrics.families()])
        ours.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for path in files:
            path.read_bytes()
        whole.append(time.perf_counter() - begin)
    scraped, read = statistics.median(ours) * 1e3, statistics.median(whole) * 1e3
    print(f"  scrape, read and written   {scraped:7.2f} ms   ({size / 1024:.0f} KiB of text)")
    print(f"  slowest of {ROUNDS}              {max(ours) * 1e3:7.2f} ms")
    print(f"  baseline: 64 files whole   {read:7.2f} ms")
    print(f"  scrape / baseline          {scraped / read:7.2f}")
    print(f"  aim: {AIM_MS:.0f} ms, {'reached' if scraped <= AIM_MS else 'MISSED'}")


async def real_process(folder: Path) -> None:
    cards_folder = folder / "cards"
    cards = [card.uuid for card in gpus.write_node(cards_folder, [("A10", CARDS)], name=NODE)]
    machine = Machine(folder / "machine", cards_folder)
    fill(machine.layout, cards)
    async with ScriptedApi() as api:
        for number in range(CONTAINERS):
            api.put(nodes.pod(f"pod-{number}", node=NODE))
        with living(machine.layout):
            async with machine.monitored(api):
                await machine.eventually("hami_host_gpu_utilization_ratio", [0.0] * CARDS)
                times = []
                for _ in range(ROUNDS):
                    begin = time.perf_counter()
                    await machine.get("/metrics")
                    times.append(time.perf_counter() - begin)
                print(f"  over HTTP, connection too  {statistics.median(times) * 1e3:7.2f} ms")
                print(f"  resident memory            {machine.resident() / MIB:7.1f} MiB")


def main() -> None:
    print(f"{CONTAINERS} containers, {PROCESSES} processes each, {CARDS} cards; median of {ROUNDS}")
    with tempfile.TemporaryDirectory() as folder:
        cards = [f"GPU-{number:08d}-0000-4000-8000-000000000000" for number in range(CARDS)]
        node = nodes.layout(Path(folder) / "node")
        fill(node, cards)
        print("in one process:")
        with living(node):
            asyncio.run(in_process(node, cards))
        print("a real `hami monitor` on stand-in GPUs:")
        asyncio.run(real_process(Path(folder)))


if __name__ == "__main__":
    main()
