"""Delay of a burst of pods by late binding, on a real kubelet.

    python -m benchmarks.late_binding [--pods 100] [--rounds 3]

Baselines on the same node in the same run, in turn: the same pods without a device, and with the
bare plugin, which binds late and does nothing else. With hami's agent the whole product is at work:
admission, scheduler, grants, library, policies. It needs root and the parts of the test cluster
(`make parts`). `HAMI_E2E_CLUSTER=dev` uses one that is up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics

from tests.e2e import burst, pods
from tests.e2e.agent import installation
from tests.e2e.bare_plugin import on_node
from tests.e2e.burst import Limits
from tests.e2e.cluster import cluster as clusters
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Layout, nodes
from tests.e2e.install.nodes import GPU, MEMORY
from tests.kubeapi.paths import namespaces

NODE = installation.LATE
NAMESPACE = "burst"
WAIT_S = 600
PLAIN, BARE, AGENT = "without a device", "bare plugin", "hami's agent"
AIMS = ((BARE, PLAIN, 1.15), (AGENT, BARE, 1.6))
SHARE = {GPU: "1", MEMORY: "500"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late_binding")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if name := os.environ.get("HAMI_E2E_CLUSTER"):
            cluster = clusters.find(name)
        else:
            cluster = stack.enter_context(clusters.temporary(Layout("bench", nodes(1))))
        stack.enter_context(cluster.joined_network())
        compare(cluster, arguments.pods, arguments.rounds)


def compare(cluster: Cluster, count: int, rounds: int) -> None:
    seconds: dict[str, list[float]] = {PLAIN: [], BARE: [], AGENT: []}
    with installation.installed(cluster), on_node.running(cluster, NODE) as resource:
        limits: dict[str, Limits] = {PLAIN: {}, BARE: {resource: "1"}, AGENT: SHARE}
        once(cluster, count, {})  # the first burst also warms the runtime; it is not counted
        for turn in range(rounds):
            for kind, limit in limits.items():
                seconds[kind].append(once(cluster, count, limit))
                print(f"round {turn + 1}, {count} pods, {kind}: {seconds[kind][-1]:.1f} s")
    median = {kind: statistics.median(times) for kind, times in seconds.items()}
    print(f"{count} pods on one node, all Running (median of {rounds}):")
    for kind, baseline, aim in AIMS:
        print(
            f"  {kind} {median[kind]:.1f} s, {baseline} {median[baseline]:.1f} s, "
            f"ratio {median[kind] / median[baseline]:.2f} (aim {aim})"
        )


def once(cluster: Cluster, count: int, limits: Limits) -> float:
    machine = cluster.machine(NODE)
    staying = burst.containers(machine)
    with cluster.client as client:
        client.create(namespaces(), {"metadata": {"name": NAMESPACE}})
        pods.await_account(client, NAMESPACE)
        done = burst.run(client, NAMESPACE, count, node=NODE, limits=limits, wait=WAIT_S)
        burst.clear(client, NAMESPACE, machine, staying)
        client.delete(namespaces(NAMESPACE))
        pods.await_no_namespace(client, NAMESPACE)
        return done.seconds


if __name__ == "__main__":
    main()
