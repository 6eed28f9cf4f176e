"""Paths and methods: which kind, namespace, object and verb a request means."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable

import msgspec

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Refusal

Find = Callable[[str, str, str], Kind | None]

_CORE_PARTS = 2  # api, version
_GROUP_PARTS = 3  # apis, group, version
_NAME_AT, _SUB_AT = 1, 2
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACES = "namespaces"
_OF_NAMESPACE = frozenset(["status", "finalize"])


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a path names. Without a resource it is no object's path, but one of the server's."""

    path: str
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    kind: Kind | None = None


def parse(method: str, path: str, *, watch: bool, find: Find) -> Target:
    """Return what is asked for; the kind is None where there is no such thing."""
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > _CORE_PARTS:
        group, version, rest = "", parts[1], parts[_CORE_PARTS:]
    elif parts[0] == "apis" and len(parts) > _GROUP_PARTS:
        group, version, rest = parts[1], parts[2], parts[_GROUP_PARTS:]
    else:
        return Target(path=path, verb=method.lower())
    namespace = ""
    if rest[0] == _NAMESPACES and len(rest) > _SUB_AT and rest[_SUB_AT] not in _OF_NAMESPACE:
        namespace, rest = rest[1], rest[2:]
    resource = rest[0]
    name = rest[_NAME_AT] if len(rest) > _NAME_AT else ""
    subresource = "/".join(rest[_SUB_AT:])
    kind = find(group, version, resource)
    if kind is not None and not _fits(kind, namespace, name, subresource):
        kind = None
    return Target(
        path=path,
        verb=_verb(method, name, watch=watch),
        group=group,
        version=version,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        kind=kind,
    )


def require(target: Target) -> Kind:
    """Return the kind, if its path takes the verb."""
    kind = target.kind
    if kind is None:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    sub = kind.subresource(target.subresource) if target.subresource else None
    verbs = kind.verbs if sub is None else sub.verbs
    if target.verb not in verbs or (target.verb == "create" and target.name and sub is None):
        message = "the server does not allow this method on the requested resource"
        raise Refusal(405, "MethodNotAllowed", message)
    if kind.namespaced and not target.namespace and not _across(target):
        message = "the server does not allow this method on the requested resource"
        raise Refusal(405, "MethodNotAllowed", message)
    return kind


def _fits(kind: Kind, namespace: str, name: str, subresource: str) -> bool:
    """Whether the kind has such a path at all."""
    if subresource and kind.subresource(subresource) is None:
        return False
    if namespace and not kind.namespaced:
        return False
    return not (name and kind.namespaced and not namespace)


def _across(target: Target) -> bool:
    """Whether it can be asked of all namespaces at once."""
    return target.verb in {"list", "watch", "deletecollection"}


def _verb(method: str, name: str, *, watch: bool) -> str:
    if method in {"GET", "HEAD"}:
        if watch:
            return "watch"
        return "get" if name else "list"
    if method == "DELETE" and not name:
        return "deletecollection"
    if method == "PUT" and not name:
        return "replace"  # of a collection: there is no such thing
    return _VERBS.get(method, method.lower())
