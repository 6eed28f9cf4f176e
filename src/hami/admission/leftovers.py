"""Parts of a pod that do not count: removed, hidden or ignored, with a warning.

Manifests come from other clusters and other tools, and pods are copied (`kubectl debug --copy-to`,
restores). Whatever changes nothing of a share is no reason to refuse them: a copied grant is
removed, cards that a container did not ask for are hidden from it, and of variables that the node
does not obey the owner is only warned. docs/admission.md has the table of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from hami.admission import checks, edits
from hami.admission.edits import CORE_POLICY, NO_DEVICES, VISIBLE_DEVICES
from hami.admission.settings import Rules
from hami.placement.request import PodRequest
from hami.vendors import container_edits, table
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, objects
from hami.wire.objects import Container, ContainerKind, Pod

#: HAMi's names for limits, and its choice of cards. In a container with cards the policy file and
#: the agent's own variables count instead.
_NO_EFFECT = frozenset(
    {
        VISIBLE_DEVICES,
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_OVERSUBSCRIBE",
        CORE_POLICY,
    }
)
_NO_EFFECT_PER_CARD = re.compile(r"CUDA_DEVICE_(?:MEMORY|SM)_LIMIT_[0-9]+")

Warnings = tuple[str, ...]


def without_grant(pod: Pod, vendors: Iterable[Vendor]) -> tuple[Pod, Warnings]:
    """Remove annotations and the label by which a pod would count as placed."""
    found = [key for key in checks.protected_annotations(vendors) if key in pod.annotations]
    labelled = annotation_keys.ASSIGNED_NODE in pod.labels
    if not (found or labelled):
        return pod, ()
    metadata = pod.metadata or objects.Metadata()
    if found:
        kept = {key: value for key, value in pod.annotations.items() if key not in found}
        metadata = msgspec.structs.replace(metadata, annotations=kept)
    if labelled:
        labels = {**pod.labels}
        del labels[annotation_keys.ASSIGNED_NODE]
        metadata = msgspec.structs.replace(metadata, labels=labels)
        found.append(f"label {annotation_keys.ASSIGNED_NODE}")
    return msgspec.structs.replace(pod, metadata=metadata), (
        f"removed from the pod, because only hami writes this: {', '.join(found)}",
    )


def without_copied_node(pod: Pod, *, original: Pod) -> tuple[Pod, Warnings]:
    """Remove the node to which the grant that the original carried was made."""
    granted = original.annotation(annotation_keys.ASSIGNED_NODE) or original.labels.get(
        annotation_keys.ASSIGNED_NODE
    )
    if pod.spec is None or not pod.node_name or pod.node_name != granted:
        return pod, ()
    spec = msgspec.structs.replace(pod.spec, node_name=None)
    warning = (
        f"spec.nodeName {pod.node_name} was removed: it came with the grant of another pod, and "
        "the scheduler places this one; for the same node write nodeSelector "
        "kubernetes.io/hostname"
    )
    return msgspec.structs.replace(pod, spec=spec), (warning,)


def only_own_cards(pod: Pod, demand: PodRequest, rules: Rules) -> tuple[Pod, Warnings]:
    """Hide cards from containers that ask for none; warn of what has no effect in the others."""
    nvidia = table.nvidia(rules.vendors)
    requests = iter(demand.containers)
    warnings: list[str] = []

    def edit(_: ContainerKind, container: Container) -> Container:
        asked = next(requests)
        if any(cards.vendor == nvidia.name for cards in asked.cards):
            warnings.extend(_without_effect(container, rules))
            return container
        if not asked.cards and checks.is_privileged(container):
            warnings.append(
                f"container {container.name} is privileged and asks for no GPU: it sees every GPU "
                "of its node, and no limit holds in it"
            )
        if not edits.sees_cards(container) or edits.has_other_devices(container, nvidia):
            return container
        warnings.append(
            f"container {container.name}: env {VISIBLE_DEVICES} was set to {NO_DEVICES}, because "
            f"it asks for no GPU; write {nvidia.resources.count} into its limits if it needs one"
        )
        return container_edits.variable(container, VISIBLE_DEVICES, NO_DEVICES)

    return edits.containers(pod, edit), tuple(warnings)


def _without_effect(container: Container, rules: Rules) -> Iterable[str]:
    names = [
        name
        for variable in container.env or ()
        if variable is not None and _has_no_effect(name := variable.name or "")
        if name != CORE_POLICY or variable.value != rules.nvidia.gpu_core_policy
    ]
    if names:
        yield (
            f"container {container.name}: env {', '.join(dict.fromkeys(names))} has no effect: "
            "the node sets GPUs and limits; remove it"
        )


def _has_no_effect(name: str) -> bool:
    return name in _NO_EFFECT or _NO_EFFECT_PER_CARD.fullmatch(name) is not None
