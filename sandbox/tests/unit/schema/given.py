"""Inputs of the schema tests: kinds by name, a time, small objects."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.schema import apply, defaults, schema

Object = dict[str, Any]

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(minutes=3)


def kind(name: str, api_version: str = "v1") -> Kind:
    found = kinds.of(api_version, name)
    assert found is not None, f"{api_version} {name} is not served"
    return found


POD, NODE, CONFIG_MAP = kind("Pod"), kind("Node"), kind("ConfigMap")
LEASE = kind("Lease", "coordination.k8s.io/v1")
DAEMON_SET, DEPLOYMENT = kind("DaemonSet", "apps/v1"), kind("Deployment", "apps/v1")


def named(of: Kind, name: str = "x", **fields: object) -> Object:
    return {"apiVersion": of.api_version, "kind": of.kind, "metadata": {"name": name}, **fields}


def pod(**spec: object) -> Object:
    return named(POD, spec={"containers": [{"name": "main", "image": "busybox:1"}], **spec})


def config_map(**data: str) -> Object:
    return named(CONFIG_MAP, data=data)


def settled(of: Kind, obj: Object) -> Object:
    schema.settle(of, obj)
    return obj


def complete(of: Kind, obj: Object) -> Object:
    """Give the object as a server would store it, without its identity."""
    schema.settle(of, obj)
    defaults.apply_defaults(of, obj, now=NOW)
    return obj


def applied(
    live: Object | None,
    wish: Object,
    manager: str,
    *,
    of: Kind = CONFIG_MAP,
    force: bool = False,
    now: dt.datetime = NOW,
    subresource: str = "",
) -> Object:
    return apply.applied(
        of,
        live,
        json.dumps(wish).encode(),
        manager=manager,
        force=force,
        now=now,
        subresource=subresource,
    )


def owners(obj: Object) -> dict[tuple[str, str], Any]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"]
        for entry in obj["metadata"].get("managedFields", [])
    }
