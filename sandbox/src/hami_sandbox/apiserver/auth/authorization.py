"""RBAC over stored and built-in roles; impersonation.

Members of system:masters may do everything. `kubectl --as` is allowed to users who may impersonate
that user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from hami_sandbox.apiserver.auth.users import UserInfo, View, service_account_groups
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request, forbidden

RBAC = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"


def has(listed: Sequence[str] | None, value: str) -> bool:
    return listed is not None and ("*" in listed or value in listed)


_ACCOUNT = "system:serviceaccount:"


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """What a user requests: a verb on a resource, or on a path of the server (`path`)."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def combined(self) -> str:
        """Return the resource as rules name it: `pods/log`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authorizer:
    def __init__(self, view: View) -> None:
        self._view = view

    def allows(self, user: UserInfo, attributes: Attributes) -> str | None:
        """Return the reason why it is allowed; None if it is not."""
        if MASTERS in user.groups:
            return ""
        for why, rule in self.rules(user, attributes.namespace):
            if _covers(rule, attributes):
                return f"RBAC: allowed by {why}"
        return None

    def require(self, user: UserInfo, attributes: Attributes) -> None:
        """Refuse what is not allowed."""
        if self.allows(user, attributes) is None:
            raise _refusal(user, attributes)

    def rules(self, user: UserInfo, namespace: str) -> Iterator[tuple[str, Object]]:
        """Yield every rule of a user, in a namespace and in the whole cluster."""
        for name, groups, rules in UNSTORED_ROLES:
            if set(groups) & set(user.groups):
                yield from ((f'ClusterRole "{name}"', rule) for rule in rules)
        for binding in self._view.all(RBAC, "clusterrolebindings"):
            yield from self._of_binding("ClusterRoleBinding", binding, user, "")
        if namespace:
            for binding in self._view.all(RBAC, "rolebindings", namespace):
                yield from self._of_binding("RoleBinding", binding, user, namespace)

    def _of_binding(
        self, kind: str, binding: Object, user: UserInfo, namespace: str
    ) -> Iterator[tuple[str, Object]]:
        subject = next(
            (each for each in binding.get("subjects") or () if _names(each, user, namespace)), None
        )
        if subject is None:
            return
        reference = binding["roleRef"]
        if reference["kind"] == "ClusterRole":
            role = self._view.find(RBAC, "clusterroles", "", reference["name"])
        else:
            role = self._view.find(RBAC, "roles", namespace, reference["name"])
        if role is None:
            return
        metadata = binding["metadata"]
        own = f"{metadata['name']}/{namespace}" if namespace else metadata["name"]
        who = subject["name"]
        if subject["kind"] == "ServiceAccount":
            who = f"{who}/{subject.get('namespace') or namespace}"
        why = f'{kind} "{own}" of {reference["kind"]} "{reference["name"]}"'
        for rule in role.get("rules") or ():
            yield f'{why} to {subject["kind"]} "{who}"', rule


def _names(subject: Object, user: UserInfo, namespace: str) -> bool:
    name = subject["name"]
    match subject["kind"]:
        case "User":
            return bool(name == user.username)
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            return user.username == f"{_ACCOUNT}{subject.get('namespace') or namespace}:{name}"
    return False


def _covers(rule: Object, attributes: Attributes) -> bool:
    if not has(rule.get("verbs"), attributes.verb):
        return False
    if attributes.path:
        return any(_is_under(attributes.path, url) for url in rule.get("nonResourceURLs") or ())
    wanted = rule.get("resourceNames")
    return (
        has(rule.get("apiGroups"), attributes.group)
        and _has_resource(rule.get("resources") or (), attributes)
        and (not wanted or attributes.name in wanted)
    )


def _has_resource(listed: Sequence[str], attributes: Attributes) -> bool:
    return (
        "*" in listed
        or attributes.combined in listed
        or (bool(attributes.subresource) and f"*/{attributes.subresource}" in listed)
    )


def _is_under(path: str, url: str) -> bool:
    return path.startswith(url[:-1]) if url.endswith("*") else path == url


def _refusal(user: UserInfo, attributes: Attributes) -> Refusal:
    if attributes.path:
        why = f'User "{user.username}" cannot {attributes.verb} path "{attributes.path}"'
        return forbidden(f"forbidden: {why}", {})
    where = (
        f'in the namespace "{attributes.namespace}"'
        if attributes.namespace
        else "at the cluster scope"
    )
    why = (
        f'User "{user.username}" cannot {attributes.verb} resource "{attributes.combined}" '
        f'in API group "{attributes.group}" {where}'
    )
    qualified = (
        f"{attributes.resource}.{attributes.group}" if attributes.group else attributes.resource
    )
    named = f'{qualified} "{attributes.name}"' if attributes.name else qualified
    details = {"name": attributes.name, "group": attributes.group, "kind": attributes.resource}
    return forbidden(
        f"{named} is forbidden: {why}", {key: value for key, value in details.items() if value}
    )


USER, GROUP, UID = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"

_AUTHENTICATION = "authentication.k8s.io"


def acting(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], user: UserInfo, authorizer: Authorizer
) -> UserInfo:
    """Return the user of a request: the impersonated one, where the headers name one."""
    name = headers.get(USER, "")
    groups = tuple(headers.getall(GROUP, ()))
    uid = headers.get(UID, "")
    if not name:
        if groups or uid:
            raise bad_request(
                f'requested to impersonate group or uid without a user: set the header "{USER}"'
            )
        return user
    for attributes in _required_attributes(name, groups, uid):
        authorizer.require(user, attributes)
    if name.startswith(_ACCOUNT) and not groups:
        groups = service_account_groups(name.split(":")[2])
    elif name != "system:anonymous" and AUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return UserInfo(username=name, uid=uid, groups=groups)


def _required_attributes(name: str, groups: tuple[str, ...], uid: str) -> list[Attributes]:
    required = []
    if name.startswith(_ACCOUNT) and name.count(":") == _ACCOUNT.count(":") + 1:
        namespace, account = name.removeprefix(_ACCOUNT).split(":")
        required.append(
            Attributes(
                verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account
            )
        )
    else:
        required.append(Attributes(verb="impersonate", resource="users", name=name))
    required += (Attributes(verb="impersonate", resource="groups", name=group) for group in groups)
    if uid:
        required.append(
            Attributes(verb="impersonate", group=_AUTHENTICATION, resource="uids", name=uid)
        )
    return required


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


def _role_rules(parts: Any, verbs: tuple[str, ...]) -> list[Object]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources in parts
    ]


_VIEW = [*_role_rules(_NAMED, _READ), *_role_rules(_SEEN, _READ)]


_EDIT = [*_VIEW, *_role_rules(_EDITED, (*_READ, *_WRITE)), *_role_rules(_NAMED, _WRITE)]


_ADMIN = [*_EDIT, *_role_rules(((RBAC, ("roles", "rolebindings")),), (*_READ, *_WRITE))]


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
UNSTORED_ROLES: tuple[tuple[str, tuple[str, ...], list[Object]], ...] = (
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


#: Roles that a new cluster has stored, for users' bindings.
STORED_ROLES: tuple[Object, ...] = (
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
