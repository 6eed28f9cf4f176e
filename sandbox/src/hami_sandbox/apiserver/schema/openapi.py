"""OpenAPI documents, as far as kubectl reads them.

kubectl reads two things: whether PATCH of a kind takes `fieldValidation` (then it leaves the
checking of fields to the server), and how a kind's lists are merged. `kubectl explain` finds the
fields too, without their descriptions.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import patches, schema
from hami_sandbox.apiserver.schema.schema import Shape

_INFO = {"title": "Kubernetes", "version": "sandbox"}
_SCALARS: dict[str, Object] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "micro": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intstr": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object"},
}
_VERBS = {"get": "get", "create": "post", "update": "put", "patch": "patch", "delete": "delete"}
_QUERY = {
    "create": ("dryRun", "fieldManager", "fieldValidation"),
    "update": ("dryRun", "fieldManager", "fieldValidation"),
    "patch": ("dryRun", "fieldManager", "fieldValidation", "force"),
    "delete": ("dryRun", "gracePeriodSeconds", "propagationPolicy"),
}


def index(kinds: Sequence[Kind]) -> Object:
    """Return the answer of /openapi/v3."""
    paths = {}
    for path in dict.fromkeys(_path(kind) for kind in kinds):
        digest = hashlib.sha256(json.dumps(document(kinds, path)).encode()).hexdigest().upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document(kinds: Sequence[Kind], path: str) -> Object | None:
    """Return the document of `api/v1` or `apis/GROUP/VERSION`; None where there is none."""
    return _document(tuple(kinds), path)


@functools.lru_cache(maxsize=64)
def _document(kinds: tuple[Kind, ...], path: str) -> Object | None:
    found = [kind for kind in kinds if _path(kind) == path]
    if not found:
        return None
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": {key: value for kind in found for key, value in _operations(kind).items()},
        "components": {"schemas": _schemas(found, "#/components/schemas/")},
    }


def version_two(kinds: Sequence[Kind]) -> Object:
    """Return the answer of /openapi/v2."""
    return {
        "swagger": "2.0",
        "info": _INFO,
        "paths": {},
        "definitions": _schemas(list(kinds), "#/definitions/"),
    }


def _path(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _named(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _schema_name(group: str, name: str) -> str:
    part = group.partition(".")[0] or "core"
    return f"io.k8s.api.{part}.v1.{name.rpartition('/')[2]}"


def _operations(kind: Kind) -> Object:
    collection = f"/{_path(kind)}/" + ("namespaces/{namespace}/" if kind.namespaced else "")
    collection += kind.resource
    found: Object = {}
    for verb, method in _VERBS.items():
        if verb in kind.verbs:
            path = collection if verb == "create" else f"{collection}/{{name}}"
            found.setdefault(path, {})[method] = _operation(kind, verb)
    if "list" in kind.verbs:
        found.setdefault(collection, {})["get"] = _operation(kind, "list")
    return found


def _operation(kind: Kind, verb: str) -> Object:
    reference = {"$ref": f"#/components/schemas/{_schema_name(kind.group, kind.kind)}"}
    operation: Object = {
        "operationId": f"{verb}{kind.version.title()}{kind.kind}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _QUERY.get(verb, ())
        ],
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": reference}}}
        },
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": _named(kind),
    }
    if verb == "patch":
        media = (patches.APPLY, patches.JSON, patches.MERGE, patches.STRATEGIC)
        taken = [each for each in media if each != patches.STRATEGIC or not kind.custom]
        anything = {"schema": {"type": "object"}}
        operation["requestBody"] = {"content": dict.fromkeys(taken, anything), "required": True}
    elif verb in {"create", "update"}:
        operation["requestBody"] = {"content": {"*/*": {"schema": reference}}, "required": True}
    return operation


def _schemas(kinds: Sequence[Kind], prefix: str) -> Object:
    found: Object = {}
    for kind in kinds:
        shape = schema.of(kind)
        name = _schema_name(kind.group, kind.kind)
        found[name] = _struct(shape, prefix, found)
        found[name]["x-kubernetes-group-version-kind"] = [_named(kind)]
    return found


def _struct(shape: Shape, prefix: str, found: Object) -> Object:
    properties = {name: _schema(field, prefix, found) for name, field in shape.fields.items()}
    schema: Object = {"type": "object", "properties": properties}
    if shape.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    if shape.open:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    return schema


def _schema(shape: Shape, prefix: str, found: Object) -> Object:
    match shape.what:
        case "struct":
            name = _schema_name("", shape.name)
            if name not in found:
                found[name] = {}  # before its fields, one of which may lead back here
                found[name] = _struct(shape, prefix, found)
            return {"$ref": prefix + name}
        case "map":
            schema: Object = {
                "type": "object",
                "additionalProperties": _schema(shape.of, prefix, found),
            }
            if shape.atomic:
                schema["x-kubernetes-map-type"] = "atomic"
            return schema
        case "list":
            return _list(shape, prefix, found)
        case _:
            return dict(_SCALARS[shape.what])


def _list(shape: Shape, prefix: str, found: Object) -> Object:
    schema: Object = {"type": "array", "items": _schema(shape.of, prefix, found)}
    if shape.keys:
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = list(shape.keys)
    else:
        schema["x-kubernetes-list-type"] = "set" if shape.is_set else "atomic"
    if shape.merges:
        schema["x-kubernetes-patch-strategy"] = "merge"
    if shape.merge_key:
        schema["x-kubernetes-patch-merge-key"] = shape.merge_key
    return schema
