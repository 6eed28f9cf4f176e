"""Containers of this node with shares, as the agent prepared them.

The agent's own files are the source. A policy file has what libvgpu enforces in a container; a
ledger record also has containers without a policy: those with whole cards, and exempt ones. A
policy whose pod has left the ledger is over, though its folder may still be there.

A file that cannot be read costs its container the numbers that would have come from it, and no
other container anything. It is counted each time and logged once (`Unreadable`).
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import prometheus_client

from hami.node import files
from hami.node import ledger_record as records
from hami.node.layout import NodeLayout, is_allocation_id, is_uid
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.node.state_reading import UnreadableError
from hami.wire import errors as wire_errors
from hami.wire import policy_file
from hami.wire.policy_file import Policy
from hami.wire.shares import Share

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Subjects and reasons that are remembered; a folder that a tenant fills must not fill us.
_MOST = 4096
#: Seconds without a failure after which the next one is logged again.
_MENDED = 600.0
_RECORD = ".json"


class Key(msgspec.Struct, frozen=True, order=True):
    """A container; another pod of the same name is another container."""

    uid: str
    container: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container and its shares."""

    key: Key
    namespace: str
    pod: str
    #: In the order in which the container sees its cards.
    shares: tuple[Share, ...]
    #: None of a container that HAMi's plugin started.
    allocation_ids: tuple[str, ...]
    #: Its processes are under the limiter; not so with whole cards, nor with an exemption.
    limited: bool
    #: Unix nanoseconds; of two containers that Prometheus would take for one, the younger counts.
    since: int = 0
    #: Of its policy; above 1: it was written again, with other limits perhaps.
    generation: int = 1

    def share(self, card: str) -> tuple[int, Share] | None:
        """Return a card's index in the container, and the share of it; None: it has none."""
        for index, share in enumerate(self.shares):
            if share.card == card:
                return index, share
        return None


class Containers:
    """Containers by key, by allocation id and by UID of the pod."""

    def __init__(self, found: Iterable[Container]) -> None:
        self.by_key: dict[Key, Container] = {}
        self.by_allocation: dict[str, Container] = {}
        self.by_uid: dict[str, list[Container]] = {}
        for container in sorted(found, key=lambda each: each.since):
            older = self.by_key.get(container.key)
            # kubelet may have asked twice for one container: it has a state file for each answer.
            ids = container.allocation_ids + (older.allocation_ids if older else ())
            self.by_key[container.key] = msgspec.structs.replace(container, allocation_ids=ids)
        for container in self.by_key.values():
            self.by_uid.setdefault(container.key.uid, []).append(container)
            for allocation_id in container.allocation_ids:
                self.by_allocation[allocation_id] = container

    def __iter__(self) -> Iterator[Container]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)


class PreparedContainers:
    """Reads the agent's policy files and ledger records."""

    def __init__(self, layout: NodeLayout, unreadable: Unreadable) -> None:
        self._layout = layout
        self._unreadable = unreadable
        self._policies = _DecodedFiles(policy_file.decode)
        self._records = _DecodedFiles(lambda data: records.decode(data, what="ledger record"))

    def read(self) -> Containers:
        """Return all containers; only files that changed since the last call are decoded."""
        ledger = self._ledger()
        policies = self._policies_by_allocation()
        found = [
            _limited(allocation_id, policy, since)
            for allocation_id, (policy, since) in policies.items()
            if policy is not None and (ledger is None or policy.pod_uid in ledger)
        ]
        for record in (ledger or {}).values():
            for allocation in record.allocations if record is not None else ():
                policy, since = policies.get(allocation.allocation_id, (None, None))
                if record is not None and policy is None:
                    found.append(
                        _recorded(record, allocation, limited=since is not None, since=since)
                    )
        return Containers(found)

    def _ledger(self) -> dict[str, LedgerRecord | None] | None:
        """Return each pod's record by UID, None for one that cannot be read; None: no ledger."""
        names = _names(self._layout.ledger)
        if names is None:
            return None
        found: dict[str, LedgerRecord | None] = {}
        for name in names:
            uid = name.removesuffix(_RECORD)
            if name.endswith(_RECORD) and is_uid(uid):
                found[uid] = None
                with self._unreadable.concerning(f"ledger record of pod {uid}"):
                    read = self._records.read(self._layout.record(uid))
                    if read is None:
                        del found[uid]  # deleted since the folder was listed
                    else:
                        found[uid] = read[0]
        self._records.retain({str(self._layout.record(uid)) for uid in found})
        return found

    def _policies_by_allocation(self) -> dict[str, tuple[Policy | None, int | None]]:
        """Return policy and time of writing by allocation id.

        A time without a policy: the file cannot be read. Neither: there is no file.
        """
        found: dict[str, tuple[Policy | None, int | None]] = {}
        for allocation_id in filter(is_allocation_id, _names(self._layout.allocations) or ()):
            path = self._layout.policy(allocation_id)
            with self._unreadable.concerning(f"policy of allocation {allocation_id}"):
                found[allocation_id] = (None, 0)
                read = self._policies.read(path)
                found[allocation_id] = read if read is not None else (None, None)
        self._policies.retain({str(self._layout.policy(each)) for each in found})
        return found


class Unreadable:
    """Counts files that cannot be read, and logs each once for each reason."""

    def __init__(
        self, counter: prometheus_client.Counter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        #: By subject and reason, when it last happened; the latest at the end.
        self._reported: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def concerning(self, subject: str) -> Iterator[None]:
        """Report a file within that cannot be read, in place of raising; `subject` names it."""
        try:
            yield
        except UnreadableError as error:
            self.report(subject, error.reason, str(error))
        except files.UntrustedFileError as error:
            self.report(subject, "no_file", str(error))
        except wire_errors.WireError as error:
            self.report(subject, "content", str(error))
        except OSError as error:
            self.report(subject, "input_output", str(error))

    def report(self, subject: str, reason: str, detail: str) -> None:
        """Count a failure; log it if it is new."""
        self._counter.labels(reason).inc()
        now, key = self._clock(), (subject, reason)
        before = self._reported.pop(key, None)
        self._reported[key] = now
        if len(self._reported) > _MOST:
            self._reported.popitem(last=False)
        if before is None or now - before > _MENDED:
            _log.warning(
                "cannot read a file of a container; its numbers are left out",
                extra={"subject": subject, "reason": reason, "detail": detail},
            )


class _DecodedFiles(Generic[T]):
    """Files, each decoded once for each time that it is written."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._kept: dict[str, tuple[tuple[int, int, int], T]] = {}

    def read(self, path: Path) -> tuple[T, int] | None:
        """Return a file's content and its time of writing in nanoseconds; None: no such file."""
        key = os.fspath(path)
        try:
            status = os.stat(key)  # noqa: PTH116 - half the time of Path.stat, for every container
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            kept = self._kept.get(key)
            if kept is None or kept[0] != stamp:
                kept = self._kept[key] = (stamp, self._decode(path.read_bytes()))
        except FileNotFoundError:
            return None
        return kept[1], status.st_mtime_ns

    def retain(self, paths: set[str]) -> None:
        """Forget all other files."""
        if len(self._kept) > len(paths):
            self._kept = {path: kept for path, kept in self._kept.items() if path in paths}


def _names(folder: Path) -> list[str] | None:
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names
    except OSError:
        return None  # before the agent's first start there is no such folder


def _limited(allocation_id: str, policy: Policy, since: int | None) -> Container:
    return Container(
        key=Key(policy.pod_uid, policy.container),
        namespace=policy.pod_namespace,
        pod=policy.pod_name,
        shares=policy.shares,
        allocation_ids=(allocation_id,),
        limited=True,
        since=since or 0,
        generation=policy.generation,
    )


def _recorded(
    record: LedgerRecord, allocation: AllocationRecord, *, limited: bool, since: int | None
) -> Container:
    return Container(
        key=Key(record.uid, allocation.container),
        namespace=record.namespace,
        pod=record.name,
        shares=record.shares_of(allocation.container_index),
        allocation_ids=(allocation.allocation_id,),
        limited=limited,
        since=since or int(record.created * 1e9),
    )
