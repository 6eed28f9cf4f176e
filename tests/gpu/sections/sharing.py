"""Two processes of one container that share memory, as vLLM's workers and NCCL do.

NVML may count shared memory for both processes, so the card's own count judges here.
"""

from __future__ import annotations

import time
from typing import Any

from tests.gpu.bench import BEYOND, LIMIT, Bench, mib
from tests.gpu.driver import MIB
from tests.gpu.workers import Worker

SECTION = "sharing"
SIZE = 1024 * MIB
SLACK = 8 * MIB


def share(kind: str, maker: Worker, taker: Worker) -> tuple[int, int]:
    if kind == "VMM":
        address = maker.ask("share_vmm", SIZE)
        taker.send_descriptor(maker.receive_descriptor())
        return address, taker.ask("take_vmm", SIZE)
    address, handle = maker.ask("share_ipc", SIZE)
    return address, taker.ask("take_ipc", handle)


def used(worker: Worker) -> int:
    """Return what the container's own NVML says is used."""
    return int(worker.ask("nvml_view")["used"])


def played(bench: Bench, kind: str, *, ours: bool) -> dict[str, Any]:
    """Share, look, kill the maker, look again, fill up; return what was seen."""
    with bench.side(ours=ours, workers=2) as (maker, taker):
        maker.ask("start")
        taker.ask("start")
        before = used(taker)
        address, there = share(kind, maker, taker)
        maker.ask("fill_bytes", address, SIZE, 42)
        seen = {"data": taker.ask("first_byte", there) == 42}
        taker.ask("fill_bytes", there, SIZE, 43)
        seen["data"] = seen["data"] and maker.ask("first_byte", address) == 43
        seen["grew"] = used(taker) - before
        peaks = bench.sampler.read()
        seen["card"] = int(peaks["device"])
        seen["pids"] = int(peaks["last"])
        maker.process.kill()
        maker.process.wait(timeout=10)
        time.sleep(0.5)
        seen["alone"] = used(taker)
        seen["data after"] = attempt_read(taker, there)
        room = LIMIT - 2 * bench.context - SIZE
        seen["filled"] = taker.ask("fill", "linear", 2 * MIB, most=BEYOND if ours else room)
        peaks = bench.sampler.rest()
        seen["peak"] = int(peaks["device"])
    return seen


def attempt_read(worker: Worker, address: int) -> str:
    try:
        return "reads it" if worker.ask("first_byte", address) == 43 else "reads other data"
    except Exception as error:  # noqa: BLE001  the driver decides what remains; it is shown
        return str(error)


def text(seen: dict[str, Any]) -> str:
    data = "both see the data" if seen["data"] else "data is not shared"
    return (
        f"{data}; used +{mib(seen['grew'])}, processes {mib(seen['pids'])}, card "
        f"+{mib(seen['card'])} MiB; maker killed: taker {seen['data after']}, used "
        f"{mib(seen['alone'])}; filled to +{mib(seen['peak'])} MiB, error {seen['filled']['code']}"
    )


def compare(bench: Bench, kind: str) -> None:
    native = played(bench, kind, ours=False)
    ours = played(bench, kind, ours=True)
    wrong = []
    if not ours["data"]:
        wrong.append("data is not shared")
    if abs(ours["grew"] - SIZE) > SLACK:
        wrong.append(f"{mib(SIZE)} MiB are counted as {mib(ours['grew'])}")
    beside = max(0, native["card"] - 2 * bench.context - SIZE)  # of the card, of no process
    if ours["peak"] > LIMIT + beside + SLACK:
        wrong.append(f"the card grew by {mib(ours['peak'])} MiB")
    if ours["filled"]["code"] != 2:
        wrong.append(f"error {ours['filled']['code']} instead of 2")
    if ours["data after"] != native["data after"]:
        wrong.append("the taker sees something else than without us")
    bench.add(
        SECTION,
        kind,
        (text(native), text(ours)),
        f"{mib(LIMIT)} MiB, counted once",
        ", ".join(wrong),
    )


def between_shares(bench: Bench, kind: str) -> None:
    """Hand memory from one container to another, as prefill does to decode; both limits hold."""
    bench.quiet()
    with bench.container() as one, bench.container() as other:
        maker, taker = Worker(one.env), Worker(other.env)
        try:
            bench.sampler.reset()
            maker.ask("start")
            taker.ask("start")
            before = used(maker), used(taker)
            address, there = share(kind, maker, taker)
            maker.ask("fill_bytes", address, SIZE, 42)
            data = taker.ask("first_byte", there) == 42
            grew = used(maker) - before[0], used(taker) - before[1]
            codes = [
                worker.ask("fill", "linear", 2 * MIB, most=BEYOND)["code"]
                for worker in (maker, taker)
            ]
            card = int(bench.sampler.rest()["device"])
        finally:
            maker.kill()
            taker.kill()
    wrong = []
    if not data:
        wrong.append("the data did not arrive")
    if abs(grew[0] - SIZE) > SLACK or grew[1] > SLACK:
        wrong.append(f"counted as {mib(grew[0])} and {mib(grew[1])} MiB")
    if codes != [2, 2]:
        wrong.append(f"errors {codes} instead of 2")
    if card > 2 * LIMIT + 2 * SLACK:
        wrong.append(f"the card grew by {mib(card)} MiB")
    ours = f"used +{mib(grew[0])} and +{mib(grew[1])}, filled to +{mib(card)} MiB"
    limit = f"2 x {mib(LIMIT)} MiB, counted once"
    bench.add(SECTION, f"{kind} between two shares", ("", ours), limit, ", ".join(wrong))


def run(bench: Bench) -> None:
    for kind in ("IPC", "VMM"):
        bench.guard(SECTION, kind, lambda kind=kind: compare(bench, kind))  # type: ignore[misc]
    for kind in ("IPC", "VMM"):
        bench.guard(
            SECTION,
            f"{kind} between two shares",
            lambda kind=kind: between_shares(bench, kind),  # type: ignore[misc]
        )
