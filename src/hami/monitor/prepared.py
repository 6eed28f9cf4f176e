"""What the agent has prepared on this node: policies of tokens, and records of the ledger.

Both are the agent's own files. A policy says what the library in the container enforces; a record
knows containers that have none, which are those with whole cards and exempted ones. A token whose
pod has left the ledger is over, though its folder may still be there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from hami.monitor.containers import WHOLE, Container, Containers, Key, Share
from hami.monitor.unreadable import Unreadable
from hami.node import record as records
from hami.node.layout import NodeLayout, is_token, is_uid
from hami.node.record import Record, TokenRecord
from hami.wire import region
from hami.wire.region import Policy

_MIB = 2**20
_RECORD = ".json"

T = TypeVar("T")


class Prepared:
    def __init__(self, layout: NodeLayout, unreadable: Unreadable) -> None:
        self._layout = layout
        self._unreadable = unreadable
        self._policies = _Kept(region.decode_policy)
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

    def _ledger(self) -> dict[str, Record | None] | None:
        """Return each pod's record by UID, None for one that cannot be read; None: no ledger."""
        names = _names(self._layout.ledger)
        if names is None:
            return None
        found: dict[str, Record | None] = {}
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
        shares=tuple(
            Share(device.uuid, device.memory_limit, device.core_limit or WHOLE)
            for device in policy.devices
        ),
        tokens=(token,),
        limited=True,
        since=since or 0,
    )


def _recorded(record: Record, token: TokenRecord, *, limited: bool, since: int | None) -> Container:
    return Container(
        key=Key(record.uid, token.container),
        namespace=record.namespace,
        pod=record.name,
        shares=tuple(
            Share(grant.uuid, grant.memory * _MIB, grant.cores or WHOLE)
            for grant in record.grants_of(token.slot)
        ),
        tokens=(token.token,),
        limited=limited,
        since=since or int(record.created * 1e9),
    )
