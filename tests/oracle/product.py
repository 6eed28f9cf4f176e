"""The product's answer to a scenario, in the words of the reference.

The vendors are the built-in rows with the names of the scenario's, or made after them. NVIDIA's
memory factor and defaults are the scenario's own; of the other rows they must be equal already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from hami.admission import edits
from hami.cluster import state
from hami.placement import decide, request
from hami.scheduler import binding
from hami.vendors import families, table
from hami.vendors.family import CardRequest, Plain, Reason
from hami.wire import annotation_keys, errors, objects
from tests.oracle import reference, scenarios
from tests.oracle.reference_unproven import FORGED
from tests.oracle.reference_vendor import NOW, RefVendor
from tests.oracle.sample_vendors import ACME

#: What every Binding writes, whatever the vendor; other tests are about these keys.
_OURS = (
    annotation_keys.ASSIGNED_NODE,
    annotation_keys.ASSIGNED_TIME,
    annotation_keys.BIND_PHASE,
    annotation_keys.BIND_TIME,
)


class EvenColumns(Plain):
    """The family of the test vendor ACME: only every second card may be used."""

    def refuse(self, request: CardRequest, state: Any) -> Mapping[Reason, Any]:
        columns, nodes = state.used.shape
        odd = np.arange(columns) % 2 == 1
        refused = np.broadcast_to(odd[:, None], (columns, nodes))
        return {Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE: refused}


@functools.cache
def product_vendor(vendor: RefVendor) -> table.Vendor:
    """Return the product's row for a vendor of the reference."""
    if vendor.name == ACME.name:
        shipped = table.Vendor(
            name=vendor.name,
            section="acme",
            resources=table.ResourceNames(vendor.count, vendor.memory, "", vendor.cores),
            annotations=table.AnnotationKeys(register=vendor.register, allocated=vendor.allocated),
            family="acme-even",
        )
    else:
        (shipped,) = (known for known in table.built_in() if known.name == vendor.name)
        if vendor.name != "NVIDIA":
            return shipped
    return msgspec.structs.replace(
        shipped,
        memory_factor=vendor.memory_factor,
        default_memory=vendor.default_memory,
        default_cores=vendor.default_cores,
        enforces_quota=vendor.enforces_quota,
        bounded_by_ids=vendor.bounded_by_ids,
    )


@mock.patch.dict(families.FAMILIES, {"acme-even": EvenColumns})
def product_answer(scenario: scenarios.Scenario) -> reference.Answer:
    """Ask the product, and put its answer into the words of the reference."""
    vendors = tuple(product_vendor(vendor) for vendor in scenario.vendors)
    cluster = state.Cluster(vendors, verify=is_signed)
    if not scenario.pods_first:
        observe(cluster.observe_node, scenario.nodes)
    observe(cluster.observe_pod, scenario.pods)
    observe(cluster.observe_quota, scenario.quotas)
    if scenario.pods_first:
        observe(cluster.observe_node, scenario.nodes)
    defaults = request.Defaults(node_policy=scenario.node_policy, gpu_policy=scenario.gpu_policy)
    try:
        pod = admitted(scenario.pod, cluster) if scenario.admits else scenario.pod
        demand = request.parse(pod, vendors, defaults)
    except errors.WireError as error:
        return reference.Answer(error=str(error))
    if demand is None:
        return reference.Answer(passed_through=True)
    decision = decide.decide(cluster, demand, scenario.names)
    answer = reference.Answer(failed=decision.explanation.failed_nodes())
    if decision.winner is not None:
        answer.winner = decision.winner.node
        answer.score = decision.winner.score
        answer.shares = dict(decision.winner.shares)
        written = binding.decision_annotations(
            decide.reservation(demand, decision.winner),
            cluster.families,
            containers=tuple(container.name or "" for _, container in pod.containers()),
            node=cluster.nodes[decision.winner.node],
            now=float(NOW),
            keys=None,
            reads="",
        )
        answer.annotations = {key: text for key, text in written.items() if key not in _OURS}
    if scenario.admits:
        answer.admitted = [container for _, container in pod.containers()]
    return answer


def admitted(pod: objects.Pod, cluster: state.Cluster) -> objects.Pod:
    """Complete the containers as admission does."""

    def complete(_: objects.ContainerKind, container: objects.Container) -> objects.Container:
        for family in cluster.families.of_container(container):
            container = family.complete(container, cluster)
        return container

    return edits.containers(pod, complete)


def is_signed(pod: objects.Pod) -> bool:
    return pod.annotation(annotation_keys.GRANT_MAC) != FORGED


def observe(into: Any, things: Iterable[Any]) -> None:
    for thing in things:
        into(thing)
