"""Answer Allocate as the vendors' plugins do: find the pod, end its start.

kubelet names no pod. Most plugins follow HAMi: the node's lock names the pod, whose annotation
lists the shares that are still to be allocated. A plugin takes the first container of that list,
empties its part, and after the last one writes bind-phase success and removes the lock. In a pod
with cards of two vendors the first plugin removes the lock, so the second looks among the pods
that are bound to the node and have not started.

Other plugins set flags on the pod (and may have a lock of their own), or write nothing at all.
Those have no list to empty; which containers were served is kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from hami.agent.errors import RefusalError
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.simulation.cards import VendorCards
from hami.wire import annotation_keys, codec, node_marks, quantity, shares
from hami.wire import errors as wire_errors
from hami.wire.objects import Container, Node, Pod
from hami.wire.shares import PodShares

_log = logging.getLogger(__name__)

_TIMEOUT = 5.0
#: Attempts to remove a lock while other writers change the node.
_ATTEMPTS = 5
_RESCHEDULE = "let the scheduler place the pod; delete the pod to reschedule it"
_BOUND = ("allocating", "success")


#: By container's name; the key `allocated` is the plugin's.
_ContainerFlags = dict[str, dict[str, Any]]


class _PodList(codec.Object, frozen=True):
    items: tuple[Pod, ...] = ()


class Ending(Protocol):
    async def serve(self, resource: str, number: int) -> tuple[str, ...]:
        """Serve the next container with so many devices; return its cards, or RefusalError."""


def of(client: Client, cards: VendorCards) -> Ending:
    """Return the way in which a vendor's plugin ends the start of a pod."""
    api = _NodeApi(client, cards.node)
    if cards.plugin.ending == "nothing":
        return Silent()
    return ByLock(api, cards) if cards.plugin.ending == "lock" else ByFlags(api, cards)


class Silent:
    """A plugin that knows nothing of the scheduler."""

    async def serve(self, resource: str, number: int) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        return ()


class _NodeApi:
    """What a plugin reads and writes of its node and the node's pods."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self.node = node

    async def read(self) -> Node:
        body = await self._client.get(paths.nodes(self.node), timeout=_TIMEOUT)
        return codec.decode(body, Node, what=f"node {self.node}")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        try:
            body = await self._client.get(paths.pods(namespace, name), timeout=_TIMEOUT)
        except errors.NotFound:
            return None
        return codec.decode(body, Pod, what=f"pod {namespace}/{name}")

    async def starting(self) -> list[Pod]:
        """Return the pods that are bound here and have not started, the first bound first."""
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        body = await self._client.get(paths.pods(), query, timeout=_TIMEOUT)
        found = codec.decode(body, _PodList, what=f"pods of node {self.node}").items
        return sorted((pod for pod in found if self._is_starting(pod)), key=_bound_at)

    def _is_starting(self, pod: Pod) -> bool:
        return (
            pod.phase == "Pending"
            and not pod.deleting
            and pod.annotation(annotation_keys.ASSIGNED_NODE) == self.node
            and pod.annotation(annotation_keys.BIND_TIME) != ""
            and pod.annotation(annotation_keys.BIND_PHASE) in _BOUND
        )

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        # Another pod of this name must not be changed.
        patch = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        path = paths.pods(pod.namespace, pod.name)
        await self._client.patch(path, codec.encode(patch), timeout=_TIMEOUT)

    async def release(self, key: str, pod: Pod) -> None:
        """Remove a lock of this pod; a lock without an owner is removed, too."""
        for _ in range(_ATTEMPTS):
            node = await self.read()
            value = node.annotation(key)
            if not value or ("," in value and not value.endswith(f",{pod.namespace},{pod.name}")):
                return
            version = str(node.version)
            patch = {"metadata": {"annotations": {key: None}, "resourceVersion": version}}
            try:
                await self._client.patch(
                    paths.nodes(self.node), codec.encode(patch), timeout=_TIMEOUT
                )
            except errors.Conflict:
                continue
            return
        _log.warning("cannot release node lock", extra={"node": self.node, "key": key})


class _OneByOne:
    """Finds the pod of an Allocate among those that start; one call after the other."""

    def __init__(self, api: _NodeApi) -> None:
        self._api = api
        self._turn = asyncio.Lock()

    async def serve(self, resource: str, number: int) -> tuple[str, ...]:
        async with self._turn:
            try:
                return await self._serve(resource, number)
            except (errors.KubeError, wire_errors.WireError) as error:
                raise RefusalError(
                    f"node {self._api.node}", f"the next pod cannot be read: {error}", _RESCHEDULE
                ) from error

    async def _serve(self, resource: str, number: int) -> tuple[str, ...]:
        raise NotImplementedError

    def _nothing_waits(self, resource: str, number: int) -> RefusalError:
        what = f"no pod that is bound to it waits for {number} of {resource}"
        return RefusalError(f"node {self._api.node}", what, _RESCHEDULE)


class ByLock(_OneByOne):
    """HAMi's way: the list of shares to allocate, bind-phase, the node's lock."""

    def __init__(self, api: _NodeApi, cards: VendorCards) -> None:
        super().__init__(api)
        self._key = cards.vendor.annotations.to_allocate
        self._lock = cards.vendor.annotations.lock

    async def _serve(self, resource: str, number: int) -> tuple[str, ...]:
        locked = await self._locked()
        candidates = [*([locked] if locked else []), *await self._api.starting()]
        for pod in candidates:
            listed = self._listed(pod)
            index = _first(listed)
            if index is not None and len(listed[index]) == number:
                return await self._take(pod, listed, index)
        if locked is not None and _first(self._listed(locked)) is not None:
            await self._fail(locked)
        raise self._nothing_waits(resource, number)

    async def _locked(self) -> Pod | None:
        """Return the pod that the lock names, if it is bound here."""
        node = await self._api.read()
        value = node.annotation(self._lock)
        lock = node_marks.decode_lock(value) if value else None
        if lock is None or not lock.name:
            return None
        pod = await self._api.pod(lock.namespace, lock.name)
        return pod if pod is not None and pod.node_name == self._api.node else None

    def _listed(self, pod: Pod) -> PodShares:
        what = f"pod {pod.namespace}/{pod.name}, {self._key}"
        return shares.decode(pod.annotation(self._key), what=what)

    async def _take(self, pod: Pod, listed: PodShares, index: int) -> tuple[str, ...]:
        left = (*listed[:index], (), *listed[index + 1 :])
        # HAMi's plugins read an empty part behind the last one, and write it back.
        changes = {self._key: shares.encode((*left, ()))}
        done = _first(left) is None
        if done:
            changes[annotation_keys.BIND_PHASE] = "success"
        await self._api.annotate(pod, changes)
        if done:
            await self._api.release(self._lock, pod)
        return tuple(share.card for share in listed[index])

    async def _fail(self, pod: Pod) -> None:
        await self._api.annotate(pod, {annotation_keys.BIND_PHASE: "failed"})
        await self._api.release(self._lock, pod)


class ByFlags(_OneByOne):
    """Flags on the pod, and a lock of the vendor's own."""

    def __init__(self, api: _NodeApi, cards: VendorCards) -> None:
        super().__init__(api)
        self._plugin = cards.plugin
        self._allocated = cards.vendor.annotations.allocated
        self._lock = cards.vendor.annotations.lock
        #: Indexes of containers that have a resource, by pod UID and resource.
        self._served: dict[tuple[str, str], set[int]] = {}

    async def _serve(self, resource: str, number: int) -> tuple[str, ...]:
        starting = await self._api.starting()
        alive = {pod.uid for pod in starting}
        self._served = {key: value for key, value in self._served.items() if key[0] in alive}
        for pod in starting:
            if not pod.annotation(self._allocated):
                continue
            served = self._served.setdefault((pod.uid, resource), set())
            for index, container in enumerate(_containers(pod)):
                if index not in served and _asked(container, resource) == number:
                    served.add(index)
                    await self._flag(pod, container)
                    granted = shares.decode(pod.annotation(self._allocated))
                    part = granted[index] if index < len(granted) else ()
                    return tuple(share.card for share in part)
        raise self._nothing_waits(resource, number)

    async def _flag(self, pod: Pod, container: Container) -> None:
        changes: dict[str, str] = {}
        done = True
        key = self._plugin.container_flags
        if key:
            what = f"pod {pod.namespace}/{pod.name}, {key}"
            flags = codec.decode(pod.annotation(key) or "{}", _ContainerFlags, what=what)
            if container.name in flags:
                flags[container.name]["allocated"] = True
            done = all(each.get("allocated") for each in flags.values())
            changes[key] = codec.encode_text(flags)
        if done:
            changes |= dict.fromkeys(self._plugin.flags, "true")
        await self._api.annotate(pod, changes)
        if done and self._lock:
            await self._api.release(self._lock, pod)


def _first(listed: PodShares) -> int | None:
    """Return the index of the first container that still has shares to get."""
    return next((index for index, part in enumerate(listed) if part), None)


def _containers(pod: Pod) -> Iterator[Container]:
    return (container for _, container in pod.containers())


def _asked(container: Container, resource: str) -> int:
    amount = container.amount(resource)
    if amount is None:
        return 0
    return quantity.exact_integer(amount, what=f"container {container.name}, {resource}")


def _bound_at(pod: Pod) -> tuple[int, str]:
    bound = pod.annotation(annotation_keys.BIND_TIME)
    return (int(bound) if bound.isdecimal() else 0), f"{pod.namespace}/{pod.name}"
