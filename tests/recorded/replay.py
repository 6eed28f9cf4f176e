"""The product's answer to a case, in the words of the recorded ones.

Admission is asked for its JSON patch, the scheduler's core for its decision on the patched pod, and
the Binding for the annotations that it writes.
"""

from __future__ import annotations

import functools
import json
from typing import TypeVar

from hami.admission import decide as admission
from hami.admission import json_patch as patches
from hami.admission.mig_offer import MigOffer
from hami.admission.settings import Context, Rules
from hami.cluster import state
from hami.placement import decide, request
from hami.scheduler import binding
from hami.vendors import table
from hami.wire import codec, errors, objects
from tests.recorded import harness
from tests.recorded.fleets import Document
from tests.unit.admission import json_patch

NOW = 1_700_000_000.0
TIME = "<time>"
_TIMES = ("enflame.com/gcu-assigned-time",)
#: The scheduler's own keys, whatever the vendor; other tests are about them.
_OURS = ("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time")


Kind = TypeVar("Kind")


def read(document: Document, kind: type[Kind]) -> Kind:
    return codec.decode(json.dumps(document).encode(), kind, what="case")


@functools.cache
def vendors() -> tuple[table.Vendor, ...]:
    return table.built_in()


def answer(case: Document) -> Document:
    """Ask the product about a case."""
    cluster = state.Cluster(vendors())
    for node in case["nodes"]:
        cluster.observe_node(read(node, objects.Node))
    for placed in case["pods"]:
        cluster.observe_pod(read(placed, objects.Pod))
    for quota in case.get("quotas", ()):
        cluster.observe_quota(read(quota, objects.ResourceQuota))
    found: Document = {"cards": _cards(cluster)}
    defaults = request.Defaults(node_policy=case["nodePolicy"], gpu_policy=case["gpuPolicy"])
    pod = read(case["pod"], objects.Pod)
    rules = Rules(vendors=vendors(), defaults=defaults)
    context = Context(rules, MigOffer(""), cluster.quotas.headroom_at_admission, cluster.slices)
    result = admission.decide(pod, context)
    if not result.allowed:
        return found | {"denied": result.message}
    patch = json.loads(codec.encode(patches.between(pod, result.pod or pod)))
    changed = json_patch.apply(case["pod"], patch)
    found["pod"] = harness.admitted(changed)
    pod = read(changed, objects.Pod)
    try:
        demand = request.parse(pod, vendors(), defaults)
    except errors.WireError as error:
        return found | {"error": str(error)}
    if demand is None:
        return found | {"passed": True}
    found["requests"] = [
        {each.vendor: each.count for each in container.cards} for container in demand.containers
    ]
    found["nodes"] = {}
    names = [node["metadata"]["name"] for node in case["nodes"]]
    for name in names:
        found["nodes"][name] = _outcome(cluster, pod, demand, [name])
    best = decide.decide(cluster, demand, names)
    found["chosen"] = best.winner.node if best.winner else None
    return found


def _cards(cluster: state.Cluster) -> Document:
    found: Document = {}
    for name, node in cluster.nodes.items():
        for vendor, cards in node.cards.items():
            found[f"{name}/{vendor}"] = [
                [
                    card.id, card.index, card.count, card.devmem, card.devcore, card.type,
                    card.numa, card.health,
                ]
                for card in cards
            ]  # fmt: skip
    return found


def _outcome(
    cluster: state.Cluster, pod: objects.Pod, demand: request.PodRequest, names: list[str]
) -> Document:
    decision = decide.decide(cluster, demand, names)
    if decision.winner is None:
        return {"reason": decision.explanation.failed_nodes()[names[0]]}
    info = decide.reservation(demand, decision.winner)
    written = binding.decision_annotations(
        info,
        cluster.families,
        containers=tuple(container.name or "" for _, container in pod.containers()),
        node=cluster.nodes[decision.winner.node],
        now=NOW,
        keys=None,
        reads="",
    )
    kept = {key: value for key, value in written.items() if key not in _OURS}
    for key in _TIMES:
        if kept.get(key, "").isdigit():
            kept[key] = TIME
    return {"annotations": kept}
