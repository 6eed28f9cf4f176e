"""Keeps what our node says of itself true, and tells what others say of it.

One object is watched, our Node. Whenever it or what we want of it changes, the two are compared,
and what differs is written: all annotations in one patch, so that nobody ever sees a mark beside
another register, and the shares in the node's status in another. Nothing is written while nothing
differs. A write counts as seen when the watch has shown it; until then nothing is compared.

What another writer changes is put right, at once the first time and ever more slowly while it goes
on: two agents on one node must not keep the API server busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random as randomness
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from hami.agent import advertise, lock_binding
from hami.agent.advertise import Advertisement
from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.kube.informer import Informer
from hami.kube.lister import Handler
from hami.kube.transport import Backoff
from hami.vendors import table
from hami.wire import annotation_keys, codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds that the watch has to show a write.
_SEEN_S = 10.0
#: Seconds without a foreign change after which the next one is put right at once.
_QUIET_S = 60.0
#: Seconds for the last patch of all.
_WITHDRAW_S = 5.0


class NodeStatus:
    def __init__(
        self,
        client: Client,
        node_name: str,
        events: EventRecorder,
        *,
        resync_interval: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._client = client
        self._name = node_name
        self._events = events
        (self._keys,) = (v.annotations for v in table.built_in() if v.section == "nvidia")
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._informer: Informer[objects.Node] = Informer(
            client,
            paths.nodes(),
            listwatch.all_of(objects.Node, "node"),
            kind="node",
            query={"fieldSelector": f"metadata.name={node_name}"},
            resync_interval=resync_interval,
            sleep=sleep,
            random=random,
        )
        self._informer.add_handler(lambda _old, _new: self._look.set())
        self._wishes: Advertisement | None = None
        #: What has been true once: if it is not any more, somebody else has changed it.
        self._fulfilled: Advertisement | None = None
        self._look = asyncio.Event()
        self._wished = asyncio.Event()
        self._writing = asyncio.Lock()
        self._calm = Backoff(first=0.5, longest=60.0, random=random)
        self._repaired_at: float | None = None
        self._withdrawn = False
        #: Whether we have ever written the binding mark.
        self._marked = False

    # What the node says.

    def node(self) -> objects.Node | None:
        """Return our node as the watch knows it; None: not seen yet, or not there."""
        return self._informer.by_key(self._name)

    def lock(self) -> str:
        """Return the value of HAMi's node lock; empty: not locked."""
        node = self.node()
        return node.annotation(annotation_keys.NODE_LOCK) if node is not None else ""

    def kubelet_version(self) -> str:
        """Return kubelet's version as it tells it, for example v1.36.3; empty: not known."""
        node = self.node()
        return node.kubelet_version if node is not None else ""

    def add_handler(self, handler: Handler[objects.Node]) -> None:
        """Call back with (old, new) after each change of the node."""
        self._informer.add_handler(handler)

    async def wait_synced(self) -> None:
        """Wait until the API server has told of the node, or that there is none."""
        await self._informer.wait_synced()

    async def read(self) -> objects.Node:
        """Ask the API server for the node as it is now, for what the watch may not know yet."""
        body = await self._client.get(paths.nodes(self._name))
        return codec.decode(body, objects.Node, what=f"node {self._name}")

    # What it should say.

    def desired(
        self,
        register: str | None,
        *,
        scores: str | None = None,
        late: bool = False,
        lock_reason: str = "",
        shares: Mapping[str, int] | None = None,
    ) -> None:
        """Say what the node should say from now on; it is written when it differs.

        `register` None: there are no cards to speak of, and nothing of them stays. `shares`: sums
        for the node's status by resource name, None for none. Nothing is written before this.
        """
        wishes = advertise.advertisement(
            self._keys,
            register=register,
            scores=scores,
            late=late,
            lock_reason=lock_reason,
            shares=shares,
        )
        if self._withdrawn:
            wishes = wishes.without(self._keys.binding)
        if wishes != self._wishes:
            self._wishes = wishes
            self._look.set()
            self._wished.set()

    @property
    def fulfilled(self) -> bool:
        """Whether the node says what it should."""
        return self._wishes is not None and self._fulfilled is self._wishes

    async def run(self) -> NoReturn:
        """Watch and write, for ever; end by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="watch our node")
            tasks.create_task(self._keep(), name="report on our node")
        raise AssertionError  # neither of them ends

    async def withdraw(self) -> None:
        """Remove the binding mark: whoever binds to this node from now on takes the lock."""
        self._withdrawn = True
        key = self._keys.binding
        if self._wishes is not None:
            self._wishes = self._wishes.without(key)
        node = self.node()
        if node is not None and key not in node.annotations and not self._marked:
            return
        try:
            async with asyncio.timeout(_WITHDRAW_S):
                await self._remove(key)
        except TimeoutError:
            self._not_withdrawn(f"not done within {_WITHDRAW_S:g} s")
        except errors.KubeError as error:
            self._not_withdrawn(str(error))

    async def release_lock(self, namespace: str, name: str) -> bool:
        """Remove the node lock if it names this pod; return whether it surely does not now."""
        return await lock_binding.release(
            self._client,
            self._name,
            namespace=namespace,
            name=name,
            sleep=self._sleep,
            random=self._random,
        )

    def warn(self, reason: str, message: str) -> None:
        """Tell whoever describes the node; such events lie in the namespace default."""
        node = self.node()
        self._events.record(
            namespace="",
            name=self._name,
            # kubelet's way where the node is not known yet; kubectl looks for both.
            uid=node.uid if node is not None else self._name,
            kind="Node",
            type="Warning",
            reason=reason,
            message=message,
        )

    # Writing.

    async def _keep(self) -> NoReturn:
        backoff = Backoff(first=0.2, longest=30.0, random=self._random)
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._put_right()
                backoff.reset()
            except errors.KubeError as error:
                wait = backoff.next(error.retry_after)
                _log.warning(
                    "what the node says cannot be written",
                    extra={"node": self._name, "error": str(error), "wait": round(wait, 3)},
                )
                await self._sleep(wait)
                self._look.set()

    async def _put_right(self) -> None:
        keys = [*self._annotation_changes(), *self._share_changes()]
        if not keys:
            if self.node() is not None:
                self._fulfilled = self._wishes
            return
        if self.fulfilled:
            await self._calm_down(keys)
        for write in (self._write_annotations, self._write_shares):
            version = await write()
            if version is not None:
                await self._seen(version)

    def _annotation_changes(self) -> dict[str, str | None]:
        node, wishes = self.node(), self._wishes
        if node is None or wishes is None:
            return {}
        return advertise.annotation_changes(node, wishes, self._keys)

    def _share_changes(self) -> dict[str, dict[str, str | None]]:
        node, wishes = self.node(), self._wishes
        if node is None or wishes is None:
            return {}
        return advertise.share_changes(node, wishes, self._keys)

    async def _calm_down(self, keys: list[str]) -> None:
        """Wait before a foreign change is put right: not the first time, then ever longer."""
        now = self._clock()
        wait = 0.0
        if self._repaired_at is None or now - self._repaired_at > _QUIET_S:
            self._calm.reset()
        else:
            wait = self._calm.next()
        _log.warning(
            "somebody else has changed what our node says, putting it right",
            extra={"node": self._name, "keys": keys, "wait": round(wait, 3)},
        )
        if wait:
            self._wished.clear()
            # What we want ourselves does not wait for a quarrel to end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wished.wait()
        self._repaired_at = self._clock()

    async def _write_annotations(self) -> int | None:
        async with self._writing:
            # Compared again: the mark may have been withdrawn while we waited.
            changes = self._annotation_changes()
            return await self._patch_annotations(changes) if changes else None

    async def _remove(self, key: str) -> None:
        """Remove an annotation; what may be tried again is."""
        backoff = Backoff(first=0.1, longest=1.0, random=self._random)
        while True:
            try:
                async with self._writing:
                    await self._patch_annotations({key: None})
            except errors.KubeError as error:
                if error.retry is errors.Retry.NEVER:
                    raise
                await self._sleep(backoff.next(error.retry_after))
            else:
                return

    async def _write_shares(self) -> int | None:
        async with self._writing:
            changes = self._share_changes()
            if not changes:
                return None
            path = f"{paths.nodes(self._name)}/status"
            body = await self._client.patch(path, codec.encode({"status": changes}))
        _log.info("wrote shares", extra={"node": self._name, "shares": changes})
        return _version(body)

    async def _patch_annotations(self, changes: Mapping[str, str | None]) -> int | None:
        self._marked = self._marked or changes.get(self._keys.binding) is not None
        patch = {"metadata": {"annotations": changes}}
        body = await self._client.patch(paths.nodes(self._name), codec.encode(patch))
        _log.info("wrote annotations", extra={"node": self._name, "keys": sorted(changes)})
        return _version(body)

    async def _seen(self, version: int) -> None:
        """Wait until the watch has shown a write, so that it is not written again."""
        try:
            async with asyncio.timeout(_SEEN_S):
                await self._informer.wait_version(version)
        except TimeoutError:
            _log.warning(
                "the watch has not shown our own write, comparing with a list",
                extra={"node": self._name, "version": version},
            )
            self._informer.resync()

    def _not_withdrawn(self, why: str) -> None:
        _log.warning(
            "the mark of late binding stays on the node; pods bound to it wait for the next agent",
            extra={"node": self._name, "key": self._keys.binding, "error": why},
        )


def _version(body: bytes) -> int | None:
    """Return what the server says the node's version is now; None: its answer is unreadable."""
    try:
        return listwatch.identity(body)[1]
    except wire_errors.WireError:
        return None
