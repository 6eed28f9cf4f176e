"""Roles that every cluster has: what all may ask, and the four that users bind to."""

from __future__ import annotations

from typing import Any

from hami_sandbox.apiserver.refusals import Object

RBAC = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"

_INFO_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_DISCOVERY_PATHS = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_INFO_PATHS)
_SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")

_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "patch", "update")
_NAMED = (
    ("", ("configmaps", "endpoints", "pods", "serviceaccounts", "services")),
    (
        "apps",
        ("daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
    ),
    ("batch", ("jobs",)),
    ("policy", ("poddisruptionbudgets",)),
)
_SEEN = (
    ("", ("bindings", "events", "namespaces", "pods/log", "pods/status", "resourcequotas")),
    ("events.k8s.io", ("events",)),
    ("apps", ("daemonsets/status", "deployments/status", "replicasets/status")),
    ("batch", ("jobs/status",)),
)
_EDITED = (
    ("", ("events", "pods/eviction", "secrets", "serviceaccounts/token")),
    ("coordination.k8s.io", ("leases",)),
)


def _rules(parts: Any, verbs: tuple[str, ...]) -> list[Object]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources in parts
    ]


_VIEW = [*_rules(_NAMED, _READ), *_rules(_SEEN, _READ)]
_EDIT = [*_VIEW, *_rules(_EDITED, (*_READ, *_WRITE)), *_rules(_NAMED, _WRITE)]
_ADMIN = [*_EDIT, *_rules(((RBAC, ("roles", "rolebindings")),), (*_READ, *_WRITE))]
_ALL = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
_DISCOVERY = [{"nonResourceURLs": list(_DISCOVERY_PATHS), "verbs": ["get"]}]
_INFO = [{"nonResourceURLs": list(_INFO_PATHS), "verbs": ["get"]}]
_BASIC = [
    {
        "apiGroups": ["authentication.k8s.io", "authorization.k8s.io"],
        "resources": list(_SELF_REVIEWS),
        "verbs": ["create"],
    }
]

#: Rules that hold without being stored: role, groups, rules.
ALWAYS: tuple[tuple[str, tuple[str, ...], list[Object]], ...] = (
    ("system:discovery", (AUTHENTICATED,), _DISCOVERY),
    ("system:basic-user", (AUTHENTICATED,), _BASIC),
    ("system:public-info-viewer", (AUTHENTICATED, UNAUTHENTICATED), _INFO),
)


def _cluster_role(name: str, rules: list[Object]) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "rules": rules,
    }


#: What a new cluster has stored, so that users' bindings find them.
STORED: tuple[Object, ...] = (
    _cluster_role("cluster-admin", _ALL),
    _cluster_role("admin", _ADMIN),
    _cluster_role("edit", _EDIT),
    _cluster_role("view", _VIEW),
    {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {
            "name": "cluster-admin",
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        },
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": MASTERS}],
    },
)
