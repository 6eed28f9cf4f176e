"""A controller: keys come from watches, and each is brought closer to what its object asks for.

What it finds out from watches is only that something has changed. What it acts upon it reads
anew, so that it never acts upon the past.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from hami.kube import errors
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.controllers import items
from hami_sandbox.controllers.api import path
from hami_sandbox.controllers.items import Item
from hami_sandbox.controllers.queue import Queue

_log = logging.getLogger(__name__)

#: The object before and after a change; None where there was or is none.
Changed = Callable[[Item | None, Item | None], None]


class Watches:
    """One watch for each kind, however many want to know."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: dict[Kind, Informer[Item]] = {}

    def follow(self, kind: Kind, changed: Changed) -> None:
        """Tell of every change of a kind from the start on."""
        informer = self._informers.get(kind)
        if informer is None:
            informer = Informer(self._client, path(kind), items.decode, kind=kind.resource)
            self._informers[kind] = informer
        informer.add_handler(changed)

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.wait_synced()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run(), name=f"watch {informer.kind}")


class Controller(abc.ABC):
    name: str

    def __init__(self) -> None:
        self.queue = Queue()

    @abc.abstractmethod
    async def reconcile(self, key: str) -> None:
        """Bring one object closer to what it asks for; whatever fails is tried again."""

    async def run(self) -> NoReturn:
        while True:
            key = await self.queue.take()
            try:
                await self.reconcile(key)
            except errors.KubeError as error:
                if not isinstance(error, errors.Conflict):  # that one only means: read again
                    told = {"controller": self.name, "key": key, "error": str(error)}
                    _log.warning("a controller will try again", extra=told)
                self.queue.add_failed(key)
            except Exception:  # noqa: BLE001 - one object must not end the others' controller
                _log.exception("a controller failed", extra={"controller": self.name, "key": key})
                self.queue.add_failed(key)
            else:
                self.queue.succeeded(key)


def enqueue_owner(kind: str, queue: Queue, delay: float) -> Changed:
    """Return what has the controller of a changed object looked at, if it is of this kind."""

    def changed(old: Item | None, new: Item | None) -> None:
        for item in (old, new):
            owner = item.controller() if item is not None else None
            if item is not None and owner is not None and owner.kind == kind:
                # Its pods change many at a time.
                queue.add_after(f"{item.namespace}/{owner.name}", delay)

    return changed


def enqueue_itself(queue: Queue) -> Changed:
    def changed(_: Item | None, new: Item | None) -> None:
        if new is not None:
            queue.add(new.key)

    return changed
