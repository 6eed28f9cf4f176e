"""Paths of objects and lists on an API server."""

from __future__ import annotations

import urllib.parse


def pods(namespace: str | None = None, name: str | None = None) -> str:
    return _core("pods", namespace, name)


def binding(namespace: str, name: str) -> str:
    return f"{pods(namespace, name)}/binding"


def eviction(namespace: str, name: str) -> str:
    return f"{pods(namespace, name)}/eviction"


def node_status(name: str) -> str:
    return f"{nodes(name)}/status"


def nodes(name: str | None = None) -> str:
    return _core("nodes", None, name)


def quotas(namespace: str | None = None, name: str | None = None) -> str:
    return _core("resourcequotas", namespace, name)


def events(namespace: str, name: str | None = None) -> str:
    return _core("events", namespace, name)


def secrets(namespace: str, name: str | None = None) -> str:
    return _core("secrets", namespace, name)


def mutating_webhooks(name: str) -> str:
    """Return where the MutatingWebhookConfiguration of this name is."""
    base = "/apis/admissionregistration.k8s.io/v1"
    return _path(base, "mutatingwebhookconfigurations", None, name)


def lease(namespace: str, name: str) -> str:
    return _path("/apis/coordination.k8s.io/v1", "leases", namespace, name)


def leases(namespace: str | None = None) -> str:
    return _path("/apis/coordination.k8s.io/v1", "leases", namespace, None)


def _core(resource: str, namespace: str | None, name: str | None) -> str:
    return _path("/api/v1", resource, namespace, name)


def _path(base: str, resource: str, namespace: str | None, name: str | None) -> str:
    parts = [base]
    if namespace:
        parts += ["namespaces", _quoted(namespace)]
    parts.append(resource)
    if name:
        parts.append(_quoted(name))
    return "/".join(parts)


def _quoted(part: str) -> str:
    # A name from outside must not lead into another path.
    return urllib.parse.quote(part, safe="")
