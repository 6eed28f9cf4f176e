"""Parts of `benchmarks.extender`: equal pods, /metrics, blocks, start.

Each prints its figures beside a baseline of the same run, and the aim where the fleet has one.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import parser

from benchmarks import extender_fleet, extender_http, extender_processes, fleet
from benchmarks.extender_http import Connection
from benchmarks.extender_processes import Extender, Fake
from hami.cluster.state import Cluster
from hami.placement import request
from hami.placement.request import PodRequest
from hami.scheduler.refusals import Refusals

EQUAL_PODS = 1000
#: Pods that are refused one by one, as the baseline.
_OTHER_PODS = 200
_MEMORY = 90_000
_BLOCKED = "hami_scheduler_loop_blocked"
_BLOCK_AIM_MS = 5
MEGABYTE = 10**6
_STARTS = 3


def reached(what: str, value: float, aim: float, unit: str) -> str:
    return f"{what} <= {aim:g} {unit}: {'reached' if value <= aim else 'missed'} ({value:.3g})"


# Equal pods.


def equal_pods(extender: Extender, endings: list[bytes], nodes: int) -> None:
    """Refuse a job of equal pods, and as many that all ask for something else."""
    connection = Connection(extender.port)

    def refuse(number: int, *, kind: int, memory: int) -> float:
        uid = extender_fleet.uid(number, kind=kind)
        pod = extender_fleet.pod_json(uid, uid, share={"gpu": 1, "memory": memory})
        # As the containers of some job controllers are named.
        pod = pod.replace(b'"app0"', b'"app-%d"' % number)
        body = b'{"Pod":%s,%s' % (pod, endings[number % len(endings)])
        took, answer = connection.call("POST", "/filter", body)
        assert b'"NodeNames":null' in answer, answer[:300]
        return took

    other = [refuse(n, kind=5, memory=_MEMORY + 1 + n) for n in range(_OTHER_PODS)]
    before = extender_http.cpu_seconds(extender.pid)
    equal = [refuse(n, kind=6, memory=_MEMORY) for n in range(EQUAL_PODS)]
    cpu = (extender_http.cpu_seconds(extender.pid) - before) / EQUAL_PODS
    connection.close()
    mean, median = statistics.fmean(equal) * 1e3, statistics.median(equal) * 1e3
    slow = statistics.median(other) * 1e3
    print(f"  {EQUAL_PODS} equal pods, refused over HTTP with {nodes} shuffled names each:")
    print(
        f"    mean {mean:.2f} ms, p50 {median:.2f}, best {min(equal) * 1e3:.2f}, "
        f"CPU {cpu * 1e3:.2f}; pods that all differ: p50 {slow:.2f} ms, {slow / median:.1f}x"
    )
    print(f"    aim, {reached('mean', mean, 1, 'ms')}, {reached('p50', median, 1, 'ms')}")
    _deciding(nodes)


def _deciding(nodes: int) -> None:
    """Measure the decision alone, in memory: kept and made, and the look-up of the names."""
    cluster = Cluster(fleet.VENDORS)
    for node in fleet.nodes(nodes):
        cluster.observe_node(node)
    names = [fleet.node_name(number) for number in range(nodes)]
    pods = [_wanted(number, _MEMORY) for number in range(200)]
    others = [_wanted(number, _MEMORY + 1 + number) for number in range(200)]
    refusals = Refusals(cluster)
    asked = cluster.ask(names)
    kept = _median(lambda number: refusals.decide(pods[number], asked, nodes))
    assert refusals.repeated >= len(pods) - 1
    made = _median(lambda number: refusals.decide(others[number], asked, nodes))
    shuffled = [random.Random(seed).sample(names, len(names)) for seed in range(20)]
    # New objects, as a decoder makes them: the hash of a text is kept in it.
    found = _median(lambda number: cluster.ask(_copied(shuffled[number % 20])))
    copied = _median(lambda number: _copied(shuffled[number % 20]))
    print(
        f"    deciding alone: kept {kept:.4f} ms, made {made:.3f} ms, {made / kept:.0f}x; finding "
        f"the nodes of shuffled names, for any pod: {found - copied:.3f} ms"
    )
    print(f"    aim, {reached('deciding', kept, 0.1, 'ms')}")


def _copied(names: list[str]) -> list[str]:
    return msgspec.json.decode(msgspec.json.encode(names), type=list[str])


def _wanted(number: int, memory: int) -> PodRequest:
    pod = extender_fleet.core_pod(f"p{number}", {"gpu": 1, "memory": memory})
    wanted = request.parse(pod, fleet.VENDORS, request.Defaults())
    assert wanted is not None
    return wanted


def _median(call: Callable[[int], object]) -> float:
    """Return milliseconds."""
    times = []
    for number in range(200):
        begin = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


# /metrics.


class Scrape(msgspec.Struct, frozen=True):
    bytes: int
    #: With gzip.
    packed: int
    #: Seconds of CPU for each.
    cpu: float
    packed_cpu: float


def scrape(extender: Extender, times: int = 3) -> Scrape:
    """Read /metrics as it is and with gzip; CPU is the least of a few."""
    plain, packed = [], []
    for _ in range(times):
        plain.append(_scrape(extender, "identity"))
        packed.append(_scrape(extender, "gzip"))
    return Scrape(plain[0][0], packed[0][0], min(c for _, c in plain), min(c for _, c in packed))


def _scrape(extender: Extender, accepted: str) -> tuple[int, float]:
    url = f"http://127.0.0.1:{extender.metrics_port}/metrics"
    asked = urllib.request.Request(url, headers={"Accept-Encoding": accepted})
    before = extender_http.cpu_seconds(extender.pid)
    with urllib.request.urlopen(asked) as answer:  # noqa: S310  ours
        body = answer.read()
    cpu = extender_http.cpu_seconds(extender.pid) - before
    assert accepted != "gzip" or gzip.decompress(body)
    return len(body), cpu


def metrics(fake: Fake, default: Extender, *, aims: bool) -> None:
    """Compare /metrics by default with all series, and with those of nodes and sums alone."""
    found = {"default": scrape(default)}
    with extender_processes.ours(fake, "--container-metrics-limit=1000000000") as extender:
        found["all series"] = scrape(extender)
    with extender_processes.ours(fake, "--card-metrics=false") as extender:
        found["--card-metrics=false"] = scrape(extender)
    every = found["all series"]
    print("  /metrics           MB     gzip MB   CPU s   CPU s gzip   part of all series")
    for name, each in found.items():
        print(
            f"    {name:20} {each.bytes / MEGABYTE:7.2f} {each.packed / MEGABYTE:7.2f} "
            f"{each.cpu:7.2f} {each.packed_cpu:7.2f} {each.bytes / every.bytes:12.3f}"
        )
    if aims:
        sizes = {name: each.bytes / MEGABYTE for name, each in found.items()}
        print(f"    aim, {reached('with cards', sizes['default'], 55, 'MB')}")
        print(f"    aim, {reached('without', sizes['--card-metrics=false'], 2, 'MB')}")


# Blocks of the loop.


def blocks(extender: Extender, filter_p50: float) -> None:
    """Show what the process's own watchdog saw since it was ready."""
    url = f"http://127.0.0.1:{extender.metrics_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = [line for line in answer.read().decode().splitlines() if _BLOCKED in line]
    families = list(parser.text_string_to_metric_families("\n".join(lines) + "\n"))
    samples = [sample for family in families for sample in family.samples]
    print(f"  longest blocks of the loop since ready, and how many were above {_BLOCK_AIM_MS} ms")
    for by in ("filter", "other"):
        for clock in ("cpu", "wall"):
            mine = [s for s in samples if (s.labels["by"], s.labels["clock"]) == (by, clock)]
            longest = max((s.value for s in mine if s.name.endswith("_max_seconds")), default=0.0)
            all_ = sum(s.value for s in mine if s.name.endswith("_count"))
            short = sum(s.value for s in mine if s.labels.get("le") == str(_BLOCK_AIM_MS / 1e3))
            print(
                f"    {by:7} {clock:5} {longest * 1e3:8.2f} ms, {longest / filter_p50:6.1f}x a "
                f"/filter (p50); {all_ - short:.0f} of {all_:.0f} above"
            )
            if (by, clock) == ("other", "cpu"):
                print(f"    aim, {reached('by other work', longest * 1e3, _BLOCK_AIM_MS, 'ms')}")


# Start.


def start(fake: Fake) -> None:
    """Compare the time from start to ready with fetching and decoding the same lists alone.

    The two take turns, and the least of each counts: a shared machine changes between them. Both
    keep their bytecode, as the image has it; the first time of each makes it.
    """
    with tempfile.TemporaryDirectory() as folder, _bytecode_in(folder):
        _start(fake)


@contextlib.contextmanager
def _bytecode_in(folder: str) -> Iterator[None]:
    """Let processes that are started meanwhile keep their bytecode in a folder."""
    before = dict(os.environ)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _start(fake: Fake) -> None:
    command = [sys.executable, "-m", "benchmarks.extender_lists", str(fake.kubeconfig)]
    ours, alone = [], []
    for _ in range(_STARTS):
        begin, before = time.perf_counter(), _children_cpu()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603  ourselves
        alone.append((time.perf_counter() - begin, _children_cpu() - before))
        with extender_processes.ours(fake) as extender:
            ours.append((extender.start, extender_http.cpu_seconds(extender.pid)))
    (wall, cpu), (alone_wall, alone_cpu) = (
        (min(each[0] for each in both), min(each[1] for each in both)) for both in (ours, alone)
    )
    print(
        f"  ready {wall:.1f} s after its start, CPU {cpu:.1f}; fetching and decoding the lists "
        f"alone {alone_wall:.1f} s, CPU {alone_cpu:.1f}: {wall / alone_wall:.2f}x, "
        f"CPU {cpu / alone_cpu:.2f}x"
    )
    print(f"    aim, {reached('start to ready', wall / alone_wall, 2, 'times the lists alone')}")


def _children_cpu() -> float:
    """Return the CPU seconds of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
