"""Informers of `hami webhook`: what it keeps of nodes and pods for the MIG offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hami.admission.mig_offer import MigOffer
from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.wire import codec, objects

#: A node has about 30 kB. A page of 500, as for pods, would take twice the memory of the process.
_NODES_AT_ONCE = 50


def build(
    client: Client, mig_offer: MigOffer, *, pod_marks: Sequence[str], resync_interval: float
) -> dict[str, Informer[Any]]:
    """Return the informers that keep a MIG offer current, by kind.

    Pods are watched only if `pod_marks` names texts of their JSON. The interval is in seconds.
    """
    nodes = Informer(
        client,
        paths.nodes(),
        node_reader(mig_offer),
        kind="nodes",
        resync_interval=resync_interval,
        page_size=_NODES_AT_ONCE,
    )
    nodes.add_handler(mig_offer.on_node)
    informers: dict[str, Informer[Any]] = {"nodes": nodes}
    if pod_marks:
        pods = Informer(
            client,
            paths.pods(),
            pod_reader(mig_offer, pod_marks),
            kind="pods",
            resync_interval=resync_interval,
        )
        pods.add_handler(mig_offer.on_pod)
        informers["pods"] = pods
    return informers


class WatchedNode(msgspec.Struct, frozen=True):
    """The part of a Node that is kept."""

    uid: str
    name: str
    version: int
    offered: Mapping[str, int]
    #: Nodes have none.
    namespace: str = ""


class WatchedPod(msgspec.Struct, frozen=True):
    """The part of a Pod that is kept."""

    uid: str
    namespace: str
    name: str
    version: int
    node: str
    held: Mapping[str, int]


def node_reader(mig_offer: MigOffer) -> Callable[[bytes], WatchedNode]:
    """Return a reader of nodes."""

    def read(body: bytes) -> WatchedNode:
        node = codec.decode(body, objects.Node, what="node")
        return WatchedNode(node.uid, node.name, node.version, mig_offer.offered(node))

    return read


def pod_reader(mig_offer: MigOffer, words: Iterable[str]) -> Callable[[bytes], WatchedPod | None]:
    """Return a reader of pods in whose JSON any of these words is; others are not decoded."""
    decode = listwatch.pods_with(words)

    def read(body: bytes) -> WatchedPod | None:
        pod = decode(body)
        if pod is None:
            return None
        held = mig_offer.held(pod)
        return WatchedPod(pod.uid, pod.namespace, pod.name, pod.version, pod.node_name, held)

    return read
