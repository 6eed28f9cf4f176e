"""Latency, throughput per core and memory of the admission webhook.

    python -m benchmarks.webhook [--nodes 1000] [--seconds 5] [--full] [--no-baseline]

The process is the real one, `python -m hami webhook`, with TLS, in front of a stand-in API server
(benchmarks/webhook_api.py) with nodes of 28 kB. It has one core for itself; the API server and the
client have another. Reviews come over kept-alive connections as kube-apiserver has them: some so
many a second by chance, whether the ones before are answered or not (`a second`), others as fast as
they are answered (`saturated`). Every pod asks for a MIG profile that is not there, and gets a
patch, but for one case. With `--full` the webhook within `hami scheduler` is measured, too.

Two baselines run in the same way: the same HTTP server that always answers the same bytes, which
is the floor; and a webhook of the standard library that lists the nodes for each review, as the one
that ours follows does. Each case is measured in rounds, of which the median one is shown: times on
a shared machine are noise. `taken` is how much of the time another process had the webhook's core
while it could have run; where that is much, the times say nothing about the webhook.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from benchmarks import (
    extender_http,
    extender_processes,
    webhook_fleet,
    webhook_load,
    webhook_processes,
)
from benchmarks.webhook_fleet import MISSING, PLAIN, Reviews
from benchmarks.webhook_load import Load, Webhook
from benchmarks.webhook_processes import Cluster

RATES = (200, 500)
ROUNDS = 5
AIM_P99_MS, AIM_RATE, AIM_MIB = 5.0, 1500.0, 50.0
#: Placed pods of the fleet that the scheduler has to hold.
_PLACED = 10_000
#: Seconds until what was freed with the lists or the load has been given back.
_SETTLE = 12.0


class Found(msgspec.Struct):
    """What was measured of one webhook."""

    #: The rounds of each case.
    cases: dict[str, list[Load]]
    #: MiB: when it was ready, when the load had ended, and the most ever.
    ready: float
    end: float = 0.0
    peak: float = 0.0


def main() -> None:
    arguments = _arguments()
    webhook_core, client_core = webhook_processes.cores()
    if webhook_core == client_core:
        print("this machine has one core: the webhook shares it with its client, times are worse")
    os.sched_setaffinity(0, {client_core})
    print(f"hami webhook at {arguments.nodes} nodes, one core")
    with webhook_processes.cluster(arguments.nodes, pages=True) as cluster:
        with webhook_processes.ours(cluster) as webhook:
            ready, peak = _memory(webhook)
        print(f"  nodes listed in pages: resident {ready:.1f} MiB, at most {peak:.1f}")
    with webhook_processes.cluster(arguments.nodes, pages=False) as cluster:
        with contextlib.ExitStack() as stack:
            webhooks = [stack.enter_context(webhook_processes.ours(cluster))]
            if not arguments.no_baseline:
                webhooks.append(stack.enter_context(webhook_processes.baseline(cluster, "floor")))
            ours, *floor = _measure(webhooks, _cases(arguments.seconds))
        print("  nodes listed by a watch:")
        _print_found(ours)
        _print_aims(ours)
        if floor:
            _compare_with_floor(ours, *floor)
            _compare_with_listing(cluster, ours, arguments.seconds)
        if arguments.full:
            _measure_scheduler(cluster, arguments.nodes, arguments.seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webhook", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each case")
    parser.add_argument("--full", action="store_true", help="the scheduler's webhook as well")
    parser.add_argument("--no-baseline", action="store_true", help="ours alone")
    return parser.parse_args()


# Cases.

Case = Callable[[Webhook], Load]


def _arriving(rate: int) -> str:
    return f"{rate} a second, medium"


def _saturated(size: str) -> str:
    return f"saturated, {size}"


_UNTOUCHED = "saturated, medium, nothing to do"


def _cases(seconds: float) -> dict[str, Case]:
    span = seconds / ROUNDS
    cases: dict[str, Case] = {}
    for rate in RATES:
        cases[_arriving(rate)] = _arrival(rate, span)
    for size in webhook_fleet.SIZES:
        cases[_saturated(size)] = _saturation(size, MISSING, span)
    cases[_UNTOUCHED] = _saturation("medium", PLAIN, span)
    return cases


def _arrival(rate: int, seconds: float) -> Case:
    reviews = Reviews("medium", MISSING)

    def run(webhook: Webhook) -> Load:
        return webhook_load.arrive(webhook, reviews.__next__, _checked, rate=rate, seconds=seconds)

    return run


def _saturation(
    size: str, asked: str, seconds: float, *, connections: int = webhook_load.CONNECTIONS
) -> Case:
    reviews = Reviews(size, asked)
    check = _checked if asked else _untouched

    def run(webhook: Webhook) -> Load:
        return webhook_load.saturate(
            webhook, reviews.__next__, check, seconds=seconds, connections=connections
        )

    return run


def _checked(answer: bytes) -> None:
    review = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["response"]
    assert review["allowed"], answer
    assert b"remove" in base64.b64decode(review["patch"]), answer


def _untouched(answer: bytes) -> None:
    assert msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["response"]["allowed"], answer


def _measure(webhooks: Sequence[Webhook], cases: Mapping[str, Case]) -> list[Found]:
    """Measure several side by side: a round of each, then the next, so that all are disturbed."""
    found = [Found({}, ready=_memory(webhook)[0]) for webhook in webhooks]
    for webhook in webhooks:
        next(iter(cases.values()))(webhook)  # warm up
    for name, case in cases.items():
        for _ in range(ROUNDS):
            for webhook, each in zip(webhooks, found, strict=True):
                each.cases.setdefault(name, []).append(case(webhook))
    for webhook, each in zip(webhooks, found, strict=True):
        each.end, each.peak = _memory(webhook)
    return found


def _memory(webhook: Webhook) -> tuple[float, float]:
    time.sleep(_SETTLE)
    return extender_http.memory_mib(webhook.pid)


# Baselines, and the webhook within the scheduler.


def _compare_with_floor(ours: Found, floor: Found) -> None:
    print("  the floor, measured in turns with ours: the same server, always the same answer")
    _print_found(floor)
    for name, rounds in floor.cases.items():
        ratio = _median(ours.cases[name]).cpu_rate / _median(rounds).cpu_rate
        print(f"    ours answers {ratio:4.0%} of its reviews for the same CPU: {name}")


def _compare_with_listing(cluster: Cluster, ours: Found, seconds: float) -> None:
    case = _saturation("medium", MISSING, seconds / ROUNDS, connections=1)
    authority = cluster.file("ca")
    with webhook_processes.baseline(cluster, "listing", cluster.url, authority) as webhook:
        (listing,) = _measure([webhook], {_saturated("medium"): case})
    print("  a webhook that lists the nodes for each review, one connection")
    _print_found(listing)
    slow, quick = _median(listing.cases[_saturated("medium")]), ours.cases
    print(
        f"    its p50 is {slow.p50 / _median(quick[_arriving(RATES[0])]).p50:.0f} times ours at "
        f"{RATES[0]} a second; ours answers "
        f"{_median(quick[_saturated('medium')]).cpu_rate / slow.cpu_rate:.0f} times as many for "
        f"the same CPU, and holds {ours.peak / listing.peak:.0%} of its memory"
    )


def _measure_scheduler(cluster: Cluster, nodes: int, seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        fake = stack.enter_context(extender_processes.fake_api(nodes, _PLACED))
        webhook = stack.enter_context(webhook_processes.scheduler(cluster, fake))
        (found,) = _measure([webhook], _cases(seconds))
    print(f"  the webhook within hami scheduler, which holds {_PLACED} placed vGPUs")
    _print_found(found)


# Printing.


def _median(rounds: list[Load]) -> Load:
    """Return the round in the middle by its 99th percentile."""
    return sorted(rounds, key=lambda load: load.p99)[len(rounds) // 2]


def _print_found(found: Found) -> None:
    titles = ("p50 ms", "p99 ms", "best p99", "reviews/s", "per CPU s", "taken")
    print(f"    {'':34}" + "".join(f"{title:>11}" for title in titles))
    for name, rounds in found.cases.items():
        load = _median(rounds)
        best = min(each.p99 for each in rounds)
        times = "".join(f"{value * 1e3:11.2f}" for value in (load.p50, load.p99, best))
        print(f"    {name:34}{times}{load.rate:11.0f}{load.cpu_rate:11.0f}{load.disturbed:11.0%}")
    print(
        f"    resident {found.ready:.1f} MiB when ready, {found.end:.1f} after the load, "
        f"at most {found.peak:.1f}"
    )


def _print_aims(found: Found) -> None:
    for rate in RATES:
        rounds = found.cases[_arriving(rate)]
        p99, best = _median(rounds).p99, min(each.p99 for each in rounds)
        print(
            f"  aim, p99 <= {AIM_P99_MS:g} ms at {rate} a second: "
            f"{_outcome(p99 * 1e3, 'ms', reached=p99 * 1e3 <= AIM_P99_MS)}, best round "
            f"{best * 1e3:.2f} ms"
        )
    load = _median(found.cases[_saturated("medium")])
    print(
        f"  aim, >= {AIM_RATE:g} reviews/s on one core: "
        f"{_outcome(load.rate, 'a second', reached=load.rate >= AIM_RATE)}, "
        f"{load.cpu_rate:.0f} for each second of CPU"
    )
    most = max(found.ready, found.end)
    outcome = _outcome(most, "MiB", reached=most <= AIM_MIB)
    print(f"  aim, resident <= {AIM_MIB:g} MiB when ready and after the load: {outcome}")


def _outcome(value: float, unit: str, *, reached: bool) -> str:
    return f"{'reached' if reached else 'missed'} ({value:.2f} {unit})"


if __name__ == "__main__":
    main()
