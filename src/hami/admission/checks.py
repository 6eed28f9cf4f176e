"""Forbidden fields of a pod: each check raises a Refusal that names the remedy.

Without them a user who may create pods could take cards that are not counted: by writing the
annotations that record a grant, by naming the node, by evading the container's limits (privileged,
or with variables and mounts that replace ours), or by using the highest priority.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from hami.admission.edits import NO_DEVICES, TASK_PRIORITY, VISIBLE_DEVICES
from hami.admission.errors import Refusal
from hami.admission.settings import ANY, Rules
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, text_values
from hami.wire.objects import Container, EnvVar, Pod

_OURS = (
    annotation_keys.ASSIGNED_NODE,
    annotation_keys.ASSIGNED_TIME,
    annotation_keys.BIND_PHASE,
    annotation_keys.BIND_TIME,
    annotation_keys.GRANT_MAC,
    annotation_keys.MIG_ALLOCATIONS,
    annotation_keys.EXPLANATION,
    annotation_keys.REQUEUE,
    annotation_keys.RESIZE,
    annotation_keys.RESIZE_MAC,
    annotation_keys.OVERUSE,
    annotation_keys.START_REFUSED,
)
_LIMIT_PREFIX = "CUDA_DEVICE_"
_PRELOAD = "/etc/ld.so.preload"
#: Folder whose mounts name cards to NVIDIA's runtime.
_DEVICE_LIST = "/var/run/nvidia-container-devices"
#: Values with which a container sees no card.
_SEES_NOTHING = (NO_DEVICES, "void", "")
_HIGHEST = 0
_MOST_DIGITS = len(str(text_values.INT32_MAX))


def protected_annotations(vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Return the keys that only the scheduler and the node agent write."""
    lists = [
        key
        for vendor in vendors
        for key in (vendor.annotations.to_allocate, vendor.annotations.allocated)
        if key
    ]
    return tuple(dict.fromkeys([*_OURS, *lists]))


def no_forged_grant(pod: Pod, vendors: Iterable[Vendor]) -> None:
    """Refuse annotations and labels by which a pod would count as placed."""
    forged = [key for key in protected_annotations(vendors) if key in pod.annotations]
    if forged:
        raise Refusal(
            f"annotation {', '.join(forged)}: only the scheduler writes this, after it has placed "
            "a pod; remove it from the pod (or from the template that makes it)"
        )
    if annotation_keys.ASSIGNED_NODE in pod.labels:
        raise Refusal(
            f"label {annotation_keys.ASSIGNED_NODE}: only the node agent writes this; remove it"
        )


def not_privileged(pod: Pod) -> None:
    """Refuse privileged containers, in the whole pod."""
    for _, container in pod.containers():
        if container.security_context and container.security_context.privileged:
            raise Refusal(
                f"container {container.name} is privileged: it would see every GPU of its node, "
                "not only its share; remove securityContext.privileged from it, or the GPU "
                "from the pod"
            )


def no_cards_listed(pod: Pod) -> None:
    """Refuse mounts by which NVIDIA's runtime would be asked for cards, in the whole pod."""
    for _, container in pod.containers():
        for mount in container.volume_mounts or ():
            path = _absolute((mount and mount.mount_path) or "")
            if path == _DEVICE_LIST or path.startswith(f"{_DEVICE_LIST}/"):
                raise Refusal(
                    f"container {container.name}: volumeMount {path} would choose other GPUs than "
                    f"the pod was given; choose a mountPath outside of {_DEVICE_LIST}"
                )


def no_node_named(pod: Pod) -> None:
    """Refuse spec.nodeName, which bypasses the scheduler."""
    if pod.node_name:
        raise Refusal(
            f"pod has node assigned: spec.nodeName {pod.node_name} would keep the scheduler from "
            "counting its GPUs; write nodeSelector kubernetes.io/hostname instead"
        )


def nothing_replaces_the_limits(pod: Pod, rules: Rules, *, with_cards: frozenset[str]) -> None:
    """Refuse variables and mounts that replace the limits, in all containers of the pod.

    Also in containers without cards: the folder and the cards of a pod are within their reach.
    """
    hook = _absolute(posixpath.join(rules.hook_path, "vgpu"))
    for _, container in pod.containers():
        for variable in container.env or ():
            if variable is not None:
                _check_variable(container, variable, has_cards=container.name in with_cards)
        for mount in container.volume_mounts or ():
            path = _absolute((mount and mount.mount_path) or "")
            for ours in (_PRELOAD, hook):
                if path == ours or path.startswith(f"{ours}/"):
                    raise Refusal(
                        f"container {container.name}: volumeMount {path} lies where the library "
                        f"that enforces GPU shares is mounted ({ours}); choose another mountPath"
                    )


def _absolute(path: str) -> str:
    """Return a path as the container resolves it; normpath alone keeps two leading slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _check_variable(container: Container, variable: EnvVar, *, has_cards: bool) -> None:
    name = variable.name or ""
    if name == VISIBLE_DEVICES:
        hides = variable.value_from is None and (variable.value or "") in _SEES_NOTHING
        if hides and not has_cards:
            return
        rule = "would choose other GPUs than the pod was given"
    elif name.startswith(_LIMIT_PREFIX):
        rule = "would replace the limits of the share"
    else:
        return
    raise Refusal(
        f"container {container.name}: env {name} {rule}; remove it, the node agent sets what the "
        "container needs"
    )


def priority_is_allowed(pod: Pod, container: Container, priority: str, rules: Rules) -> None:
    """Refuse the highest priority, by resource or variable, to pods that may not have it."""
    if _may_have_highest(pod, rules):
        return
    for variable in container.env or ():
        if variable is None or variable.name != TASK_PRIORITY:
            continue
        text = (variable.value or "").strip()
        if _HIGHEST < _number(text) <= text_values.INT32_MAX:
            continue
        shown = "from elsewhere" if variable.value_from else errors.shorten(text)
        raise Refusal(
            f"container {container.name}: {priority or TASK_PRIORITY} {shown} is (or counts as) "
            f"the highest priority, which namespace {pod.namespace or 'default'} may not have; "
            "write 1 or more, or have the namespace or the pod's PriorityClass added to "
            "--high-priority-namespaces or --high-priority-classes "
            "(chart: scheduler.admissionWebhook.highPriority)"
        )


def _number(text: str) -> int:
    """Read a priority as the library does: no number, or one beyond 32 bits, counts as 0."""
    plain = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if plain else _HIGHEST


def _may_have_highest(pod: Pod, rules: Rules) -> bool:
    namespaces = rules.high_priority_namespaces
    wanted = (pod.spec and pod.spec.priority_class_name) or ""
    return (
        ANY in namespaces
        or pod.namespace in namespaces
        or (bool(wanted) and wanted in rules.high_priority_classes)
    )
