"""Messages between kube-scheduler and an extender: Go's JSON, without I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from hami.wire import codec
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod

T = TypeVar("T")


class _Meta(codec.Object, frozen=True):
    name: str = ""


class _Node(codec.Object, frozen=True):
    metadata: _Meta = _Meta()


class _NodeList(codec.Object, frozen=True):
    items: tuple[_Node, ...] | None = None


class _Points(codec.Object, frozen=True, rename="pascal"):
    host: str = ""
    score: int = 0


@dataclasses.dataclass(slots=True, frozen=True)
class Filtered:
    """The nodes that an extender leaves, and why not the others."""

    names: tuple[str, ...]
    failed: Mapping[str, str]


class AnswerError(Exception):
    """The extender answered that it cannot, or not what was asked."""


def ask_nodes(pod: Pod, rows: Sequence[Row], *, names_only: bool) -> bytes:
    """Write ExtenderArgs, for filter and prioritize."""
    args: dict[str, object] = {
        "Pod": msgspec.Raw(pod.for_extender()),
        "Nodes": None,
        "NodeNames": None,
    }
    if names_only:
        args["NodeNames"] = [row.name for row in rows]
    else:
        items = [msgspec.Raw(row.node.for_extender()) for row in rows if row.node is not None]
        args["Nodes"] = {"metadata": {}, "items": items}
    return codec.encode(args)


def ask_bind(pod: Pod, node: str) -> bytes:
    """Write ExtenderBindingArgs."""
    return codec.encode(
        {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
    )


def filtered(body: bytes, *, names_only: bool) -> Filtered:
    """Read ExtenderFilterResult."""
    answer = _fields(body, "filter result")
    _check(answer)
    names = _get(answer, "nodenames", list[str]) if names_only else None
    if names is None:
        nodes = _get(answer, "nodes", _NodeList) or _NodeList()
        names = [node.metadata.name for node in nodes.items or ()]
    failed = dict(_get(answer, "failednodes", dict[str, str]) or {})
    failed |= _get(answer, "failedandunresolvablenodes", dict[str, str]) or {}
    return Filtered(tuple(names), failed)


def points(body: bytes) -> dict[str, int]:
    """Read a HostPriorityList."""
    listed = codec.decode(body, list[_Points] | None, what="priorities") or []  # type: ignore[arg-type] # a union is a type to msgspec
    return {given.host: given.score for given in listed}


def check_bound(body: bytes) -> None:
    """Read ExtenderBindingResult; raises what it says."""
    _check(_fields(body, "binding result"))


def _fields(body: bytes, what: str) -> dict[str, msgspec.Raw]:
    # Go reads names in any case of letters, so extenders write them in several.
    fields = codec.decode(body, dict[str, msgspec.Raw], what=what)
    return {name.lower(): value for name, value in fields.items()}


def _check(answer: Mapping[str, msgspec.Raw]) -> None:
    error = _get(answer, "error", str)
    if error:
        raise AnswerError(error)


def _get(answer: Mapping[str, msgspec.Raw], name: str, kind: type[T]) -> T | None:
    value = answer.get(name)
    if value is None or bytes(value) == b"null":
        return None
    return codec.decode(bytes(value), kind, what=f"extender's answer, {name}")
