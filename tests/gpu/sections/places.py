"""Managed memory, green contexts made first, and cards that were not granted.

Managed memory is on the card but in no process's account, and the driver keeps some of its own for
it: what the same program takes natively beyond its allocations is allowed here too. So the native
side comes second, with exactly what was to be had under the limit.
"""

from __future__ import annotations

from tests.gpu.bench import BEYOND, LIMIT, MARGIN, Bench, mib
from tests.gpu.container import Container
from tests.gpu.doors import NAMES, OURS
from tests.gpu.driver import MIB, OUT_OF_MEMORY
from tests.gpu.sections.memory import Outcome, judge
from tests.gpu.workers import Worker

SECTION = "places"
ELSEWHERE = "GPU-00000000-0000-4000-8000-000000000001"  # no card has it
MANAGED_FILLS = (  # name, how, bytes of one piece
    ("managed (touched)", "managed", 64 * MIB),
    ("managed, prefetched", "managed_prefetched", 64 * MIB),
    ("managed pool (touched)", "managed_pool", 64 * MIB),
)


def filled(
    bench: Bench, api: str, size: int, wanted: tuple[int, int], *, ours: bool
) -> tuple[Outcome, int]:
    """Fill with managed and then with plain memory; return that, and what counts for the card."""
    managed, plain = wanted
    with bench.side(ours=ours) as (worker,):
        worker.ask("start")
        found = worker.ask("fill", api, size, most=managed, timeout=60)
        more = worker.ask("fill", "linear", 2 * MIB, most=plain)
        peaks = bench.sampler.rest()
    had = Outcome(
        code=found["code"],
        had=found["bytes"] + more["bytes"],
        peak=int(peaks["sum"]),
        end=int(peaks["last"]),
        device=int(peaks["device"]),
        managed=found["bytes"],
    )
    return had, more["bytes"]


def managed(bench: Bench, case: str, api: str, size: int) -> None:
    ours, plain = filled(bench, api, size, (BEYOND, BEYOND), ours=True)
    native, _plain = filled(bench, api, size, (ours.managed, plain), ours=False)
    beside = max(0, native.device - native.peak - native.managed)
    wrong = []
    if ours.code != OUT_OF_MEMORY:
        wrong.append(f"error {ours.code} instead of 2")
    if ours.managed + ours.peak > LIMIT:
        wrong.append(f"{mib(ours.managed + ours.peak - LIMIT)} MiB were not charged")
    if ours.device > LIMIT + beside:
        wrong.append(f"the card grew by {mib(ours.device)} MiB")
    if ours.had < LIMIT - bench.context - 2 * MARGIN:
        wrong.append(f"{mib(ours.had)} MiB usable")
    native_text, ours_text = (
        f"{mib(side.managed)} managed, {mib(side.had)} in all, card +{mib(side.device)} MiB"
        for side in (native, ours)
    )
    limit = f"{mib(LIMIT)} MiB + {mib(beside)} beside"
    bench.add(
        SECTION, case, (native_text, f"{ours_text}, error {ours.code}"), limit, ", ".join(wrong)
    )


def green_first(bench: Bench) -> None:
    sides = []
    for limited in (False, True):
        with bench.side(ours=limited) as (worker,):
            worker.ask("start_green")
            green = int(bench.sampler.read()["last"])
            most = BEYOND if limited else LIMIT
            found = worker.ask("fill", "linear", 2 * MIB, most=most)
            peaks = bench.sampler.rest()
        sides.append(
            Outcome(
                code=found["code"],
                had=found["bytes"],
                peak=int(peaks["sum"]),
                end=int(peaks["last"]),
                device=int(peaks["device"]),
                more=f"; green context {mib(green)} MiB",
            )
        )
    native, ours = sides
    shown = (native.text(), ours.text())
    bench.add(SECTION, "green context first", shown, f"{mib(LIMIT)} MiB", judge(bench, ours))


def foreign(bench: Bench) -> None:
    """Let the policy grant another card: on this one every door must be closed."""
    bench.quiet()
    container = Container(ELSEWHERE, LIMIT, bench.context)
    try:
        bench.sampler.reset()
        with Worker(container.env) as worker:
            worker.ask("init")
            codes = {name: worker.ask("door", name) for name in NAMES}
        peaks = bench.sampler.rest()
    finally:
        container.remove()
    wrong = [f"{name} is open" for name, code in codes.items() if code == 0]
    wrong += [f"{name}: error {codes[name]} instead of 2" for name in OURS if codes[name] != 2]
    if peaks["sum"]:
        wrong.append(f"{mib(peaks['sum'])} MiB were had")
    ours = ", ".join(f"{name} {code}" for name, code in codes.items())
    bench.add(SECTION, "card not granted", ("", ours), "every door closed", ", ".join(wrong))


def run(bench: Bench) -> None:
    for case, api, size in MANAGED_FILLS:
        bench.guard(
            SECTION,
            case,
            lambda case=case, api=api, size=size: managed(  # type: ignore[misc]
                bench, case, api, size
            ),
        )
    bench.guard(SECTION, "green context first", lambda: green_first(bench))
    bench.guard(SECTION, "card not granted", lambda: foreign(bench))
