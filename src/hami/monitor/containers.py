"""Containers of this node with shares, as the agent prepared them.

Containers of this node that have a share of a card, and what they were given.

What could not be read: counted each time, told once.
Files that a tenant can write may hold anything. One that cannot be read costs its container the
numbers that would have come from it, and nobody else anything.

What the agent has prepared on this node: policies of tokens, and records of the ledger.
Both are the agent's own files. A policy says what the library in the container enforces; a record
knows containers that have none, which are those with whole cards and exempted ones. A token whose
pod has left the ledger is over, though its folder may still be there.
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
from hami.node.layout import NodeLayout, is_token, is_uid
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire import errors as wire_errors
from hami.wire import policy_file
from hami.wire.policy_file import Policy
from hami.wire.shares import Share


class Key(msgspec.Struct, frozen=True, order=True):
    """A container; another pod of the same name is another container."""

    uid: str
    container: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    namespace: str
    pod: str
    #: In the order in which the container sees its cards.
    shares: tuple[Share, ...]
    tokens: tuple[str, ...]
    #: Whether its processes are under the limiter; not so with whole cards, nor with an exemption.
    limited: bool
    #: Nanoseconds; of two that Prometheus would take for one, the younger counts.
    since: int = 0

    def share(self, card: str) -> tuple[int, Share] | None:
        """Return a card's index in the container, and the share of it; None: it has none."""
        for index, share in enumerate(self.shares):
            if share.card == card:
                return index, share
        return None


class Containers:
    """Those that the agent has prepared, by what leads to them."""

    def __init__(self, found: Iterable[Container]) -> None:
        self.by_key: dict[Key, Container] = {}
        self.by_token: dict[str, Container] = {}
        self.by_uid: dict[str, list[Container]] = {}
        for container in sorted(found, key=lambda each: each.since):
            had = self.by_key.get(container.key)
            # kubelet may have asked twice for one container: it has one state for each token.
            tokens = container.tokens + (had.tokens if had else ())
            self.by_key[container.key] = msgspec.structs.replace(container, tokens=tokens)
        for container in self.by_key.values():
            self.by_uid.setdefault(container.key.uid, []).append(container)
            for token in container.tokens:
                self.by_token[token] = container

    def __iter__(self) -> Iterator[Container]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)


_log = logging.getLogger(__name__)

#: Subjects and reasons that are remembered; a folder that a tenant fills must not fill us.
_MOST = 4096
#: Seconds without a failure after which the next one is news again.
_MENDED = 600.0


class UnreadableError(Exception):
    """A file cannot be used; `reason` is one word for the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class Unreadable:
    def __init__(
        self, counter: prometheus_client.Counter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        #: By subject and reason, when it last happened; the latest at the end.
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def concerning(self, subject: str) -> Iterator[None]:
        """Turn what cannot be read within into a number and, once, a line that names `subject`."""
        try:
            yield
        except UnreadableError as error:
            self.tell(subject, error.reason, str(error))
        except files.UntrustedFileError as error:
            self.tell(subject, "no_file", str(error))
        except wire_errors.WireError as error:
            self.tell(subject, "content", str(error))
        except OSError as error:
            self.tell(subject, "input_output", str(error))

    def tell(self, subject: str, reason: str, detail: str) -> None:
        self._counter.labels(reason).inc()
        now, key = self._clock(), (subject, reason)
        before = self._told.pop(key, None)
        self._told[key] = now
        if len(self._told) > _MOST:
            self._told.popitem(last=False)
        if before is None or now - before > _MENDED:
            _log.warning(
                "cannot be read; its numbers are left out",
                extra={"subject": subject, "reason": reason, "detail": detail},
            )


_RECORD = ".json"

T = TypeVar("T")


class Prepared:
    def __init__(self, layout: NodeLayout, unreadable: Unreadable) -> None:
        self._layout = layout
        self._unreadable = unreadable
        self._policies = _Kept(policy_file.decode)
        self._records = _Kept(lambda data: records.decode(data, what="ledger record"))

    def look(self) -> Containers:
        """Read what has changed since the last look."""
        ledger = self._ledger()
        policies = self._token_policies()
        found = [
            _limited(token, policy, since)
            for token, (policy, since) in policies.items()
            if policy is not None and (ledger is None or policy.pod_uid in ledger)
        ]
        for record in (ledger or {}).values():
            for token in record.tokens if record is not None else ():
                policy, since = policies.get(token.token, (None, None))
                if record is not None and policy is None:
                    found.append(_recorded(record, token, limited=since is not None, since=since))
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
                        del found[uid]  # gone since
                    else:
                        found[uid] = read[0]
        self._records.retain({str(self._layout.record(uid)) for uid in found})
        return found

    def _token_policies(self) -> dict[str, tuple[Policy | None, int | None]]:
        """Return each token's policy and its age; no policy but an age: it cannot be read."""
        found: dict[str, tuple[Policy | None, int | None]] = {}
        for token in filter(is_token, _names(self._layout.tokens) or ()):
            path = self._layout.policy(token)
            with self._unreadable.concerning(f"policy of token {token}"):
                found[token] = (None, 0)
                read = self._policies.read(path)
                found[token] = read if read is not None else (None, None)
        self._policies.retain({str(self._layout.policy(token)) for token in found})
        return found


class _Kept(Generic[T]):
    """Files decoded once for each time that they are written."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._kept: dict[str, tuple[tuple[int, int, int], T]] = {}

    def read(self, path: Path) -> tuple[T, int] | None:
        """Return what it holds and when it was written; None: there is none."""
        key = os.fspath(path)
        try:
            status = os.stat(key)  # noqa: PTH116 - half the time of Path.stat, for every container
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            had = self._kept.get(key)
            if had is None or had[0] != stamp:
                had = self._kept[key] = (stamp, self._decode(path.read_bytes()))
        except FileNotFoundError:
            return None
        return had[1], status.st_mtime_ns

    def retain(self, paths: set[str]) -> None:
        if len(self._kept) > len(paths):
            self._kept = {path: kept for path, kept in self._kept.items() if path in paths}


def _names(folder: Path) -> list[str] | None:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return None  # before the agent's first start there is no such folder


def _limited(token: str, policy: Policy, since: int | None) -> Container:
    return Container(
        key=Key(policy.pod_uid, policy.container),
        namespace=policy.pod_namespace,
        pod=policy.pod_name,
        shares=policy.shares,
        tokens=(token,),
        limited=True,
        since=since or 0,
    )


def _recorded(
    record: LedgerRecord, token: AllocationRecord, *, limited: bool, since: int | None
) -> Container:
    return Container(
        key=Key(record.uid, token.container),
        namespace=record.namespace,
        pod=record.name,
        shares=record.grants_of(token.slot),
        tokens=(token.token,),
        limited=limited,
        since=since or int(record.created * 1e9),
    )
