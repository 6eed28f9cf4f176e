"""What a scrape of a full node costs: 64 containers of two processes each, on eight cards.

    python -m benchmarks.monitor

The state files are as libvgpu leaves them, with their locks held. The baseline, in the same run and
in turns with what is measured, is reading the 64 files whole. Then a real `hami monitor` on
stand-in GPUs is scraped over HTTP, and its memory is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hami.monitor.audit import Audit, Latest
from hami.monitor.driver import CardNow, Part, Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.processes import Processes
from hami.monitor.scrape import Scrape
from hami.monitor.usage import Readings
from hami.node.layout import NodeLayout
from hami.node.nvml_cards import Card
from hami_sandbox import gpus
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes
from tests.unit.monitor_process.monitors import NODE, Machine

CONTAINERS, PROCESSES, CARDS = 64, 2, 8
ROUNDS = 50
GIB, MIB = 1 << 30, 1 << 20
AIM_MS = 20.0


def fill(node: NodeLayout, cards: list[str]) -> None:
    """Leave what agent and containers leave of a full node."""
    limits = dict.fromkeys(cards, 4 * GIB)
    usage = nodes.usage(overhead=300 * MIB, linear=GIB, pool=64 * MIB)
    slots = [nodes.slot(pid + 1, *[usage] * len(cards)) for pid in range(PROCESSES)]
    state = nodes.state(cards, *slots)
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


def sampled(cards: list[str]) -> Latest:
    """Make what a round leaves when the driver tells everything."""
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
    return Latest(
        taken=time.monotonic() + 3600,
        cards=tuple(CardNow(card=each, memory_used=GIB, utilization=(50, 50)) for each in made),
        parts=tuple(Part(uuid=each.uuid, index=each.index) for each in made),
        computing=frozenset(cards),
    )


def scrape_of(node: NodeLayout, cards: list[str]) -> Scrape:
    pods = nodes.pods(synced=False)
    unreadable, _ = nodes.unreadable()
    readings = Readings(node, pods, unreadable)
    rounds = Audit(
        sampler=Sampler(),
        processes=Processes(Path("/proc")),
        readings=readings,
        pods=pods,
        teller=AuditEvents(None, NODE),  # type: ignore[arg-type]  # no round is run
    )
    rounds.latest = sampled(cards)
    return Scrape(node=NODE, readings=readings, rounds=rounds, pods=pods, legacy=False)


async def in_process(node: NodeLayout, cards: list[str]) -> None:
    scrape, files = scrape_of(node, cards), state_files(node)
    ours, whole, size = [], [], 0
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        size = sum([len(chunk) async for chunk in scrape.families()])
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
