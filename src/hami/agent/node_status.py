"""Patch our Node object, and read from it.

One object is watched, our Node. Whenever it or our advertisement changes, the two are compared, and
what differs is written: all annotations in one patch, so that a reader never sees a mark beside
another register, and the shares in the node's status in another. Nothing is written while nothing
differs. A write counts as seen when the watch has shown it; until then nothing is compared.

A change by another writer is corrected, at once the first time and then ever more slowly: two
agents on one node must not keep the API server busy.

The names of the resources that we put into the node's status are also in an annotation, so that a
later agent knows which of them to remove. Other resources belong to other components, and stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random as randomness
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import msgspec

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.kube.informer import Informer
from hami.kube.lister import Handler
from hami.kube.transport import Backoff
from hami.vendors import table
from hami.vendors.table import AnnotationKeys
from hami.wire import annotation_keys, codec, objects, quantity, text_values
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds that the watch has to show a write.
_SEEN_S = 10.0
#: Seconds without a foreign change after which the next one is corrected at once.
_QUIET_S = 60.0
#: Seconds for the last patch of all.
_WITHDRAW_S = 5.0


class Advertisement(msgspec.Struct, frozen=True, kw_only=True):
    """The annotations and resources that the Node object should show."""

    #: None: the annotation must not exist.
    annotations: Mapping[str, str | None]
    #: Amounts in the node's status by resource name; empty: none of ours.
    shares: Mapping[str, int]

    def with_mark(self, key: str, value: str | None) -> Advertisement:
        """Return the same with another annotation; None: without it."""
        return msgspec.structs.replace(self, annotations={**self.annotations, key: value})


class NodeStatus:
    """Keeps our Node object equal to the advertisement."""

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
        self.name = node_name
        self._events = events
        self.keys = table.nvidia(table.built_in()).annotations
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
        self._informer.add_handler(self._node_changed)
        self._wanted: Advertisement | None = None
        #: The last advertisement that the Node showed; a difference from it is a foreign change.
        self._shown: Advertisement | None = None
        self._compare = asyncio.Event()
        self._wanted_changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._calm = Backoff(first=0.5, longest=60.0, random=random)
        self._repaired_at: float | None = None
        self._withdrawn = False
        #: Whether we have ever written the binding mark.
        self._marked = False

    # Reading.

    def node(self) -> objects.Node | None:
        """Return our Node as the watch has it; None: not seen yet, or it does not exist."""
        return self._informer.by_key(self.name)

    def _node_changed(self, _old: objects.Node | None, _new: objects.Node | None) -> None:
        self._compare.set()

    def lock(self) -> str:
        """Return the value of HAMi's node lock; empty: not locked."""
        node = self.node()
        return node.annotation(annotation_keys.NODE_LOCK) if node is not None else ""

    def kubelet_version(self) -> str:
        """Return kubelet's version, for example v1.36.3; empty: not known."""
        node = self.node()
        return node.kubelet_version if node is not None else ""

    def runtime_version(self) -> str:
        """Return kubelet's container runtime, for example containerd://2.1.4; empty: not known."""
        node = self.node()
        return node.runtime_version if node is not None else ""

    def add_handler(self, handler: Handler[objects.Node]) -> None:
        """Call back with (old, new) after each change of the Node."""
        self._informer.add_handler(handler)

    async def wait_synced(self) -> None:
        """Wait until the API server has sent the Node, or that there is none."""
        await self._informer.wait_synced()

    async def read(self) -> objects.Node:
        """Read the Node as it is now, also what the watch may not have yet."""
        body = await self._client.get(paths.nodes(self.name))
        return codec.decode(body, objects.Node, what=f"node {self.name}")

    # Writing.

    def advertise(self, wanted: Advertisement) -> None:
        """Show this from now on; it is written when the Node differs. Before, nothing is."""
        if self._withdrawn:
            wanted = wanted.with_mark(self.keys.binding, None)
        if wanted != self._wanted:
            self._wanted = wanted
            self._compare.set()
            self._wanted_changed.set()

    def silence(self) -> None:
        """Write nothing until the next `advertise`."""
        self._wanted = self._shown = None

    @property
    def silent(self) -> bool:
        """Whether there is nothing to write."""
        return self._wanted is None

    @property
    def fulfilled(self) -> bool:
        """Whether the Node shows the advertisement."""
        return self._wanted is not None and self._shown is self._wanted

    async def run(self) -> NoReturn:
        """Watch and write, for ever; end by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="watch our node")
            tasks.create_task(self._keep(), name="report on our node")
        raise AssertionError  # neither of them ends

    async def withdraw(self) -> None:
        """Remove the binding mark: binds to this node take the lock from now on."""
        self._withdrawn = True
        key = self.keys.binding
        if self._wanted is not None:
            self._wanted = self._wanted.with_mark(key, None)
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

    def warn(self, reason: str, message: str) -> None:
        """Send a warning event of the Node."""
        self.report(reason, message, type="Warning")

    def report(self, reason: str, message: str, *, type: str = "Normal") -> None:  # noqa: A002
        """Send an event of the Node; such events are in the namespace default."""
        node = self.node()
        self._events.record(
            namespace="",
            name=self.name,
            # As kubelet does where the Node is not known yet; kubectl finds both.
            uid=node.uid if node is not None else self.name,
            kind="Node",
            type=type,
            reason=reason,
            message=message,
        )

    async def _keep(self) -> NoReturn:
        backoff = Backoff(first=0.2, longest=30.0, random=self._random)
        while True:
            await self._compare.wait()
            self._compare.clear()
            try:
                await self._correct()
                backoff.reset()
            except errors.KubeError as error:
                wait = backoff.next(error.retry_after)
                _log.warning(
                    "cannot patch our node, retrying",
                    extra={"node": self.name, "error": str(error), "wait": round(wait, 3)},
                )
                await self._sleep(wait)
                self._compare.set()

    async def _correct(self) -> None:
        keys = [*self._annotation_changes(), *self._share_changes()]
        if not keys:
            if self.node() is not None:
                self._shown = self._wanted
            return
        if self.fulfilled:
            await self._slow_down(keys)
        for write in (self._write_annotations, self._write_shares):
            version = await write()
            if version is not None:
                await self._seen(version)

    def _annotation_changes(self) -> dict[str, str | None]:
        node, wanted = self.node(), self._wanted
        if node is None or wanted is None:
            return {}
        return annotation_changes(node, wanted, self.keys)

    def _share_changes(self) -> dict[str, dict[str, str | None]]:
        node, wanted = self.node(), self._wanted
        if node is None or wanted is None:
            return {}
        return share_changes(node, wanted, self.keys)

    async def _slow_down(self, keys: list[str]) -> None:
        """Wait before a foreign change is corrected: not the first time, then ever longer."""
        now = self._clock()
        wait = 0.0
        if self._repaired_at is None or now - self._repaired_at > _QUIET_S:
            self._calm.reset()
        else:
            wait = self._calm.next()
        _log.warning(
            "another writer changed our node's annotations or shares, correcting",
            extra={"node": self.name, "keys": keys, "wait": round(wait, 3)},
        )
        if wait:
            self._wanted_changed.clear()
            # A change of our own does not wait for the other writer to stop.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wanted_changed.wait()
        self._repaired_at = self._clock()

    async def _write_annotations(self) -> int | None:
        async with self._writing:
            # Compared again: the mark may have been withdrawn while we waited.
            changes = self._annotation_changes()
            return await self._patch_annotations(changes) if changes else None

    async def _remove(self, key: str) -> None:
        """Remove an annotation; retry what may be retried."""
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
            path = f"{paths.nodes(self.name)}/status"
            body = await self._client.patch(path, codec.encode({"status": changes}))
        _log.info("wrote shares", extra={"node": self.name, "shares": changes})
        return _version(body)

    async def _patch_annotations(self, changes: Mapping[str, str | None]) -> int | None:
        self._marked = self._marked or changes.get(self.keys.binding) is not None
        patch = {"metadata": {"annotations": changes}}
        body = await self._client.patch(paths.nodes(self.name), codec.encode(patch))
        _log.info("wrote annotations", extra={"node": self.name, "keys": sorted(changes)})
        return _version(body)

    async def _seen(self, version: int) -> None:
        """Wait until the watch has shown a write, so that it is not written again."""
        try:
            async with asyncio.timeout(_SEEN_S):
                await self._informer.wait_version(version)
        except TimeoutError:
            _log.warning(
                "the watch has not shown our own write, listing again",
                extra={"node": self.name, "version": version},
            )
            self._informer.resync()

    def _not_withdrawn(self, why: str) -> None:
        _log.warning(
            "cannot remove the mark of late binding; pods bound to this node wait for its next "
            "agent",
            extra={"node": self.name, "key": self.keys.binding, "error": why},
        )


def annotation_changes(
    node: objects.Node, wanted: Advertisement, keys: AnnotationKeys
) -> dict[str, str | None]:
    """Return the annotations that differ, as a merge patch: null removes."""
    kept = sorted({*wanted.shares, *_stale(node, wanted, keys)})
    target = {**wanted.annotations, keys.shares: ",".join(kept) or None}
    return {key: value for key, value in target.items() if node.annotations.get(key) != value}


def share_changes(
    node: objects.Node, wanted: Advertisement, keys: AnnotationKeys
) -> dict[str, dict[str, str | None]]:
    """Return what differs in the node's status, as a merge patch."""
    removed: dict[str, str | None] = dict.fromkeys(_stale(node, wanted, keys))
    target = removed | {name: str(amount) for name, amount in wanted.shares.items()}
    changes = {
        "capacity": _differing(node.capacity, target),
        "allocatable": _differing(node.allocatable, target),
    }
    return {field: differing for field, differing in changes.items() if differing}


def _differing(
    there: Mapping[str, objects.Amount | None], target: Mapping[str, str | None]
) -> dict[str, str | None]:
    return {
        name: value
        for name, value in target.items()
        if (name in there if value is None else _amount(there.get(name)) != int(value))
    }


def _stale(node: objects.Node, wanted: Advertisement, keys: AnnotationKeys) -> list[str]:
    """Return the resources that an agent of ours wrote once, and that are to be removed."""
    return [
        name
        for name in text_values.comma_list(node.annotation(keys.shares))
        if name not in wanted.shares and (name in node.capacity or name in node.allocatable)
        if _is_extended(name)
    ]


def _is_extended(name: str) -> bool:
    """Return whether the name can be ours: whatever the annotation lists, cpu is not."""
    try:
        quantity.check_resource_name(name, what="resource")
    except wire_errors.WireError:
        return False
    return True


def _amount(amount: objects.Amount | None) -> int | None:
    if amount is None:
        return None
    try:
        return quantity.exact_integer(amount, what="amount", high=quantity.INT64_MAX)
    except wire_errors.WireError:
        return None  # differs from every amount, and is corrected


def _version(body: bytes) -> int | None:
    """Return the Node's version from an answer of the server; None: unreadable."""
    try:
        return listwatch.identity(body)[1]
    except wire_errors.WireError:
        return None
