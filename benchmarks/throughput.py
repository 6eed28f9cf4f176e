"""Pods bound a second on a real cluster: with hami, and without any extender.

    python -m benchmarks.throughput [--nodes 1000] [--pods 2000] [--rounds 3]

Real Kubernetes 1.36 with simulated nodes (kwok). In each round the kinds take turns:

- hami: pods with a share of a card; kube-scheduler with the configuration that hami makes for it
- no extender: pods without cards; another kube-scheduler with the same client limits, alone
- alike: pods with three resources that are not counted, and all nodes looked at, as for hami's
  pods, but without an extender: what kube-scheduler itself spends on such pods
- as shipped: pods without cards; the cluster's own kube-scheduler with all its defaults, among them
  a limit of 50 requests a second

A kube-scheduler is stopped (SIGSTOP) while its pods are created, so that creating them is no part
of it. The rate is that of the pods between the first and the last that the watch shows bound. The
aim is for hami against no extender. It needs root and the parts of the test cluster (`make parts`).
`HAMI_E2E_CLUSTER=dev` uses one that is up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics

from benchmarks import throughput_burst as bursts
from benchmarks.throughput_burst import Burst, Kind
from tests.e2e.cluster import cluster as clusters
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Layout, nodes
from tests.e2e.install import installing, placing
from tests.e2e.install import nodes as gpu_nodes

AIM = 0.7
CARDS, SHARES = 8, 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if name := os.environ.get("HAMI_E2E_CLUSTER"):
            cluster = clusters.find(name)
        else:
            cluster = stack.enter_context(clusters.temporary(Layout("throughput", nodes(1))))
        stack.enter_context(cluster.joined_network())
        compare(cluster, arguments.nodes, arguments.pods, arguments.rounds)


def compare(cluster: Cluster, node_count: int, pod_count: int, rounds: int) -> None:
    with (
        gpu_nodes.simulated(cluster, node_count, cards_each=CARDS, count=SHARES),
        installing.running(cluster, elect=False) as install,
        bursts.plain_scheduler(cluster) as plain,
    ):
        kinds = bursts.kinds(install, plain)
        for kind in kinds:  # connections, caches and heaps grow once; not counted
            bursts.run(cluster, kind, pod_count // 10)
        done: dict[str, list[Burst]] = {kind.name: [] for kind in kinds}
        for turn in range(rounds):
            for kind in kinds:
                one = bursts.run(cluster, kind, pod_count)
                done[kind.name].append(one)
                print(f"round {turn + 1}, {kind.name}: {one.summary()}", flush=True)
        assert placing.overbooked(install.client) == []
    report(kinds, done, pod_count, node_count)


def report(
    kinds: tuple[Kind, ...], done: dict[str, list[Burst]], pod_count: int, node_count: int
) -> None:
    rates = {name: statistics.median(one.rate for one in all_) for name, all_ in done.items()}
    print(f"{pod_count} pods onto {node_count} nodes, pods bound a second (median):")
    for kind in kinds:
        print(f"  {kind.name}: {rates[kind.name]:.0f}")
    ours, *others = (kind.name for kind in kinds)
    for other in others:
        aim = f" (aim >= {AIM})" if other == others[0] else ""
        print(f"ratio of hami to {other}: {rates[ours] / rates[other]:.2f}{aim}")
    for kind in kinds:
        print(f"{kind.name}, last round:")
        for line in done[kind.name][-1].details():
            print(f"  {line}")


if __name__ == "__main__":
    main()
