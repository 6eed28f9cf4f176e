"""Random histories of a cluster: nothing is double-booked, undone changes leave no trace, no drift.

A machine plays API server and scheduler: nodes come, change and go, pods are placed, reserved, bound,
lapse, finish and are deleted, quotas change. After every step it checks the promises of the core.
"""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from hami.cluster import drift, operations
from hami.cluster.ledger import Standing
from hami.cluster.operations import Operation
from hami.placement import decide, request
from hami.wire import objects, pod_devices
from tests import builders

NODES = st.sampled_from(["n1", "n2", "n3"])
SHARE = st.fixed_dictionaries(
    {"gpu": st.integers(1, 3)},
    optional={
        "memory": st.sampled_from([1, 1000, 3999, 4000, 8000]),
        "percent": st.sampled_from([1, 50, 100]),
        "cores": st.sampled_from([0, 10, 50, 100]),
    },
)
MAYBE_SHARE = st.one_of(st.just({}), SHARE)
SIZES = st.sampled_from([1, 2, 3, 8, 9])


class ClusterHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = builders.cluster()
        #: What the API server has.
        self.nodes: dict[str, objects.Node] = {}
        self.pods: dict[str, objects.Pod] = {}
        self.quotas: dict[str, objects.ResourceQuota] = {}
        #: Cards that ever were over their totals because a node shrank under its pods.
        self.shrunk: set[str] = set()
        self.made = 0

    waiting = Bundle("waiting")
    reserved = Bundle("reserved")
    bound = Bundle("bound")

    @rule(name=NODES, size=SIZES, memory=st.sampled_from([4000, 8000]), split=st.integers(1, 4))
    def node_appears_or_changes(self, name: str, size: int, memory: int, split: int) -> None:
        if name in self.nodes:
            self.shrunk.add(name)
        devices = builders.cards(name, size, devmem=memory, count=split)
        self.nodes[name] = builders.node(name, devices, allocatable=size * split)
        self.cluster.observe_node(self.nodes[name])

    @rule(name=NODES, cordoned=st.booleans())
    def card_is_cordoned_or_opened(self, name: str, *, cordoned: bool) -> None:
        if name in self.nodes:
            register = self.nodes[name].annotation(builders.NVIDIA.annotations.register)
            self.nodes[name] = builders.node(
                name,
                register,
                allocatable=self.nodes[name].allocatable[builders.GPU],
                **({"hami.io/device-cordon": f"{name}-0"} if cordoned else {}),
            )
            self.cluster.observe_node(self.nodes[name])

    @rule(name=NODES)
    def node_goes(self, name: str) -> None:
        if self.nodes.pop(name, None):
            self.shrunk.add(name)
            self.cluster.forget_node(name)

    @rule(limit=st.sampled_from([0, 4000, 20000]), name=st.sampled_from(["q1", "q2"]))
    def quota_changes(self, limit: int, name: str) -> None:
        self.quotas[name] = builders.quota(name, memory=limit)
        self.cluster.observe_quota(self.quotas[name])

    @rule(name=st.sampled_from(["q1", "q2"]))
    def quota_goes(self, name: str) -> None:
        if self.quotas.pop(name, None):
            self.cluster.forget_quota("default", name)

    @rule(
        target=waiting,
        init=st.lists(st.tuples(st.booleans(), MAYBE_SHARE), max_size=2),
        apps=st.lists(MAYBE_SHARE, max_size=2),
        first=SHARE,
        policy=st.sampled_from(["binpack", "spread", "mutex", "numa,binpack"]),
    )
    def pod_is_created(
        self,
        init: list[tuple[bool, dict[str, int]]],
        apps: list[dict[str, int]],
        first: dict[str, int],
        policy: str,
    ) -> objects.Pod:
        self.made += 1
        made = builders.pod(
            f"pod-{self.made}",
            *(builders.container(f"app{at}", **share) for at, share in enumerate([first, *apps])),
            init=[
                (builders.sidecar if stays else builders.container)(f"init{at}", **share)
                for at, (stays, share) in enumerate(init)
            ],
            annotations={"hami.io/gpu-scheduler-policy": policy},
        )
        self.pods[made.uid] = made
        self.cluster.observe_pod(made)
        return made

    @rule(target=reserved, pod=waiting)
    def pod_is_placed(self, pod: objects.Pod) -> object:
        if pod.uid not in self.pods or self.pods[pod.uid].node_name:
            return multiple()
        demand = request.parse(pod, builders.VENDORS, request.Defaults())
        assert demand is not None
        decision = decide.decide(self.cluster, demand)
        if decision.winner is None:
            return multiple()
        self._place_and_undo(demand, decision.winner)
        row = decide.reservation(demand, decision.winner, deadline=self.made)
        self.cluster.apply(operations.PutRow(row))
        return pod

    def _place_and_undo(self, demand: request.PodRequest, winner: decide.Placement) -> None:
        """Make some changes and undo them: the tables must be the same, bit by bit."""
        before = self.cluster.snapshot()
        log: list[Operation] = []
        row = decide.reservation(demand, winner, deadline=0.0)
        log.append(self.cluster.apply(operations.PutRow(row)))
        for name in [*self.cluster.nodes]:
            log.append(self.cluster.apply(operations.DropNode(name)))
        for uid in [*self.cluster.rows]:
            log.append(self.cluster.apply(operations.DropRow(uid)))
        for reverse in reversed(log):
            self.cluster.apply(reverse)
        after = self.cluster.snapshot()
        assert before.keys() == after.keys()
        for key, array in before.items():
            assert array.dtype == after[key].dtype
            np.testing.assert_array_equal(array, after[key], err_msg=str(key))

    @rule(target=bound, pod=reserved)
    def pod_is_bound(self, pod: objects.Pod) -> object:
        row = self.cluster.rows.get(pod.uid)
        if row is None or row.standing is not Standing.RESERVED or pod.uid not in self.pods:
            return multiple()
        self.pods[pod.uid] = self._written(pod, row.node, dict(row.slots))
        self.cluster.observe_pod(self.pods[pod.uid])
        return pod

    def _written(
        self, pod: objects.Pod, node: str, slots: dict[str, pod_devices.Slots], **more: object
    ) -> objects.Pod:
        document = builders.codec.decode(
            builders.codec.encode(pod), dict[str, dict[str, object]], what="pod"
        )
        document["metadata"]["annotations"] = {
            "hami.io/vgpu-node": node,
            builders.NVIDIA.annotations.allocated: pod_devices.encode(slots["NVIDIA"]),
        }
        document["spec"]["nodeName"] = node
        document["status"] = dict(more)
        return builders.codec.decode(builders.codec.encode(document), objects.Pod, what="pod")

    @rule(pod=bound)
    def init_containers_end(self, pod: objects.Pod) -> None:
        row = self.cluster.rows.get(pod.uid)
        if row is None or pod.uid not in self.pods:
            return
        ended = [
            {"name": c.name, "state": {"terminated": {"exitCode": 0}}}
            for kind, c in pod.containers()
            if kind is objects.ContainerKind.INIT
        ]
        self.pods[pod.uid] = self._written(
            pod, row.node, dict(row.slots), initContainerStatuses=ended
        )
        self.cluster.observe_pod(self.pods[pod.uid])

    @rule()
    def reservations_lapse(self) -> None:
        for uid in self.cluster.lapsed(self.made - 1):
            self.cluster.forget_pod(uid)

    @rule(pod=consumes(st.one_of(reserved, bound, waiting)))
    def pod_is_deleted(self, pod: objects.Pod) -> None:
        if self.pods.pop(pod.uid, None):
            self.cluster.forget_pod(pod.uid)

    @invariant()
    def no_card_is_above_its_count_memory_or_cores(self) -> None:
        for name, facts in self.cluster.nodes.items():
            if name in self.shrunk:
                continue
            for device in facts.cards["NVIDIA"]:
                used, memory, cores = builders.use(self.cluster, name, device.id)
                assert 0 <= used <= device.count
                assert 0 <= memory <= device.devmem
                assert 0 <= cores <= device.devcore

    @invariant()
    def no_node_gives_more_ids_than_kubelet_has(self) -> None:
        for name in self.cluster.nodes:
            place = self.cluster.place(name)
            assert place is not None
            shelf, row = place
            ids = shelf.ids["NVIDIA"]
            if name not in self.shrunk:
                assert 0 <= ids.held[row] <= ids.offered[row]

    @invariant()
    def there_is_no_drift(self) -> None:
        lines: Sequence[str] = drift.drift(
            self.cluster,
            nodes=self.nodes.values(),
            pods=self.pods.values(),
            quotas=self.quotas.values(),
        )
        assert lines == []


ClusterHistory.TestCase.settings = hypothesis.settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestClusterHistory = ClusterHistory.TestCase


def test_drift_names_what_differs() -> None:
    node = builders.node("n", [builders.card("a")])
    pod = builders.granted("p", "n", [("a", 3000, 30)])
    kept = builders.cluster(node)
    lines = drift.drift(kept, nodes=[node], pods=[pod], quotas=[builders.quota("q", memory=1)])
    text = "\n".join(lines)
    for part in (
        "row of pod p",
        "use of ('n', 'NVIDIA', 'a')",
        "quota use of",
        "quota ('default', 'q')",
    ):
        assert part in text
    assert drift.drift(kept, nodes=[node], pods=[], quotas=[]) == []
