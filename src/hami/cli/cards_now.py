"""The decision that hami would take now, from nodes, pods and quotas as they are.

`hami explain` shows it of a pod that kube-scheduler has not asked hami about. It knows no assumed
pods and no flags of the scheduler, and needs the right to list nodes and pods.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence

from hami.cluster.state import Cluster
from hami.kube import errors as kube_errors
from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.placement import decide, request
from hami.scheduler.refusals import note_of
from hami.vendors.table import Vendor
from hami.wire import codec, objects
from hami.wire import errors as wire_errors
from hami.wire.explanation_note import Note


async def decision(
    api: Client, pod: objects.Pod, vendors: Sequence[Vendor], *, now: dt.datetime
) -> Note | None:
    """Decide on a pod by its cards alone; None: it asks for no card. May raise KubeError."""
    wanted = request.parse(pod, vendors, request.Defaults())
    if wanted is None:
        return None
    cluster = Cluster(vendors)
    async for body in _items(api, paths.nodes(), lambda: _forget_nodes(cluster)):
        with contextlib.suppress(wire_errors.WireError):  # one bad node harms only itself
            cluster.observe_node(codec.decode(body, objects.Node, what="node"))
    read = listwatch.pods_with(f'"{word}"' for word in cluster.families.words())
    async for body in _items(api, paths.pods(), lambda: _forget_pods(cluster)):
        with contextlib.suppress(wire_errors.WireError):
            other = read(body)
            if other is not None and other.uid != pod.uid:
                cluster.observe_pod(other)
    # Without the right to read quotas there is still an answer.
    with contextlib.suppress(kube_errors.Forbidden):
        quotas = paths.quotas(pod.namespace)
        async for body in _items(api, quotas, lambda: _forget_quotas(cluster)):
            with contextlib.suppress(wire_errors.WireError):
                quota = codec.decode(body, objects.ResourceQuota, what="resource quota")
                cluster.observe_quota(quota)
    found = decide.decide(cluster, wanted).explanation
    return note_of(found, found.counts(), at=now.isoformat().replace("+00:00", "Z"))


def _forget_nodes(cluster: Cluster) -> None:
    for name in tuple(cluster.nodes):
        cluster.forget_node(name)


def _forget_pods(cluster: Cluster) -> None:
    for uid in tuple(cluster.pods):
        cluster.forget_pod(uid)


def _forget_quotas(cluster: Cluster) -> None:
    for namespace, name in tuple(cluster.quotas.all_limits()):
        cluster.forget_quota(namespace, name)


async def _items(api: Client, path: str, begin: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield the objects of a list; `begin` is called where it begins, and begins again."""
    async for page in listwatch.pages(api, path, {}):
        if page.first:
            begin()
        for body in page.items:
            yield body


async def last_failure(api: Client, namespace: str, uid: str) -> str:
    """Return the message of a pod's newest FailedScheduling event; empty: there is none."""
    selector = f"involvedObject.uid={uid},reason=FailedScheduling"
    body = await api.get(paths.events(namespace), {"fieldSelector": selector, "limit": "100"})
    events = codec.decode(body, _Events, what="events").items or ()
    newest = max((event for event in events if event), key=_Event.seen, default=_Event())
    return newest.message or ""


class _Series(codec.Object, frozen=True):
    last_observed_time: str | None = None


class _Event(codec.Object, frozen=True):
    message: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None

    def seen(self) -> str:
        """Return when it was seen last, RFC 3339; events differ in where they keep it."""
        in_series = self.series.last_observed_time if self.series is not None else None
        return in_series or self.last_timestamp or self.event_time or ""


class _Events(codec.Object, frozen=True):
    items: list[_Event | None] | None = None
