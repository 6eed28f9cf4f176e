"""Binding by the node's lock, where kubelet or runtime are too old.

Binding by the node's lock (D5), where kubelet or runtime are too old for anything better.
The scheduler lets one pod at a time between its binding and its last Allocate, and the lock names
that pod. Each Allocate serves its next container, in the order in which kubelet asks: init
containers first. The answer carries cards, limits and library itself. If it cannot be served, the
pod is told so, and the lock is given back either way.

Giving HAMi's node lock back after its pod has been served (A.8).
The lock may be another pod's by now, or be taken by the scheduler while we look. So it is removed
only where it names our pod, and the patch names the version of the node that was read. Should it
stay nevertheless, the scheduler finds that its pod has its cards, and removes it.
"""

from __future__ import annotations

import asyncio
import logging
import random as randomness
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.containers.prepare import Edits
from hami.agent.errors import RefusalError
from hami.agent.grants import Grants
from hami.agent.kubelet.kubelet_api import Allocation, Mount
from hami.agent.late_binding import check_health, new_token
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff
from hami.node import layout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire import annotation_keys, codec, node_marks, objects
from hami.wire import errors as wire_errors
from hami.wire.objects import Node, Pod

_log = logging.getLogger(__name__)

_TIMEOUT = 5.0

Failed = Callable[[Pod], None]


class LockBinding:
    def __init__(
        self,
        client: Client,
        node: str,
        *,
        grants: Grants,
        shares: Allocator,
        served: Callable[[LedgerRecord], None],
        failed: Failed,
        why_unhealthy: Callable[[str], str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._node = node
        self._grants = grants
        self._shares = shares
        #: Called when the last container of a pod has its answer.
        self._served = served
        self._failed = failed
        self._why_unhealthy = why_unhealthy
        self._now = now
        self._turn = asyncio.Lock()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[Allocation]:
        """Answer for the containers of the pod that the lock names."""
        async with self._turn:
            pod = await self._locked_pod()
            try:
                return [await self._serve(pod, device_ids) for device_ids in requests]
            except RefusalError:
                if self._waits_here(pod):
                    self._failed(pod)
                raise

    def _waits_here(self, pod: Pod) -> bool:
        """Tell whether it is this pod that gets nothing now.

        Somebody may come past the scheduler while the lock is another's: of a pod that is not bound
        yet, or that has all its cards.
        """
        known = self._shares.ledger.get(pod.uid)
        return pod.node_name == self._node and (known is None or bool(_unserved(known)))

    async def _locked_pod(self) -> Pod:
        what = f"node {self._node}"
        try:
            body = await self._client.get(paths.nodes(self._node), timeout=_TIMEOUT)
            value = codec.decode(body, Node, what=what).annotation(annotation_keys.NODE_LOCK)
            if not value:
                raise RefusalError(
                    what,
                    f"has no {annotation_keys.NODE_LOCK}, so nobody says whose these devices are",
                    "let the pod be scheduled by hami; delete it to have it placed anew",
                )
            lock = node_marks.decode_lock(value)
            if not lock.name:
                raise RefusalError(what, f"its lock {value!r} names no pod")
            path = paths.pods(lock.namespace, lock.name)
            return codec.decode(
                await self._client.get(path, timeout=_TIMEOUT), Pod, what=f"pod {lock.name}"
            )
        except (errors.KubeError, wire_errors.WireError) as error:
            raise RefusalError(what, f"the pod of its lock is not known: {error}") from error

    async def _serve(self, pod: Pod, device_ids: tuple[str, ...]) -> Allocation:
        first = self._shares.ledger.get(pod.uid) or self._first_sight(pod)
        name = new_token()
        record = await self._shares.admit(
            pod.uid, lambda now: _with_next(now or first, name, device_ids)
        )
        token = record.token(name)
        assert token is not None
        edits = self._shares.prepare(record, token)
        if not _unserved(record):
            self._served(record)
        return allocation(name, edits)

    def _first_sight(self, pod: Pod) -> LedgerRecord:
        record = self._grants.record_of(pod, now=self._now())
        check_health(record, self._why_unhealthy)
        return record


def allocation(token: str, edits: Edits) -> Allocation:
    """Answer for one container with everything that it gets."""
    return Allocation(
        envs=dict(edits.env),
        mounts=tuple(
            Mount(
                container_path=str(mount.container),
                host_path=str(mount.host),
                read_only=mount.read_only,
            )
            for mount in edits.mounts
        ),
        annotations={layout.TOKEN_ANNOTATION: token},
    )


def _with_next(record: LedgerRecord, name: str, device_ids: tuple[str, ...]) -> LedgerRecord:
    """Give the next container that waits a token."""
    slot = _next_slot(record, len(device_ids))
    token = AllocationRecord(
        token=name,
        container=record.containers[slot].name,
        slot=slot,
        device_ids=tuple(sorted(device_ids)),
        cdi=False,
    )
    return msgspec.structs.replace(record, tokens=(*record.tokens, token))


def _unserved(record: LedgerRecord) -> list[int]:
    served = {token.slot for token in record.tokens}
    return [slot for slot, grants in enumerate(record.slots) if grants and slot not in served]


def _next_slot(record: LedgerRecord, count: int) -> int:
    what = f"pod {record.namespace}/{record.name}"
    waiting = _unserved(record)
    if not waiting:
        raise RefusalError(
            what, "all its containers have their cards, yet kubelet asks for more in its turn"
        )
    granted = len(record.grants_of(waiting[0]))
    if granted != count:
        raise RefusalError(
            f"{what}, container {record.containers[waiting[0]].name}",
            f"kubelet asks for {count} devices, its grant has {granted}",
            "delete the pod to have it placed anew",
        )
    return waiting[0]


ATTEMPTS = 8


async def release(
    client: Client,
    node: str,
    *,
    namespace: str,
    name: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = randomness.random,
) -> bool:
    """Remove the node's lock if it is this pod's; return whether it is surely not there now."""
    backoff = Backoff(first=0.1, longest=5.0, random=random)
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return await _release_once(client, node, namespace, name)
        except errors.NotFound:
            return True  # no node, no lock
        except errors.KubeError as error:
            failure = error
            if error.retry is errors.Retry.NEVER:
                break
            await sleep(backoff.next(error.retry_after))
        except wire_errors.WireError as error:
            failure = error
            break
    _log.warning(
        "a node lock could not be removed; the scheduler will",
        extra={"node": node, "namespace": namespace, "pod": name, "error": str(failure)},
    )
    return False


async def _release_once(client: Client, node: str, namespace: str, name: str) -> bool:
    body = await client.get(paths.nodes(node))
    found = codec.decode(body, objects.Node, what=f"node {node}")
    if not is_held_by(found.annotation(annotation_keys.NODE_LOCK), namespace, name):
        return True
    patch = {
        "metadata": {
            "annotations": {annotation_keys.NODE_LOCK: None},
            "resourceVersion": found.metadata and found.metadata.resource_version,
        }
    }
    await client.patch(paths.nodes(node), codec.encode(patch))
    return True


def is_held_by(value: str, namespace: str, name: str) -> bool:
    """Tell whether a lock names this pod; what is no lock names none."""
    if not value:
        return False
    try:
        return node_marks.decode_lock(value).held_by(namespace, name)
    except wire_errors.WireError:
        return False
