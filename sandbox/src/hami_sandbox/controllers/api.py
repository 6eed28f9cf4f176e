"""Requests of the controllers: JSON objects in and out, and paths made of kinds."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

import msgspec

from hami.kube import errors
from hami.kube.client import Client
from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kind import Kind

Object = dict[str, Any]


def path(kind: Kind, namespace: str = "", name: str = "", part: str = "") -> str:
    """Return where objects of a kind are, or one of them, or a part of it."""
    parts = [f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"]
    if kind.namespaced and namespace:
        parts += ["namespaces", _quoted(namespace)]
    parts.append(kind.resource)
    if name:
        parts.append(_quoted(name))
    if part:
        parts.append(part)
    return "/".join(parts)


def known(group: str, resource: str) -> Kind:
    """Return a kind that the server is known to have."""
    found = kinds.find(group, "v1", resource)
    assert found is not None, f"the server has no {resource}.{group}"
    return found


class Api:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, where: str) -> Object | None:
        """Return an object, or None if there is none."""
        try:
            return _object(await self._client.get(where))
        except errors.NotFound:
            return None

    async def items(self, where: str, **query: str) -> list[Object]:
        """Return the objects of a list as it is now."""
        answer = _object(await self._client.get(where, {k: v for k, v in query.items() if v}))
        items: list[Object] = answer.get("items") or []
        return items

    async def create(self, where: str, content: Mapping[str, Any]) -> Object:
        return _object(await self._client.create(where, msgspec.json.encode(content)))

    async def patch(self, where: str, patch: Mapping[str, Any]) -> Object:
        """Merge this into an object."""
        return _object(await self._client.patch(where, msgspec.json.encode(patch)))

    async def replace(self, where: str, content: Mapping[str, Any]) -> Object:
        return _object(await self._client.replace(where, msgspec.json.encode(content)))

    async def delete(self, where: str, *, uid: str = "", **options: Any) -> Object | None:
        """Delete an object, or all of a path; None if it is gone already or is another one now."""
        wish: Object = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        if uid:
            wish["preconditions"] = {"uid": uid}
        try:
            return _object(await self._client.delete(where, msgspec.json.encode(wish)))
        except (errors.NotFound, errors.Conflict):
            return None


def _object(body: bytes) -> Object:
    found: Object = msgspec.json.decode(body)
    return found


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
