"""Random histories of a cluster: no card is given twice, undo is exact, no drift.

A history plays API server and scheduler: nodes come, change and go, pods are placed, reserved,
bound, lapse, finish and are deleted, quotas change. After every step the promises of the core are
checked. hypothesis draws the steps as numbers, so that a failing history shrinks to a short one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from hami.cluster import state
from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Operation
from hami.placement import decide, request
from hami.wire import codec, objects, shares
from tests import builders
from tests.oracle import rebuild

#: 200 in `make soak`.
HISTORIES = int(os.environ.get("HAMI_HISTORIES", "50"))
#: How often each thing really happened, over all histories.
happened: Counter[str] = Counter()


class History:
    """A cluster beside the API objects that it has seen."""

    def __init__(self) -> None:
        self.cluster = builders.cluster()
        self.nodes: dict[str, objects.Node] = {}
        self.pods: dict[str, objects.Pod] = {}
        self.quotas: dict[str, objects.ResourceQuota] = {}
        #: Nodes that went or changed under their pods: those may be over their totals.
        self.disturbed: set[str] = set()
        self.made = 0

    # Steps. Each takes a generator for its details.

    def node_appears(self, pick: random.Random) -> None:
        name = pick.choice(("n1", "n2", "n3"))
        if name not in self.nodes:
            self._put_node(name, pick)

    def node_changes(self, pick: random.Random) -> None:
        if self.nodes:
            name = pick.choice(sorted(self.nodes))
            self.disturbed.add(name)
            self._put_node(name, pick)
            happened["node changed"] += 1

    def node_goes(self, pick: random.Random) -> None:
        if self.nodes:
            name = pick.choice(sorted(self.nodes))
            self.disturbed.add(name)
            del self.nodes[name]
            self.cluster.forget_node(name)

    def _put_node(self, name: str, pick: random.Random) -> None:
        size, split = pick.choice((1, 2, 3, 8, 9)), pick.randint(1, 4)
        devices = builders.cards(name, size, devmem=pick.choice((4000, 8000)), count=split)
        self.nodes[name] = builders.node(
            name,
            devices,
            allocatable=size * split,
            **{"hami.io/device-cordon": pick.choice(("", f"{name}-0"))},
        )
        self.cluster.observe_node(self.nodes[name])

    def quota_changes(self, pick: random.Random) -> None:
        name = pick.choice(("q1", "q2"))
        if self.quotas.pop(name, None):
            self.cluster.forget_quota("default", name)
        else:
            self.quotas[name] = builders.quota(name, memory=pick.choice((0, 9000, 40000)))
            self.cluster.observe_quota(self.quotas[name])

    def pod_is_created(self, pick: random.Random) -> None:
        self.made += 1
        init = [
            pick.choice((builders.container, builders.sidecar))
            for _ in range(pick.choice((0, 1, 2)))
        ]
        made = builders.pod(
            f"pod-{self.made}",
            builders.container("app", **self._share(pick)),
            *(
                builders.container(f"more{at}", **self._share(pick))
                for at in range(pick.choice((0, 0, 1)))
            ),
            init=[make(f"init{at}", **self._share(pick)) for at, make in enumerate(init)],
            annotations={
                "hami.io/gpu-scheduler-policy": pick.choice(("binpack", "spread", "mutex", "numa"))
            },
        )
        self.pods[made.uid] = made
        self.cluster.observe_pod(made)

    def _share(self, pick: random.Random) -> dict[str, objects.Amount]:
        share: dict[str, objects.Amount] = {"gpu": pick.choice((1, 1, 1, 2, 3))}
        kind = pick.choice(("memory", "memory", "percent"))
        share[kind] = pick.choice((1, 1000, 2000, 3999) if kind == "memory" else (1, 50, 100))
        share["cores"] = pick.choice((0, 10, 50, 100))
        return share

    def pod_is_placed(self, pick: random.Random) -> None:
        pod = self._one(pick, bound=False)
        if pod is None:
            return
        demand = request.parse(pod, builders.VENDORS, request.Defaults())
        assert demand is not None
        decision = decide.decide(self.cluster, demand)
        happened["placed" if decision.winner else "refused"] += 1
        if decision.winner is not None:
            row = decide.reservation(demand, decision.winner)
            self._make_and_undo(row)
            self.cluster.apply(state.PutPod(row))

    def _make_and_undo(self, row: PodInfo) -> None:
        """Make many changes and undo them: the tables must be the same, bit by bit."""
        before = rebuild.snapshot(self.cluster)
        log: list[Operation] = [self.cluster.apply(state.PutPod(row))]
        drops: list[Operation] = [state.DropNode(name) for name in self.cluster.nodes]
        drops += [state.DropPod(uid) for uid in self.cluster.pods]
        log += [self.cluster.apply(operation) for operation in drops]
        for reverse in reversed(log):
            self.cluster.apply(reverse)
        after = rebuild.snapshot(self.cluster)
        assert before.keys() == after.keys()
        for key, array in before.items():
            assert array.dtype == after[key].dtype
            np.testing.assert_array_equal(array, after[key], err_msg=str(key))

    def pod_is_bound(self, pick: random.Random) -> None:
        pod = self._one(pick, bound=False)
        row = self.cluster.pods.get(pod.uid) if pod else None
        if pod is not None and row is not None:
            assert row.hold is Hold.RESERVED
            happened["bound"] += 1
            self._write(pod, row, {})

    def init_containers_end(self, pick: random.Random) -> None:
        pod = self._one(pick, bound=True)
        if pod is not None and not pod.init_done and not self.cluster.pods[pod.uid].unproven:
            ended = [
                {"name": c.name, "state": {"terminated": {"exitCode": 0}}}
                for kind, c in pod.containers()
                if kind is objects.ContainerKind.INIT
            ]
            happened["init ended"] += bool(ended)
            self._write(pod, self.cluster.pods[pod.uid], {"initContainerStatuses": ended})

    def _write(self, pod: objects.Pod, row: PodInfo, status: dict[str, object]) -> None:
        """Bind the pod as the API server would, and let the cluster see it."""
        document = codec.decode(codec.encode(pod), dict[str, dict[str, Any]], what="pod")
        document["metadata"]["annotations"] = {
            "hami.io/vgpu-node": row.node,
            builders.NVIDIA.annotations.allocated: shares.encode(dict(row.shares)["NVIDIA"]),
        }
        document["spec"]["nodeName"] = row.node
        document["status"] = status
        self.pods[pod.uid] = codec.decode(codec.encode(document), objects.Pod, what="pod")
        self.cluster.observe_pod(self.pods[pod.uid])

    def pod_comes_past_us(self, pick: random.Random) -> None:
        """Bind a pod without a grant; what it counts with may be more than its node has."""
        self.pod_is_created(pick)
        *_, pod = self.pods.values()
        node = pick.choice(("n1", "n2", "n3"))
        self.disturbed.add(node)
        happened["without a grant"] += 1
        document = codec.decode(codec.encode(pod), dict[str, dict[str, Any]], what="pod")
        document["spec"]["nodeName"] = node
        self.pods[pod.uid] = codec.decode(codec.encode(document), objects.Pod, what="pod")
        self.cluster.observe_pod(self.pods[pod.uid])

    def reservations_lapse(self, _pick: random.Random) -> None:
        reserved = [u for u, p in self.cluster.pods.items() if p.hold is Hold.RESERVED]
        for uid in reserved[:-1]:
            happened["lapsed"] += 1
            self.cluster.lapse(uid)

    def pod_is_deleted(self, pick: random.Random) -> None:
        pod = self._one(pick, bound=pick.random() < 0.7)
        if pod is not None:
            happened["deleted"] += 1
            del self.pods[pod.uid]
            self.cluster.forget_pod(pod.uid)

    def _one(self, pick: random.Random, *, bound: bool) -> objects.Pod | None:
        found = [pod for pod in self.pods.values() if bool(pod.node_name) is bound]
        return pick.choice(found) if found else None

    # Promises.

    def check(self) -> None:
        for name, info in self.cluster.nodes.items():
            if name not in self.disturbed:
                for device in info.cards["NVIDIA"]:
                    used, memory, cores = builders.use(self.cluster, name, device.id)
                    assert 0 <= used <= device.count
                    assert 0 <= memory <= device.devmem
                    assert 0 <= cores <= device.devcore
                located = self.cluster.locate(name)
                assert located is not None
                ids, row = located[0].ids["NVIDIA"], located[1]
                assert 0 <= ids.held[row] <= ids.offered[row]
        for quota in self.quotas.values():
            assert self.cluster.quotas.get("default", quota.name) is not None
        lines = rebuild.drift(
            self.cluster,
            nodes=self.nodes.values(),
            pods=self.pods.values(),
            quotas=self.quotas.values(),
        )
        assert lines == []


STEPS = (
    ("node_appears", 4),
    ("node_changes", 1),
    ("node_goes", 1),
    ("quota_changes", 1),
    ("pod_is_created", 10),
    ("pod_is_placed", 14),
    ("pod_is_bound", 8),
    ("init_containers_end", 8),
    ("pod_comes_past_us", 1),
    ("reservations_lapse", 1),
    ("pod_is_deleted", 4),
)
STEP = st.sampled_from([name for name, weight in STEPS for _ in range(weight)])


@hypothesis.settings(max_examples=HISTORIES)
@hypothesis.given(st.lists(st.tuples(STEP, st.integers(0, 2**16)), min_size=40, max_size=60))
def test_a_random_history_keeps_every_promise(steps: list[tuple[str, int]]) -> None:
    history = History()
    history.node_appears(random.Random(0))
    for name, seed in steps:
        getattr(history, name)(random.Random(seed))
        history.check()


def test_the_histories_were_eventful() -> None:
    """Runs after the histories: histories in which nothing happens would prove nothing."""
    assert happened["placed"] >= HISTORIES * 5 // 2, happened
    kinds = ("refused", "bound", "init ended", "lapsed", "deleted", "node changed")
    for what in (*kinds, "without a grant"):
        assert happened[what] >= HISTORIES // 20, happened


def test_drift_names_what_differs() -> None:
    node = builders.node("n", [builders.card("a")])
    pod = builders.granted("p", "n", [("a", 3000, 30)])
    kept = builders.cluster(node)
    lines = rebuild.drift(kept, nodes=[node], pods=[pod], quotas=[builders.quota("q", memory=1)])
    text = "\n".join(lines)
    for part in (
        "pod p: kept None",
        "table ('n', 'cards NVIDIA memory_left')",
        "quota use of",
        "quota ('default'",
    ):
        assert part in text
    assert rebuild.drift(kept, nodes=[node], pods=[], quotas=[]) == []
