"""The baseline: the scalar reference of the tests on the benchmark's fleet.

A module of its own, so that processes that only need `benchmarks.fleet` do not load it.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import fleet
from hami.wire import objects
from tests.oracle import reference
from tests.oracle.sample_vendors import NVIDIA


def load(nodes: int, placed: int) -> Callable[[objects.Pod, list[str]], bool]:
    """Make a fleet; return a function that decides whether a pod fits on any of the named nodes."""
    all_nodes, pods = list(fleet.nodes(nodes)), list(fleet.placed_pods(placed, nodes))

    def fits(pod: objects.Pod, names: list[str]) -> bool:
        answer = reference.filter_pod(
            vendors=[NVIDIA],
            nodes=all_nodes,
            pods=pods,
            quotas=[],
            pod=pod,
            names=names,
            node_policy="binpack",
            gpu_policy="spread",
        )
        return answer.winner is not None

    return fits
