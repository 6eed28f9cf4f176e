"""Random clusters and pods for the comparison of the reference with the product.

A scenario is read from a *tape* of bytes that hypothesis draws (scenario_tape.py), with the chances
of a *flavour* (scenario_flavours.py). Uniform choices would hardly ever meet a boundary. Therefore
nodes are often copies of each other, amounts come from small palettes, and what the pod asks for is
often exactly what some card, node or quota has left, give or take one.

`make` builds a draft (scenario_draft.py) part by part; test_agreement.py asks both sides about it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from hami.wire import objects
from tests.oracle import (
    reference,
    scenario_incoming_pod,
    scenario_nodes,
    scenario_placed_pods,
    scenario_quotas,
)
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.sample_vendors import ACME, NVIDIA
from tests.oracle.scenario_draft import Draft
from tests.oracle.scenario_flavours import FLAVOURS, Flavour
from tests.oracle.scenario_tape import Tape

_TAPE = 1024


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Scenario:
    """Everything the filter is asked about one pod."""

    vendors: tuple[RefVendor, ...]
    nodes: list[objects.Node]
    #: Pods already there: bound, foreign, finished, or an earlier life of the incoming one.
    pods: list[objects.Pod]
    quotas: list[objects.ResourceQuota]
    pod: objects.Pod
    names: list[str]
    node_policy: str
    gpu_policy: str
    #: Whether the product hears of the pods before it hears of the nodes.
    pods_first: bool
    #: The choices that made it: equal keys, equal scenarios.
    key: bytes = b""
    #: Whether admission completes the pod first.
    admits: bool = False

    def answer(self) -> reference.Answer:
        """Judge the pod with the reference."""
        return reference.filter_pod(
            vendors=self.vendors,
            nodes=self.nodes,
            pods=self.pods,
            quotas=self.quotas,
            pod=self.pod,
            names=self.names,
            node_policy=self.node_policy,
            gpu_policy=self.gpu_policy,
            admits=self.admits,
        )

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Have hypothesis print the scenario in the form below."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        """Write the scenario for a human who must find out who is right."""
        first = "pods" if self.pods_first else "nodes"
        defaults = f"{self.node_policy} / {self.gpu_policy}"
        lines = ["", f"asked {self.names}, defaults {defaults}, {first} observed first"]
        lines += [
            f"vendor {vendor.name}: factor {vendor.memory_factor}, default memory "
            f"{vendor.default_memory}, default cores {vendor.default_cores}, "
            f"bounded by ids: {vendor.bounded_by_ids}"
            for vendor in self.vendors
            if not self.admits  # those are as they are built in
        ]
        for node in self.nodes:
            amounts = f"allocatable {dict(node.allocatable)} capacity {dict(node.capacity)}"
            lines.append(f"node {node.name} {amounts}")
            lines += [f"  {key}: {value}" for key, value in node.annotations.items()]
        for quota in self.quotas:
            lines.append(f"quota {quota.namespace} {dict(quota.hard)}")
        for pod in (*self.pods, self.pod):
            state = f"node {pod.node_name!r} {pod.phase} init done: {pod.init_done}"
            lines.append(f"pod {pod.namespace} {pod.uid} {state}")
            lines += [f"  {key}: {value}" for key, value in pod.annotations.items()]
            for kind, container in pod.containers():
                resources = container.resources or objects.Resources()
                asked = f"limits {resources.limits} requests {resources.requests}"
                lines.append(f"  {kind.name} {container.name} {asked}")
        return "\n".join(lines)


@st.composite
def scenarios(draw: st.DrawFn, flavour: str) -> Scenario:
    # Long enough for nearly every scenario; the others end with simple choices. A fixed length is
    # four times as fast to draw.
    data = draw(st.binary(min_size=_TAPE, max_size=_TAPE))
    return make(Tape(data), FLAVOURS[flavour])


def make(tape: Tape, flavour: Flavour) -> Scenario:
    """Build a scenario, from the nodes over the placed pods to the incoming one."""
    draft = Draft(tape, flavour, _vendors(tape, flavour))
    for number in range(tape.pick(flavour.nodes)):
        scenario_nodes.add_node(draft, f"node-{'bacfed'[number]}")
    for name in draft.nodes:
        if name in draft.originals and tape.chance(60):
            scenario_placed_pods.copy_pods(draft, draft.originals[name], name)
            continue
        for _ in range(tape.below(flavour.placed + 1)):
            scenario_placed_pods.add_pod(draft, name)
    if tape.chance(5):
        scenario_placed_pods.add_pod(draft, "gone")
    scenario_nodes.add_use(draft)
    pod = scenario_incoming_pod.incoming_pod(draft)
    node_policy = tape.pick(("binpack", "spread"))
    gpu_policy = tape.pick(("spread", "spread", "spread", "binpack", "numa", "mutex,binpack"))
    return Scenario(
        vendors=draft.vendors,
        quotas=scenario_quotas.quotas(draft, pod),
        nodes=[scenario_nodes.node_object(draft, name, pod) for name in draft.nodes],
        pods=draft.pods,
        pod=pod,
        names=scenario_nodes.asked_names(draft),
        node_policy=node_policy,
        gpu_policy=gpu_policy,
        pods_first=tape.chance(20),
        key=tape.data[: tape.position],
    )


def _vendors(tape: Tape, flavour: Flavour) -> tuple[RefVendor, ...]:
    nvidia = NVIDIA
    if tape.chance(15):
        nvidia = dataclasses.replace(
            NVIDIA,
            default_memory=tape.pick((0, 2000, 5000)),
            default_cores=tape.pick((0, 30, 100)),
            memory_factor=tape.pick((1, 0, 1000)),
        )
    if not tape.chance(flavour.acme):
        return (nvidia,)
    acme = dataclasses.replace(ACME, bounded_by_ids=not tape.chance(25))
    return (acme, nvidia) if tape.chance(25) else (nvidia, acme)
