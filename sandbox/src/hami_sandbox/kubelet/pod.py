"""A pod as kubelet keeps it: the whole object, and functions to read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from hami.wire import codec, errors, objects
from hami_sandbox.api_objects import ENDED

Object = dict[str, Any]

_DEFAULT_GRACE_S = 30


class KeptPod(msgspec.Struct, frozen=True):
    """What a reflector keeps of a pod: all of it."""

    uid: str
    metadata: objects.Metadata
    body: Object


def decode(data: bytes) -> KeptPod:
    body: Object = codec.decode(data, dict[str, Any], what="pod")
    meta = body.get("metadata") or {}
    if not meta.get("uid"):
        raise errors.WireError("pod", data, "has no metadata.uid")
    version = objects.Metadata(resource_version=str(meta.get("resourceVersion", "")))
    return KeptPod(str(meta["uid"]), version, body)


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def namespace(pod: Object) -> str:
    return str(pod["metadata"].get("namespace") or "default")


def full_name(pod: Object) -> str:
    """Return the pod as kubelet names it in its messages."""
    return f"{name(pod)}_{namespace(pod)}({uid(pod)})"


def spec(pod: Object) -> Object:
    found: Object = pod.get("spec") or {}
    return found


def status(pod: Object) -> Object:
    found: Object = pod.get("status") or {}
    return found


def containers(pod: Object) -> list[Object]:
    return list(spec(pod).get("containers") or ())


def init_containers(pod: Object) -> list[Object]:
    return list(spec(pod).get("initContainers") or ())


def in_order(pod: Object) -> Iterator[Object]:
    """Yield all containers in the order in which they start."""
    yield from init_containers(pod)
    yield from containers(pod)


def is_sidecar(container: Object) -> bool:
    """Return whether an init container runs for as long as the pod does."""
    return container.get("restartPolicy") == "Always"


def restart_policy(pod: Object) -> str:
    return str(spec(pod).get("restartPolicy") or "Always")


def is_terminal(pod: Object) -> bool:
    return status(pod).get("phase") in ENDED


def is_deleted(pod: Object) -> bool:
    """Return whether its deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def grace(pod: Object) -> float:
    """Return the seconds that its containers have between SIGTERM and SIGKILL."""
    seconds = pod["metadata"].get("deletionGracePeriodSeconds")
    if seconds is None:
        seconds = spec(pod).get("terminationGracePeriodSeconds")
    return float(_DEFAULT_GRACE_S if seconds is None else seconds)
