"""The whole state in a file, and back: a cluster that is picked up where it was left.

The versions are kept, so clients may go on; the history is not, so those that were behind are told
that it is gone.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami.node import files
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store
from hami_sandbox.errors import SandboxError

_FORMAT = "hami.io/sandbox-snapshot/v1"


class _Kind(msgspec.Struct, frozen=True):
    group: str
    resource: str
    objects: list[Object]


class _Snapshot(msgspec.Struct, frozen=True):
    revision: int
    kinds: list[_Kind]
    format: str = _FORMAT


def write(store: Store, path: Path) -> None:
    """Write everything that is stored now; the file is there as a whole or not at all."""
    kinds = [
        _Kind(group, resource, [stored.object for _, stored in table.now(0).items()])
        for (group, resource), table in store.tables()
        if len(table)
    ]
    body = msgspec.json.encode(_Snapshot(store.revision, kinds))
    files.write_atomic(path, body, mode=0o600)  # secrets are in it


def read(store: Store, path: Path) -> None:
    """Let the store begin with what the file holds."""
    remedy = "give a file that a sandbox wrote, or remove it to begin with an empty cluster"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Snapshot)
    except msgspec.DecodeError as error:
        raise SandboxError(f"snapshot {path}", f"is none: {error}", remedy) from None
    if found.format != _FORMAT:
        raise SandboxError(f"snapshot {path}", f"has the format {found.format!r}", remedy)
    store.load(found.revision, [((k.group, k.resource), k.objects) for k in found.kinds])
