"""A controller: watches, a queue of keys, requests.

A watch only reports that an object has changed. The controller reads the object again before it
acts, so it never acts upon an old state.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from hami.kube import errors, store
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.kube.store import Cache
from hami.wire import codec
from hami.wire import objects as wire_objects
from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind

_FIRST, _LONGEST = 0.05, 10.0


class Queue:
    def __init__(self, *, first: float = _FIRST, longest: float = _LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def add(self, key: str) -> None:
        """Queue a key, also while it is being reconciled."""
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._ready[key] = None
        self._filled.set()

    def add_after(self, key: str, seconds: float) -> None:
        """Queue a key after so many seconds, unless it is due before."""
        if key in self._ready:
            return
        loop = asyncio.get_running_loop()
        timer = self._later.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._later[key] = loop.call_later(seconds, self.add, key)

    def add_failed(self, key: str) -> None:
        """Queue a key again, after a delay that doubles with each failure."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.add_after(key, min(self._first * 2 ** (failures - 1), self._longest))

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)

    async def take(self) -> str:
        """Wait for a key."""
        while not self._ready:
            self._filled.clear()
            await self._filled.wait()
        key, _ = self._ready.popitem(last=False)
        return key


class Owner(codec.Object, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class _Metadata(codec.Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Body(codec.Object, frozen=True):
    metadata: _Metadata


class Item:
    """An object of any kind, without its content: controllers read it before they act."""

    __slots__ = ("deleting", "finalizers", "metadata", "name", "namespace", "owners", "uid")

    def __init__(self, metadata: _Metadata) -> None:
        self.uid = metadata.uid
        self.name = metadata.name
        self.namespace = metadata.namespace
        self.deleting = metadata.deletion_timestamp is not None
        self.finalizers = metadata.finalizers or ()
        self.owners = metadata.owner_references or ()
        self.metadata: wire_objects.Metadata | None = wire_objects.Metadata(
            resource_version=metadata.resource_version
        )

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def controller(self) -> Owner | None:
        """Return its owner with controller=true."""
        return next((owner for owner in self.owners if owner.controller), None)


def decode(body: bytes) -> Item | store.Ignored:
    return Item(codec.decode(body, _Body, what="object").metadata)


Object = dict[str, Any]


def path(kind: Kind, namespace: str = "", name: str = "", part: str = "") -> str:
    """Return the path of a kind, of one object, or of a subresource."""
    parts = [f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"]
    if kind.namespaced and namespace:
        parts += ["namespaces", _quoted(namespace)]
    parts.append(kind.resource)
    if name:
        parts.append(_quoted(name))
    if part:
        parts.append(part)
    return "/".join(parts)


def known(group: str, resource: str) -> Kind:
    """Return a built-in kind."""
    found = kinds.find(group, "v1", resource)
    assert found is not None, f"the server has no {resource}.{group}"
    return found


class Api:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, where: str) -> Object | None:
        """Return an object, or None if there is none."""
        try:
            return _object(await self._client.get(where))
        except errors.NotFound:
            return None

    async def items(self, where: str, **query: str) -> list[Object]:
        """Return the objects of a list as it is now."""
        answer = _object(await self._client.get(where, {k: v for k, v in query.items() if v}))
        items: list[Object] = answer.get("items") or []
        return items

    async def create(self, where: str, content: Mapping[str, Any]) -> Object:
        return _object(await self._client.create(where, msgspec.json.encode(content)))

    async def patch(self, where: str, patch: Mapping[str, Any]) -> Object:
        """Merge this into an object."""
        return _object(await self._client.patch(where, msgspec.json.encode(patch)))

    async def replace(self, where: str, content: Mapping[str, Any]) -> Object:
        return _object(await self._client.replace(where, msgspec.json.encode(content)))

    async def delete(self, where: str, *, uid: str = "", **options: Any) -> Object | None:
        """Delete an object, or all of a path; None if it is deleted or another one now."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            return _object(await self._client.delete(where, msgspec.json.encode(body)))
        except (errors.NotFound, errors.Conflict):
            return None


def _object(body: bytes) -> Object:
    found: Object = msgspec.json.decode(body)
    return found


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


_log = logging.getLogger(__name__)

#: The object before and after a change; None where there was or is none.
Changed = Callable[[Item | None, Item | None], None]


class Watches:
    """One watch for each kind, however many handlers there are."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._caches: dict[Kind, Cache[Item]] = {}
        self._reflectors: list[Reflector[Item]] = []

    def follow(self, kind: Kind, changed: Changed) -> None:
        """Call a handler at every change of a kind, from the start on."""
        cache = self._caches.get(kind)
        if cache is None:
            cache = self._caches[kind] = Cache()
            self._reflectors.append(
                Reflector(
                    self._client,
                    path(kind),
                    decode=decode,
                    sink=cache,
                    kind=kind.resource,
                )
            )
        cache.subscribe(changed)

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.wait_synced()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"watch {reflector.kind}")


class Controller(abc.ABC):
    name: str

    def __init__(self) -> None:
        self.queue = Queue()

    @abc.abstractmethod
    async def reconcile(self, key: str) -> None:
        """Bring one object closer to its spec; a failure is retried."""

    async def run(self) -> NoReturn:
        while True:
            key = await self.queue.take()
            try:
                await self.reconcile(key)
            except errors.KubeError as error:
                if not isinstance(error, errors.Conflict):  # then only read again
                    fields = {"controller": self.name, "key": key, "error": str(error)}
                    _log.warning("reconcile failed, retrying", extra=fields)
                self.queue.add_failed(key)
            except Exception:  # noqa: BLE001 - one object must not end the others' controller
                _log.exception(
                    "reconcile failed, retrying", extra={"controller": self.name, "key": key}
                )
                self.queue.add_failed(key)
            else:
                self.queue.succeeded(key)


def enqueue_owner(kind: str, queue: Queue, delay: float) -> Changed:
    """Return a handler that queues the controller of a changed object, if it is of this kind."""

    def changed(old: Item | None, new: Item | None) -> None:
        for item in (old, new):
            owner = item.controller() if item is not None else None
            if item is not None and owner is not None and owner.kind == kind:
                # Many pods change at a time.
                queue.add_after(f"{item.namespace}/{owner.name}", delay)

    return changed


def enqueue_itself(queue: Queue) -> Changed:
    def changed(_: Item | None, new: Item | None) -> None:
        if new is not None:
            queue.add(new.key)

    return changed
