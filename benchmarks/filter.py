"""Measure one placement decision, and what its time depends on.

    python -m benchmarks.filter [--nodes 1000 5000] [--placed 0 100000] [--seconds 2]
    python -m benchmarks.filter --vendors [--nodes 5000]

Every fleet is measured in a process of its own, so that peak memory means something. A decision is
everything from the decoded pod and the list of node names (newly decoded each time) to the winner
with its cards, or to the text of every refused node. The baseline is the scalar reference of the
tests (tests/oracle/reference.py), which, like HAMi, computes the use of every node from its pods
each time; it runs on the same objects in the same run. Times on a shared machine are noise, the
ratios are not. With --vendors a fleet of four vendors is measured beside NVIDIA's alone, decision
by decision in turn, and NVIDIA's with all rows known beside the same with its own row alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from benchmarks import fleet, scalar_reference
from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.wire import objects

AIM_MS = 2.0
AIM_SLOPE_US = 1.0
AIM_MIXED_MS = 3.0
AIM_MIXED_RATIO = 1.05

NUMA = {"nvidia.com/numa-bind": "true"}
ALMOST = {"gpu": fleet.CARDS, "percent": 40, "cores": 5}
SHARE = fleet.pod("a", [{"gpu": 1, "memory": 8000, "cores": 10}])
ROTATED = "  the same, nodes in another order each time"
CASES: dict[str, objects.Pod] = {
    "share: 1 GPU, 8000 MiB, 10 %": SHARE,
    ROTATED: SHARE,
    "share: 1 GPU, 10 % of its memory": fleet.pod("b", [{"gpu": 1, "percent": 10}]),
    "8 GPUs, 1000 MiB each": fleet.pod("c", [{"gpu": 8, "memory": 1000}]),
    "4 GPUs on one NUMA node": fleet.pod("d", [{"gpu": 4, "memory": 1000}], annotations=NUMA),
    "init container and 2 app containers": fleet.pod(
        "e",
        [{"gpu": 1, "memory": 4000}, {"gpu": 2, "memory": 1000}],
        init=[{"gpu": 1, "memory": 9000}],
    ),
    "refused: too large for every card": fleet.pod("f", [{"gpu": 1, "memory": 90000}]),
    "refused: each container fits, not all": fleet.pod("g", [ALMOST, ALMOST, ALMOST]),
}
BASELINE_CASES = ("share: 1 GPU, 8000 MiB, 10 %", "refused: each container fits, not all")


def main() -> None:
    arguments = _arguments()
    if arguments.measure:
        nodes, placed = arguments.nodes[0], arguments.placed[0]
        measure = _measure_baseline if arguments.baseline else _measure
        json.dump(measure(nodes, placed, arguments.seconds), sys.stdout)
        return
    if arguments.vendors:
        for nodes in arguments.nodes:
            _compare_vendors(nodes, arguments.seconds)
        return
    found: dict[tuple[int, int], dict[str, dict[str, dict[str, float]]]] = {}
    for nodes, placed in itertools.product(arguments.nodes, arguments.placed):
        found[nodes, placed] = _run_apart(nodes, placed, arguments.seconds)
        _print_fleet((nodes, placed), found[nodes, placed])
        sys.stdout.flush()
    _print_growth(found)
    for nodes, placed in found:
        if not arguments.no_baseline:
            print(
                f"\nbaseline: scalar reference, {nodes} nodes, {placed} placed vGPUs ...",
                flush=True,
            )
            baseline = _run_apart(nodes, placed, arguments.seconds, "--baseline")
            for case, slow in baseline["cases"].items():
                quick = found[nodes, placed]["cases"][case]["p50"]
                print(
                    f"  {case:44} {slow['p50'] * 1e3:10.1f} ms   {slow['p50'] / quick:8.0f}x ours"
                )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filter", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--placed", type=int, nargs="+", default=[0, 100_000])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    parser.add_argument("--no-baseline", action="store_true", help="leave the reference out")
    parser.add_argument("--vendors", action="store_true", help="four vendors beside NVIDIA alone")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--baseline", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _compare_vendors(nodes: int, seconds: float) -> None:
    """Print p50 of fleets in the same run; the decisions alternate, so all meet the same noise."""
    alone, every, mixed = "its row alone", "all rows", "four vendors"
    clusters = {alone: Cluster((fleet.NVIDIA,))}
    clusters |= {name: Cluster(fleet.VENDORS) for name in (every, mixed)}
    for name, cluster in clusters.items():
        for node in (fleet.mixed_nodes if name == mixed else fleet.nodes)(nodes):
            cluster.observe_node(node)
    names = [fleet.node_name(node) for node in range(nodes)]
    others = {
        f"share: 1 {name}, 8192 MiB, 10 %": fleet.pod(
            name, [{"gpu": 1, "memory": memory, "cores": 10}], vendor=fleet.row(name)
        )
        for name, memory in (("DCU", 8192), ("AMD", 8192), ("MLU", 32))
    }
    print(f"\n{nodes} nodes, p50: NVIDIA's fleet with its row alone, with all rows; four vendors")
    for case, pod in (CASES | others).items():
        if case == ROTATED:
            continue
        asked = {mixed: clusters[mixed]} if case in others else clusters
        times: dict[str, list[float]] = {name: [] for name in asked}
        end = time.perf_counter() + seconds
        while not times[mixed] or time.perf_counter() < end:
            for name, cluster in asked.items():
                start = time.perf_counter()
                demand = request.parse(pod, cluster.families, request.Defaults())
                assert demand is not None
                decision = decide.decide(cluster, demand, list(names))
                assert decision.winner or decision.explanation.failed_nodes()
                times[name].append(time.perf_counter() - start)
        p50 = {name: statistics.median(each) for name, each in times.items()}
        base = p50.get(alone)
        shown = (
            f"{n}: {t * 1e3:.2f} ms{f' {t / base:.2f}x' if base else ''}" for n, t in p50.items()
        )
        print(f"  {case:44} {', '.join(shown)}")
    print(f"  (aims: {every} <= {AIM_MIXED_RATIO:g}x, {mixed} <= {AIM_MIXED_MS:g} ms)")


def _run_apart(
    nodes: int, placed: int, seconds: float, *more: str
) -> dict[str, dict[str, dict[str, float]]]:
    command = [sys.executable, "-m", "benchmarks.filter", "--measure", *more]
    command += ["--nodes", str(nodes), "--placed", str(placed), "--seconds", str(seconds)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ourselves
    result: dict[str, dict[str, dict[str, float]]] = json.loads(ran.stdout)
    return result


def _measure(nodes: int, placed: int, seconds: float) -> dict[str, object]:
    before = _peak_mib()
    cluster = Cluster(fleet.VENDORS)
    for node in fleet.nodes(nodes):
        cluster.observe_node(node)
    for pod in fleet.placed_pods(placed, nodes):
        cluster.observe_pod(pod)
    built = _peak_mib()

    def decide_one(pod: objects.Pod, names: list[str]) -> bool:
        demand = request.parse(pod, cluster.families, request.Defaults())
        assert demand is not None
        decision = decide.decide(cluster, demand, names)
        if decision.winner is None:
            assert len(decision.explanation.failed_nodes()) == nodes
        return decision.winner is not None

    cases = {
        name: _time(decide_one, pod, nodes, seconds, rotate=name == ROTATED)
        for name, pod in CASES.items()
    }
    memory = {"imports": before, "built": built, "peak": _peak_mib()}
    return {"cases": cases, "memory": {"MiB": memory}}


def _measure_baseline(nodes: int, placed: int, seconds: float) -> dict[str, object]:
    filter_one = scalar_reference.load(nodes, placed)
    return {
        "cases": {
            name: _time(filter_one, CASES[name], nodes, seconds, least=1) for name in BASELINE_CASES
        }
    }


def _time(
    decision: Callable[[objects.Pod, list[str]], bool],
    pod: objects.Pod,
    nodes: int,
    seconds: float,
    *,
    least: int = 20,
    rotate: bool = False,
) -> dict[str, float]:
    """Repeat a decision; each time with newly decoded names, as a request brings them."""
    body = msgspec.json.encode([fleet.node_name(node) for node in range(nodes)])
    if least > 1:
        decision(pod, msgspec.json.decode(body))  # the first one builds caches
    gc.collect()
    times: list[float] = []
    end = time.perf_counter() + seconds
    placed = False
    while len(times) < least or time.perf_counter() < end:
        names = msgspec.json.decode(body)
        if rotate:
            cut = len(times) * 7919 % nodes
            names = names[cut:] + names[:cut]
        start = time.perf_counter()
        placed = decision(pod, names)
        times.append(time.perf_counter() - start)
    times.sort()
    return {
        "p50": statistics.median(times),
        "p99": times[int(len(times) * 0.99)],
        "best": times[0],
        "placed": placed,
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _print_fleet(size: tuple[int, int], result: dict[str, dict[str, dict[str, float]]]) -> None:
    nodes, placed = size
    print(f"\n{nodes} nodes x {fleet.CARDS} GPUs, {placed} placed vGPUs")
    print(f"  {'decision':44} {'p50 ms':>8} {'p99 ms':>8} {'best ms':>8} {'per s':>8}  result")
    for name, case in result["cases"].items():
        columns = "".join(f" {case[key] * 1e3:8.2f}" for key in ("p50", "p99", "best"))
        outcome = "placed" if case["placed"] else "refused"
        print(f"  {name:44}{columns} {1 / case['p50']:8.0f}  {outcome}")
    memory = result["memory"]["MiB"]
    print(
        f"  peak memory {memory['peak']:.0f} MiB: {memory['imports']:.0f} imports, "
        f"{memory['built'] - memory['imports']:.0f} fleet, "
        f"{memory['peak'] - memory['built']:.0f} decisions"
    )


def _print_growth(found: dict[tuple[int, int], dict[str, dict[str, dict[str, float]]]]) -> None:
    sizes, loads = sorted({n for n, _ in found}), sorted({p for _, p in found})
    small, large, empty, loaded = sizes[0], sizes[-1], loads[0], loads[-1]
    print(f"\ngrowth (p50), and the aims at {large} nodes")
    header = f"  {'decision':44} {'us per node':>12} {f'{loaded} / {empty} placed':>20}"
    print(f"{header} {f'p50, best <= {AIM_MS:g} ms':>20}")
    for name in CASES:

        def p50(nodes: int, placed: int, name: str = name) -> float:
            return found[nodes, placed]["cases"][name]["p50"]

        slope = "-"
        if large > small:
            slope = f"{(p50(large, loaded) - p50(small, loaded)) / (large - small) * 1e6:.2f}"
        effect = p50(large, loaded) / p50(large, empty)
        times = (found[large, loaded]["cases"][name][key] for key in ("p50", "best"))
        met = ", ".join("yes" if seconds * 1e3 <= AIM_MS else "no" for seconds in times)
        print(f"  {name:44} {slope:>12} {effect:19.2f}x {met:>20}")
    print(f"  (aim: at most {AIM_SLOPE_US:g} us per node, and no growth with placed pods)")


if __name__ == "__main__":
    main()
