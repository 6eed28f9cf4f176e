"""Paths of the API's objects, so that tests name things and not addresses."""

from __future__ import annotations

import urllib.parse


def core(
    resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None
) -> str:
    """Return a path under /api/v1; without a namespace it is cluster-wide."""
    return _object("/api/v1", resource, namespace, name, sub)


def group(
    version: str,
    resource: str,
    namespace: str | None = None,
    name: str | None = None,
    sub: str | None = None,
) -> str:
    """Return a path under /apis, for a group and version such as `apps/v1`."""
    return _object(f"/apis/{version}", resource, namespace, name, sub)


def pods(namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    return core("pods", namespace, name, sub)


def nodes(name: str | None = None, sub: str | None = None) -> str:
    return core("nodes", None, name, sub)


def namespaces(name: str | None = None, sub: str | None = None) -> str:
    return core("namespaces", None, name, sub)


def config_maps(namespace: str | None = None, name: str | None = None) -> str:
    return core("configmaps", namespace, name)


def leases(namespace: str | None = None, name: str | None = None) -> str:
    return group("coordination.k8s.io/v1", "leases", namespace, name)


def _object(
    base: str, resource: str, namespace: str | None, name: str | None, sub: str | None
) -> str:
    middle = ["namespaces", namespace] if namespace else []
    parts = [*middle, resource, *([name] if name else []), *([sub] if sub else [])]
    return "/".join([base, *(urllib.parse.quote(part, safe="") for part in parts)])
