"""The state of the server in a file, and the objects of a new cluster.

A snapshot keeps the versions, so clients may go on. It does not keep the history: a watch that is
behind gets 410 and lists again.
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
    """Write everything that is stored now, atomically."""
    kinds = [
        _Kind(group, resource, [stored.object for _, stored in table.now(0).items()])
        for (group, resource), table in store.tables()
        if len(table)
    ]
    body = msgspec.json.encode(_Snapshot(store.revision, kinds))
    files.write_atomic(path, body, mode=0o600)  # secrets are in it


def read(store: Store, path: Path) -> None:
    """Load the store from a file."""
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
    """Store the objects that every new cluster has, where they are missing."""
    now = dt.datetime.now(dt.UTC)
    for built_in in (
        *map(_namespace, _NAMESPACES),
        *authorization.STORED_ROLES,
        *map(_priority, _PRIORITIES),
    ):
        content = copied(built_in)
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
