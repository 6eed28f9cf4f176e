"""Requests of kube-scheduler to its extender, and the answers.

Today's schedulers write Go's capitalised names (`NodeNames`), old ones lower-case names; both are
read, and the capitalised ones written, which every version reads. Requests carry node names only,
if the extender is configured as cache capable. Simulators send whole nodes and expect the same
objects in the answer, so their raw JSON is kept. A null among names or nodes is skipped, and a node
that cannot be read is named beside the others instead of failing the request.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.wire import codec, errors, objects

#: Names that need no escape in JSON.
_PLAIN = f"-./_{string.ascii_letters}{string.digits}".encode()
#: By whether the refused nodes are unresolvable.
_REFUSALS = {
    False: '{"Nodes":null,"NodeNames":null,"FailedNodes":%s,"FailedAndUnresolvableNodes":null,'
    '"Error":""}',
    True: '{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":%s,'
    '"Error":""}',
}


class _NodeList(codec.Object, frozen=True):
    items: list[msgspec.Raw] | None = None


class _NameOnly(codec.Object, frozen=True):
    name: str | None = None


class _NodeName(codec.Object, frozen=True):
    """The part that is still read of a node that does not decode."""

    metadata: _NameOnly | None = None


class _Args(
    codec.Object,
    frozen=True,
    rename={
        "pod": "Pod",
        "nodes": "Nodes",
        "node_names": "NodeNames",
        "old_pod": "pod",
        "old_nodes": "nodes",
        "old_node_names": "nodenames",
        "camel_node_names": "nodeNames",
    },
):
    pod: objects.Pod | None = None
    nodes: _NodeList | None = None
    node_names: list[str | None] | None = None
    old_pod: objects.Pod | None = None
    old_nodes: _NodeList | None = None
    old_node_names: list[str | None] | None = None
    camel_node_names: list[str | None] | None = None


class Args(codec.Object, frozen=True):
    """A filter request: a pod and the nodes that may take it."""

    pod: objects.Pod | None
    #: Whole nodes, only from simulators, and the same as raw JSON, at the same indexes.
    nodes: tuple[objects.Node, ...] | None
    raw_nodes: tuple[msgspec.Raw, ...] | None
    node_names: list[str] | None
    #: Errors of nodes that cannot be read, by name, or by `nodes[<index>]` where that is lost.
    bad_nodes: dict[str, str]


class BindingArgs(codec.Object, frozen=True):
    """A bind request."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str

    @property
    def key(self) -> str:
        return f"{self.pod_namespace}/{self.pod_name}"


class _BindingArgs(
    codec.Object,
    frozen=True,
    rename={
        "name": "PodName",
        "namespace": "PodNamespace",
        "uid": "PodUID",
        "node": "Node",
        "old_name": "podName",
        "old_namespace": "podNamespace",
        "old_uid": "podUID",
        "old_node": "node",
    },
):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    node: str | None = None
    old_name: str | None = None
    old_namespace: str | None = None
    old_uid: str | None = None
    old_node: str | None = None


class MetaPod(codec.Object, frozen=True, omit_defaults=False, rename={"uid": "UID"}):
    uid: str | None = None


class MetaVictims(
    codec.Object,
    frozen=True,
    omit_defaults=False,
    rename={"pods": "Pods", "violations": "NumPDBViolations"},
):
    """Pods of a node that kube-scheduler would evict, and how many budgets that violates."""

    pods: tuple[MetaPod | None, ...] | None = None
    violations: int | None = 0


class PreemptionArgs(codec.Object, frozen=True):
    """A preempt request: a pod, and the victims on each node that would make room for it."""

    pod: objects.Pod | None
    victims: Mapping[str, MetaVictims]


class _Victims(
    codec.Object,
    frozen=True,
    rename={"pods": "Pods", "violations": "NumPDBViolations"},
):
    pods: tuple[objects.Pod | None, ...] | None = None
    violations: int | None = 0


class _PreemptionArgs(
    codec.Object,
    frozen=True,
    rename={
        "pod": "Pod",
        "victims": "NodeNameToVictims",
        "meta_victims": "NodeNameToMetaVictims",
    },
):
    pod: objects.Pod | None = None
    victims: dict[str, _Victims | None] | None = None
    meta_victims: dict[str, MetaVictims | None] | None = None


class _PreemptionResult(
    codec.Object,
    frozen=True,
    omit_defaults=False,
    rename={"victims": "NodeNameToMetaVictims"},
):
    victims: Mapping[str, MetaVictims]


class _FilterResult(codec.Object, frozen=True, omit_defaults=False, rename="pascal"):
    nodes: dict[str, object] | None
    node_names: Sequence[str] | None
    failed_nodes: Mapping[str, str] | None
    failed_and_unresolvable_nodes: Mapping[str, str] | None
    error: str


class _BindingResult(codec.Object, frozen=True, omit_defaults=False, rename="pascal"):
    error: str


def decode_args(data: bytes) -> Args:
    """Read a filter request."""
    args = codec.decode(data, _Args, what="filter request")
    listed = args.nodes or args.old_nodes
    nodes: list[objects.Node] = []
    raw_nodes: list[msgspec.Raw] = []
    bad: dict[str, str] = {}
    for index, raw in enumerate((listed and listed.items) or ()):
        if bytes(raw) == b"null":
            continue
        try:
            nodes.append(codec.decode(bytes(raw), objects.Node, what="filter request, node"))
        except errors.WireError as error:
            bad[_name_of(raw) or f"nodes[{index}]"] = str(error)
        else:
            raw_nodes.append(raw)
    names = (args.node_names, args.old_node_names, args.camel_node_names)
    return Args(
        pod=args.pod or args.old_pod,
        nodes=None if listed is None else tuple(nodes),
        raw_nodes=None if listed is None else tuple(raw_nodes),
        node_names=next((_present(found) for found in names if found is not None), None),
        bad_nodes=bad,
    )


def encode_filter_result(
    *,
    node_names: Sequence[str] | None = None,
    nodes: Sequence[msgspec.Raw] | None = None,
    failed: Mapping[str, str] | None = None,
    unresolvable: Mapping[str, str] | None = None,
    error: str = "",
) -> bytes:
    """Write the answer to a filter request.

    `unresolvable` names nodes that no preemption of other pods would help.
    """
    return codec.encode(
        _FilterResult(
            nodes=None if nodes is None else {"metadata": {}, "items": nodes},
            node_names=node_names,
            failed_nodes=failed,
            failed_and_unresolvable_nodes=unresolvable,
            error=error,
        )
    )


def encode_refusal(
    groups: Iterable[tuple[Sequence[str], str]], *, unresolvable: bool = False
) -> bytes:
    """Write the answer that no node fits: groups of names, each with one text.

    The same bytes as `encode_filter_result(failed=...)`, or `unresolvable=...`, without a dict of
    thousands of nodes.
    """
    parts = []
    for names, text in groups:
        value = codec.encode(text).decode()
        between = f'":{value},"'
        if names:
            parts.append(f'"{between.join(_in_json(names))}":{value}')
    before, after = _REFUSALS[unresolvable].split("%s")
    return f"{before}{{{','.join(parts)}}}{after}".encode()


def decode_preemption_args(data: bytes) -> PreemptionArgs:
    """Read a preempt request; victims come as whole pods or as UIDs, by nodeCacheCapable."""
    args = codec.decode(data, _PreemptionArgs, what="preempt request")
    victims = {node: listed or MetaVictims() for node, listed in (args.meta_victims or {}).items()}
    for node, whole in (args.victims or {}).items():
        pods = tuple(MetaPod(pod.uid) for pod in (whole and whole.pods) or () if pod is not None)
        victims.setdefault(node, MetaVictims(pods, (whole and whole.violations) or 0))
    return PreemptionArgs(args.pod, victims)


def encode_preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    """Write the answer to a preempt request: the nodes that stay candidates."""
    return codec.encode(_PreemptionResult(victims))


def _in_json(names: Sequence[str]) -> Sequence[str]:
    """Return names as JSON has them between quotes."""
    # Half the time of a regular expression, which counts with thousands of names.
    if not "".join(names).encode(errors="replace").translate(None, delete=_PLAIN):
        return names
    return [codec.encode(name).decode()[1:-1] for name in names]


def decode_binding_args(data: bytes) -> BindingArgs:
    """Read a bind request. All four values are needed: the UID excludes a pod of the same name."""
    args = codec.decode(data, _BindingArgs, what="bind request")
    return BindingArgs(
        pod_name=_needed(args.name or args.old_name, "PodName"),
        pod_namespace=_needed(args.namespace or args.old_namespace, "PodNamespace"),
        pod_uid=_needed(args.uid or args.old_uid, "PodUID"),
        node=_needed(args.node or args.old_node, "Node"),
    )


def encode_binding_result(error: str = "") -> bytes:
    """Write the answer to a bind request; an empty error is success."""
    return codec.encode(_BindingResult(error=error))


def _present(names: list[str | None]) -> list[str]:
    # `all` is fast, and today's schedulers send no null.
    return names if all(names) else [name for name in names if name is not None]  # type: ignore[return-value]


def _name_of(raw: msgspec.Raw) -> str:
    """Return the name of a node that does not decode; empty where it cannot be read either."""
    try:
        node = codec.decode(bytes(raw), _NodeName, what="filter request, node")
    except errors.WireError:
        return ""
    return (node.metadata and node.metadata.name) or ""


def _needed(value: str | None, key: str) -> str:
    if not value:
        raise errors.WireError("bind request", value, f"is no value for {key}")
    return value
