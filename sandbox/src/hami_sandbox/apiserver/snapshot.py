"""What a new cluster has before anybody wrote anything.

The whole state in a file, and back: a cluster that is picked up where it was left.
The versions are kept, so clients may go on; the history is not, so those that were behind are told
that it is gone.

What a new cluster has before anybody wrote anything.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec

from hami.node import files
from hami_sandbox.apiserver import kinds, preparation
from hami_sandbox.apiserver.auth import authorization
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import defaults
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.writes import copied
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


_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def add_built_in(store: Store) -> None:
    """Store what is missing of it."""
    now = dt.datetime.now(dt.UTC)
    for wish in (
        *map(_namespace, _NAMESPACES),
        *authorization.STORED_ROLES,
        *map(_priority, _PRIORITIES),
    ):
        content = copied(wish)
        kind = kinds.of(content["apiVersion"], content["kind"])
        assert kind is not None
        if store.table(kind.stored).get("", content["metadata"]["name"]) is not None:
            continue  # a snapshot had it
        defaults.apply_defaults(kind, content, now=now)
        preparation.identify(kind, content, now=now)
        defaults.prepare_create(kind, content, now=now)
        store.put(kind.stored, content, over=0)


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _priority(name: str) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": _PRIORITIES[name],
        "description": "Used for system critical pods that must not be moved.",
    }
