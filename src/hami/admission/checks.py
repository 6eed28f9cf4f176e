"""Forbidden fields of a pod: each check raises a Refusal that names the remedy.

Without them a user who may create pods could take cards that are not counted: by naming the node,
by evading the container's limits (privileged, or with mounts that replace ours or name cards), or
by using the highest priority. What changes nothing is in `hami.admission.leftovers`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from hami.admission.edits import TASK_PRIORITY
from hami.admission.errors import Refusal
from hami.admission.settings import ANY, Rules
from hami.placement.request import PodRequest
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, text_values
from hami.wire.objects import Container, Pod

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
    annotation_keys.RESIZED,
    annotation_keys.OVERUSE,
    annotation_keys.START_REFUSED,
)
_PRELOAD = "/etc/ld.so.preload"
#: Policy file and state file of a container; in images /var/run is mostly a link to /run.
_SHARE_FOLDERS = ("/run/hami", "/var/run/hami")
#: NVIDIA's runtime may be set to give the cards whose names are mounted here.
_CARD_LIST = "/var/run/nvidia-container-devices"
_HIGHEST = 0
_MOST_DIGITS = len(str(text_values.INT32_MAX))


def protected_annotations(vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Return the keys that only the scheduler and the node agent write."""
    lists = [
        key
        for vendor in vendors
        for key in (
            vendor.annotations.to_allocate,
            vendor.annotations.allocated,
            *vendor.annotations.extra,
        )
        if key
    ]
    return tuple(dict.fromkeys([*_OURS, *lists]))


def not_privileged(pod: Pod, demand: PodRequest) -> None:
    """Refuse privileged containers with cards."""
    for (_, container), asked in zip(pod.containers(), demand.containers, strict=True):
        if asked.cards and is_privileged(container):
            raise Refusal(
                f"container {container.name} is privileged: it would see every GPU of its node, "
                "not only its share; remove securityContext.privileged from it, or the GPU "
                "from its limits"
            )


def is_privileged(container: Container) -> bool:
    return bool(container.security_context and container.security_context.privileged)


def no_node_named(pod: Pod) -> None:
    """Refuse spec.nodeName, which bypasses the scheduler."""
    if pod.node_name:
        raise Refusal(
            f"pod has node assigned: spec.nodeName {pod.node_name} would keep the scheduler from "
            "counting its GPUs; write nodeSelector kubernetes.io/hostname instead"
        )


def mounts_are_allowed(pod: Pod, rules: Rules, *, shares: bool) -> None:
    """Refuse mounts that name cards or, in a pod that shares cards, replace the limits.

    Also in containers without cards: the folder and the cards of a pod are within their reach.
    """
    ours: tuple[str, ...] = ()
    if shares:
        ours = (_PRELOAD, _absolute(posixpath.join(rules.hook_path, "vgpu")), *_SHARE_FOLDERS)
    for _, container in pod.containers():
        for mount in container.volume_mounts or ():
            path = _absolute((mount and mount.mount_path) or "")
            if _is_within(path, _CARD_LIST):
                raise Refusal(
                    f"container {container.name}: volumeMount {path} would choose other GPUs than "
                    f"the pod was given ({_CARD_LIST} is a list of GPUs to NVIDIA's runtime); "
                    "remove it"
                )
            for place in ours:
                if _is_within(path, place):
                    raise Refusal(
                        f"container {container.name}: volumeMount {path} lies where the library "
                        f"that enforces GPU shares is mounted ({place}); choose another mountPath"
                    )


def _absolute(path: str) -> str:
    """Return a path as the container resolves it; normpath alone keeps two leading slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


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
