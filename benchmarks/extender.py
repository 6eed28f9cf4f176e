"""Time of kube-scheduler's calls to the extender, and cost of the process.

    python -m benchmarks.extender [--nodes 1000 5000] [--placed 10000 100000] [--seconds 3]
                                  [--fleet 5000/100000 10000/200000] [--only calls equal]
                                  [--hami-binary PATH] [--no-baseline]

The process is the real one, `python -m hami scheduler`, in front of a stand-in API server
(benchmarks/extender_api.py) with the fleet. A call is what kube-scheduler sends: a pod of 5 kB and
all node names, shuffled each time (kube-scheduler's own order is not stable), on one
kept-alive connection, one call after the other. CPU is that of the process, so with its logs,
events and background work. Each refused pod asks for another amount of memory, so each is decided;
equal pods are a part of their own (benchmarks/extender_parts.py), as are /metrics, blocks of the
event loop, and the start.

The baseline is the scalar reference of the tests, in memory and without any HTTP; with
`--hami-binary`, HAMi's own scheduler too, in front of the same API server and with its limits on
requests lifted. Times on a shared machine are noise, the ratios are not; CPU a call and the best
time stand beside the median for that reason.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

from benchmarks import (
    extender_fleet,
    extender_http,
    extender_parts,
    extender_processes,
    fleet,
    scalar_reference,
)
from benchmarks.extender_http import Connection, Measured
from benchmarks.extender_processes import Extender, Fake

FITS = {"gpu": 1, "memory": 2000, "cores": 3}
REFUSED = {"gpu": 1, "memory": 90000}
SAME, FRESH = "/filter, fits: the same pod again", "/filter, fits: another pod each time"
NOWHERE = "/filter, refused by every node"
IDLE = "GET /healthz, for comparison"
BIND = "/bind, after a /filter that is not counted"
EVENTS = 500
BUSY = f"/filter, fits: {EVENTS} changes of pods a second"
SCRAPED = "/filter, fits: /metrics is being read"
_ORDERS = 32


class Aim(msgspec.Struct, frozen=True):
    p50_ms: float
    p99_ms: float = float("inf")
    mib: float = float("inf")


#: By nodes and placed vGPUs.
AIMS = {
    (10_000, 200_000): Aim(5, 15, 600),
    (5000, 100_000): Aim(3, 10, 300),
    (1000, 10_000): Aim(1),
}
PARTS = ("calls", "equal", "metrics", "blocks", "start")
AIM_SLOPE_US = 1.0


class Found(msgspec.Struct):
    """What was measured of one extender with one fleet."""

    cases: dict[str, Measured]
    start: float
    #: MiB: when it was ready, at the end, and the most ever.
    ready_mib: float
    end_mib: float
    peak_mib: float
    #: Seconds and bytes of each time /metrics was read.
    scrapes: list[tuple[float, int]] = []
    #: Writes to the API server for each bind.
    writes: float = 0.0


def main() -> None:
    arguments = _arguments()
    if arguments.measure_baseline:
        json.dump(_baseline(arguments.nodes[0], arguments.placed[0], arguments.seconds), sys.stdout)
        return
    found: dict[tuple[int, int], Found] = {}
    only = set(arguments.only)
    for nodes, placed in arguments.fleet or itertools.product(arguments.nodes, arguments.placed):
        print(f"\n{nodes} nodes x {fleet.CARDS} GPUs, {placed} placed vGPUs", flush=True)
        with extender_processes.fake_api(nodes, placed) as fake:
            with extender_processes.ours(fake) as extender:
                # Blocks are those while all kinds of calls are made, so they come after them.
                ours = None
                if only & {"calls", "blocks"}:
                    ours = _measure_all(extender, fake, nodes, arguments.seconds)
                _measure_parts(only, extender, fake, nodes, ours)
            if ours is None or "calls" not in only:
                continue
            found[nodes, placed] = ours
            _print_found(ours)
            _print_aims(AIMS.get((nodes, placed)), ours)
            if not arguments.no_baseline:
                _print_ratios(
                    "the scalar reference (no HTTP)",
                    _baseline_apart(nodes, placed, arguments.seconds),
                    ours,
                )
            if arguments.hami_binary:
                _compare_with_hami(arguments.hami_binary, fake, nodes, ours)
        sys.stdout.flush()
    if found:
        _print_growth(found)


def _measure_parts(
    only: set[str], extender: Extender, fake: Fake, nodes: int, calls: Found | None
) -> None:
    if "equal" in only:
        extender_parts.equal_pods(extender, list(_endings(nodes)), nodes)
    if "blocks" in only and calls is not None:
        time.sleep(5)  # rounds of background work over all refused pods
        extender_parts.blocks(extender, calls.cases[SAME].p50)
    if "metrics" in only:
        extender_parts.metrics(fake, extender, aims=nodes == 5000)
    if "start" in only:
        extender_parts.start(fake)


def _fleet(text: str) -> tuple[int, int]:
    nodes, _, placed = text.partition("/")
    return int(nodes), int(placed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extender", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--placed", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--fleet", type=_fleet, nargs="+", help="NODES/PLACED, instead of both")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each case")
    parser.add_argument("--no-baseline", action="store_true", help="leave the reference out")
    parser.add_argument("--hami-binary", help="HAMi's `scheduler`, to be measured as well")
    parser.add_argument("--measure-baseline", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# Calls.


class Caller:
    """kube-scheduler's side: what it sends, and one connection to send it on."""

    def __init__(self, port: int, nodes: int) -> None:
        self._connection = Connection(port)
        self._endings = list(_endings(nodes))
        self._nodes = nodes
        self._fresh = itertools.count()
        self._amounts = itertools.count()

    def close(self) -> None:
        self._connection.close()

    def idle(self, _: int) -> float:
        return self._connection.call("GET", "/healthz")[0]

    def same(self, number: int) -> float:
        return self._filter(number, extender_fleet.uid(0, kind=8), FITS)[0]

    def fresh(self, number: int) -> float:
        return self._filter(number, self._new_uid(), FITS)[0]

    def refused(self, number: int) -> float:
        # Not the same amount again: a refusal is kept for equal pods.
        share = {**REFUSED, "memory": REFUSED["memory"] + next(self._amounts) % 10**6}
        took, answer = self._filter(number, extender_fleet.uid(1, kind=8), share)
        failed = msgspec.json.decode(answer)["FailedNodes"] if number < 2 else None
        assert failed is None or len(failed) == self._nodes, answer[:500]
        return took

    def bind(self, number: int) -> float:
        uid = self._new_uid()
        answer = self._filter(number, uid, FITS)[1]
        (node,) = msgspec.json.decode(answer)["NodeNames"]
        args = {"PodName": uid, "PodNamespace": "bench", "PodUID": uid, "Node": node}
        took, answer = self._connection.call("POST", "/bind", msgspec.json.encode(args))
        assert not msgspec.json.decode(answer)["Error"], answer
        return took

    def _filter(self, number: int, uid: str, share: dict[str, int]) -> tuple[float, bytes]:
        pod = extender_fleet.pod_json(uid, uid, share=share)
        body = b'{"Pod":%s,%s' % (pod, self._endings[number % len(self._endings)])
        took, answer = self._connection.call("POST", "/filter", body)
        if share is FITS:
            assert b'"NodeNames":["' in answer, answer[:500]
        return took, answer

    def _new_uid(self) -> str:
        return extender_fleet.uid(next(self._fresh), kind=9)


def _endings(nodes: int) -> Iterator[bytes]:
    names = [fleet.node_name(number) for number in range(nodes)]
    shuffles = random.Random(nodes)
    for _ in range(_ORDERS):
        shuffles.shuffle(names)
        yield b'"Nodes":null,"NodeNames":%s}' % msgspec.json.encode(names)


def _measure_all(extender: Extender, fake: Fake, nodes: int, seconds: float) -> Found:
    ready_mib, _ = extender_http.memory_mib(extender.pid)
    caller = Caller(extender.port, nodes)
    found = Found({}, extender.start, ready_mib, 0, 0)

    def case(name: str, call: Callable[[int], float], least: int = 30) -> None:
        found.cases[name] = extender_http.measure(extender.pid, call, seconds=seconds, least=least)

    with contextlib.closing(caller):
        case(IDLE, caller.idle)
        case(SAME, caller.same)
        case(FRESH, caller.fresh)
        case(NOWHERE, caller.refused)
        writes = _pod_writes(fake)
        case(BIND, caller.bind)
        # Not the CPU of a bind: half of it is the /filter before.
        bound = found.cases[BIND].calls + extender_http.WARM_UP
        found.writes = (_pod_writes(fake) - writes) / bound
        extender_processes.send_events(fake, EVENTS)
        case(BUSY, caller.same)
        extender_processes.send_events(fake, 0)
        reader = extender_http.Reader(f"http://127.0.0.1:{extender.metrics_port}/metrics")
        time.sleep(0.5)
        case(SCRAPED, caller.same)
        found.scrapes = reader.stop()
    found.end_mib, found.peak_mib = extender_http.memory_mib(extender.pid)
    return found


def _pod_writes(fake: Fake) -> int:
    seen = extender_processes.requests_seen(fake)
    return sum(n for what, n in seen.items() if not what.startswith("GET") and "event" not in what)


# Baselines.


def _baseline(nodes: int, placed: int, seconds: float) -> dict[str, float]:
    """Return the median seconds of the scalar reference."""
    filter_one = scalar_reference.load(nodes, placed)
    names = [fleet.node_name(number) for number in range(nodes)]
    medians = {}
    for case, share, fits in ((SAME, FITS, True), (NOWHERE, REFUSED, False)):
        pod = extender_fleet.core_pod("asked", share)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            begin = time.perf_counter()
            placeable = filter_one(pod, names)
            times.append(time.perf_counter() - begin)
            assert placeable == fits
        medians[case] = sorted(times)[len(times) // 2]
    return medians


def _baseline_apart(nodes: int, placed: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.extender", "--measure-baseline"]
    command += ["--nodes", str(nodes), "--placed", str(placed), "--seconds", str(seconds)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ourselves
    medians: dict[str, float] = json.loads(ran.stdout)
    return medians


def _compare_with_hami(binary: str, fake: Fake, nodes: int, ours: Found) -> None:
    def asks(port: int) -> bool:
        """Ask it until it names a node: it says that it is ready before it knows any."""
        with contextlib.closing(Caller(port, nodes)) as first:
            try:
                first.same(0)
            except AssertionError:
                time.sleep(1)
                return False
            return True

    try:
        with extender_processes.theirs(fake, binary, asks) as extender:
            with contextlib.closing(Caller(extender.port, nodes)) as caller:
                cases = {
                    name: extender_http.measure(extender.pid, call, seconds=10, least=5, warm_up=1)
                    for name, call in (
                        (SAME, caller.same),
                        (FRESH, caller.fresh),
                        (NOWHERE, caller.refused),
                    )
                }
            _, peak = extender_http.memory_mib(extender.pid)
    except (extender_processes.StartError, OSError) as error:
        print(f"  HAMi could not be measured: {error}")
        return
    print(f"  HAMi: ready after {extender.start:.1f} s, at most {peak:.0f} MiB")
    for name, case in cases.items():
        print(_line(name, case))
    _print_ratios("HAMi", {name: case.p50 for name, case in cases.items()}, ours)
    for name, case in cases.items():
        print(f"    CPU a call: {name:42} {case.cpu / ours.cases[name].cpu:8.0f}x ours")
    print(f"    memory: {peak / ours.peak_mib:.1f}x ours")


# Printing.


def _print_found(found: Found) -> None:
    print(f"  {'call':46} {'p50 ms':>8} {'p99 ms':>8} {'best ms':>8} {'CPU ms':>8} {'calls':>7}")
    for name, case in found.cases.items():
        print(_line(name, case))
    print(
        f"  ready {found.start:.1f} s after its start; resident {found.ready_mib:.0f} MiB when "
        f"ready, {found.end_mib:.0f} at the end, at most {found.peak_mib:.0f}"
    )
    took, size = max(found.scrapes)
    print(f"  /metrics: {size / 2**20:.1f} MiB, {len(found.scrapes)} times, at most {took:.1f} s")
    print(f"  writes to the API server for one bind, events apart: {found.writes:.2f}")


def _line(name: str, case: Measured) -> str:
    times = "".join(f" {value * 1e3:8.2f}" for value in (case.p50, case.p99, case.best, case.cpu))
    return f"  {name:46}{times} {case.calls:7}"


def _print_aims(aim: Aim | None, found: Found) -> None:
    if aim is None:
        return
    for name in (SAME, FRESH, NOWHERE):
        case = found.cases[name]
        reached = [
            f"{_reached('p50', case.p50 * 1e3, aim.p50_ms, 'ms')}, best {case.best * 1e3:.2f}"
        ]
        if aim.p99_ms < float("inf"):
            reached.append(_reached("p99", case.p99 * 1e3, aim.p99_ms, "ms"))
        print(f"  aim, {name}: {', '.join(reached)}")
    if aim.mib < float("inf"):
        print(f"  aim, {_reached('memory', found.peak_mib, aim.mib, 'MiB')}")


def _reached(what: str, value: float, aim: float, unit: str) -> str:
    return f"{what} <= {aim:g} {unit}: {'reached' if value <= aim else f'missed ({value:.2f})'}"


def _print_ratios(baseline: str, medians: dict[str, float], ours: Found) -> None:
    print(f"  p50 of {baseline}, beside ours")
    for name, slow in medians.items():
        print(f"    {name:44} {slow * 1e3:10.1f} ms {slow / ours.cases[name].p50:8.0f}x ours")


def _print_growth(found: dict[tuple[int, int], Found]) -> None:
    sizes, loads = sorted({n for n, _ in found}), sorted({p for _, p in found})
    small, large, few, many = sizes[0], sizes[-1], loads[0], loads[-1]
    print(f"\ngrowth, by CPU a call (p50): us for each node, and {many} against {few} placed vGPUs")
    for name in (SAME, FRESH, NOWHERE):
        slope = "-"
        if large > small:
            cpu, p50 = (
                (
                    getattr(found[large, many].cases[name], key)
                    - getattr(found[small, many].cases[name], key)
                )
                / (large - small)
                for key in ("cpu", "p50")
            )
            slope = f"{cpu * 1e6:.2f} ({p50 * 1e6:.2f})"
        full, sparse = found[large, many].cases[name], found[large, few].cases[name]
        effect = f"{full.cpu / sparse.cpu:.2f}x ({full.p50 / sparse.p50:.2f}x)"
        print(f"  {name:46} {slope:>16} {effect:>18}")
    print(f"  (aim: at most {AIM_SLOPE_US:g} us for each node, and no growth with placed pods)")


if __name__ == "__main__":
    main()
