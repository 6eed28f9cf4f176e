"""Objects and writes for tests of the API server's inside."""

from __future__ import annotations

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.table import Stored

MAPS = ("", "configmaps")


def kind(name: str, api_version: str = "v1") -> Kind:
    found = kinds.of(api_version, name)
    assert found is not None
    return found


def config_map(name: str, namespace: str = "default", **fields: object) -> Object:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, **fields},
    }


def write(store: Store, name: str, namespace: str = "default", **fields: object) -> Stored:
    """Store a config map over whatever is there under its name."""
    found = store.table(MAPS).get(namespace, name)
    over = 0 if found is None else found.revision
    return store.put(MAPS, config_map(name, namespace, **fields), over=over)


def remove(store: Store, name: str, namespace: str = "default") -> Stored:
    found = store.table(MAPS).get(namespace, name)
    assert found is not None
    return store.remove(MAPS, namespace, name, over=found.revision)
