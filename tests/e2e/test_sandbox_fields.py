"""Fields of the sandbox's API server against Kubernetes' own description."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hami_sandbox.apiserver.kinds import KINDS, Kind
from hami_sandbox.apiserver.schema import schema
from hami_sandbox.apiserver.schema.schema import Shape
from tests.e2e.parts import catalogue
from tests.e2e.parts.api_schemas import api_schemas

RELEASE = "1.36"
DESCRIBED = [kind for kind in KINDS if not schema.of(kind).open]
_SCALARS = {
    "string": ("string", None),
    "int": ("integer", "int32"),
    "long": ("integer", "int64"),
    "bool": ("boolean", None),
    "bytes": ("string", "byte"),
    "time": "Time",
    "micro": "MicroTime",
    "quantity": "Quantity",
    "intstr": "IntOrString",
}

Schema = dict[str, Any]


@functools.cache
def definitions() -> Schema:
    path = catalogue.provide(api_schemas()) / f"{RELEASE}.json"
    found: Schema = json.loads(path.read_text())["definitions"]
    return found


def of(kind: Kind) -> Schema:
    wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    for found in definitions().values():
        if wanted in found.get("x-kubernetes-group-version-kind", []):
            return dict(found)
    raise AssertionError(f"Kubernetes {RELEASE} has no {wanted}")


def differences(
    shape: Shape, schema: Schema, path: str, seen: set[tuple[int, str]]
) -> Iterator[str]:
    name = schema.get("$ref", "").rpartition("/")[2]
    known = definitions()[name] if name else schema
    if shape.what == "any":
        return
    if shape.what == "struct":
        if (id(shape.fields), name or path) not in seen:
            seen.add((id(shape.fields), name or path))
            yield from _struct(shape, known, path, seen)
    elif shape.what == "list":
        yield from _list(shape, known, path)
        yield from differences(shape.of, known["items"], f"{path}[]", seen)
    elif shape.what == "map":
        if (known.get("x-kubernetes-map-type") == "atomic") != shape.atomic:
            yield f"{path}: an atomic map to one of both"
        yield from differences(shape.of, known["additionalProperties"], f"{path}{{}}", seen)
    else:
        found = name.rpartition(".")[2] if name else (known.get("type"), known.get("format"))
        if found != _SCALARS[shape.what]:
            yield f"{path}: {found}, not {shape.what}"


def _struct(shape: Shape, known: Schema, path: str, seen: set[tuple[int, str]]) -> Iterator[str]:
    if (known.get("x-kubernetes-map-type") == "atomic") != shape.atomic:
        yield f"{path}: an atomic struct to one of both"
    fields = known["properties"]
    for name in fields.keys() ^ shape.fields.keys():
        yield f"{path}.{name}: known to one of both"
    for name in fields.keys() & shape.fields.keys():
        yield from differences(shape.fields[name], fields[name], f"{path}.{name}", seen)


def _list(shape: Shape, known: Schema, path: str) -> Iterator[str]:
    ours = "map" if shape.keys else "set" if shape.is_set else "atomic"
    theirs = known.get("x-kubernetes-list-type") or "atomic"
    if (ours, list(shape.keys)) != (theirs, known.get("x-kubernetes-list-map-keys") or []):
        yield f"{path}: a list of kind {theirs}, not {ours}"
    strategy = "merge" in known.get("x-kubernetes-patch-strategy", "")
    key = known.get("x-kubernetes-patch-merge-key", "")
    if (strategy, key) != (shape.merges, shape.merge_key):
        yield f"{path}: merged {strategy} by {key or 'nothing'}"


@pytest.mark.parametrize("kind", DESCRIBED, ids=lambda kind: f"{kind.group}/{kind.kind}")
def test_a_kind_has_exactly_the_fields_that_kubernetes_has(kind: Kind) -> None:
    assert sorted(differences(schema.of(kind), of(kind), kind.kind, set())) == []
