"""Answers to requests that are no watches."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from aiohttp import web

from tests.scripted_api.faults import Fault, Recorded
from tests.scripted_api.selecting import selector
from tests.scripted_api.store import CLUSTER_WIDE, KINDS, Object, Refused, Store


class Place(NamedTuple):
    """What a path names."""

    resource: str
    #: None: across all namespaces.
    namespace: str | None
    name: str
    sub: str


class Rest(NamedTuple):
    """What is left of a list in pages."""

    version: int
    objects: list[Object]


def place(path: str) -> Place:
    parts = [part for part in path.split("/") if part]
    parts = parts[2:] if parts[:2] == ["api", "v1"] else parts[3:]
    namespace = None
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, sub = (*parts, "", "", "")[:3]
    if resource not in KINDS:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    if resource in CLUSTER_WIDE:
        namespace = ""
    return Place(resource, namespace, name, sub)


def status(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code < 400 else "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def refusal(refused: Refused) -> web.Response:
    body = status(refused.status, refused.reason, refused.message)
    return web.json_response(body, status=refused.status)


def scripted(fault: Fault) -> web.Response:
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["Retry-After"] = str(fault.retry_after)
    body = status(fault.status, fault.reason, fault.message)
    return web.json_response(body, status=fault.status, headers=headers)


def answer(store: Store, pages: dict[str, Rest], request: Recorded) -> Object:
    where = place(request.path)
    try:
        body: Any = json.loads(request.body) if request.body else None
    except ValueError as error:
        raise Refused(400, "BadRequest", f"the body is no JSON: {error}") from None
    if request.method == "GET":
        if not where.name:
            return _list(store, pages, where, request)
        return store.find(where.resource, where.namespace or "", where.name)
    return _write(store, where, request, body)


def _write(store: Store, where: Place, request: Recorded, body: Any) -> Object:
    resource, namespace = where.resource, where.namespace or ""
    match request.method, where.name, where.sub:
        case "POST", "", "":
            return store.create(resource, namespace, body)
        case "POST", name, "binding" if resource == "pods":
            store.bind(namespace, name, body)
            return status(201, "", "")
        case "POST", name, "eviction" if resource == "pods":
            options = body.get("deleteOptions") or {}
            store.delete(resource, namespace, name, options.get("preconditions"))
            return status(201, "", "")
        case "PUT", name, "":
            return store.replace(resource, namespace, name, body)
        case "PATCH", name, "" | "status":
            if request.headers.get("Content-Type") not in _PATCHES:
                raise Refused(415, "UnsupportedMediaType", "this patch type is not scripted")
            return store.patch(resource, namespace, name, body)
        case "DELETE", name, "" if name:
            store.delete(resource, namespace, name, (body or {}).get("preconditions"))
            return status(200, "", "")
    raise Refused(405, "MethodNotAllowed", "this is not scripted")


_PATCHES = {"application/merge-patch+json", "application/strategic-merge-patch+json"}


def selected(store: Store, where: Place, query: dict[str, str]) -> list[Object]:
    wanted = selector(query)
    return [
        obj
        for (namespace, _), obj in sorted(store.objects[where.resource].items())
        if where.namespace in (None, namespace) and wanted(obj)
    ]


def _list(store: Store, pages: dict[str, Rest], where: Place, request: Recorded) -> Object:
    token = request.query.get("continue")
    if token:
        if token not in pages:
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        version, objects = pages[token]
    else:
        version, objects = store.version, selected(store, where, dict(request.query))
    limit = int(request.query.get("limit") or 0)
    meta: Object = {"resourceVersion": str(version)}
    if 0 < limit < len(objects):
        following = secrets.token_hex(8)
        pages[following] = Rest(version, objects[limit:])
        objects = objects[:limit]
        meta["continue"] = following
    kind, group = KINDS[where.resource]
    return {"kind": f"{kind}List", "apiVersion": group, "metadata": meta, "items": objects}
