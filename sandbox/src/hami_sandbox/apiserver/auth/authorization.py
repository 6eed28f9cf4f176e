"""RBAC over the stored roles and bindings.

Rules of roles and webhooks: lists in which a star stands for everything.

Who may do what: RBAC over the stored roles and bindings; system:masters may all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from hami_sandbox.apiserver.auth import roles
from hami_sandbox.apiserver.auth.users import UserInfo, View
from hami_sandbox.apiserver.refusals import Object, Refusal, forbidden


def has(listed: Sequence[str] | None, value: str) -> bool:
    return listed is not None and ("*" in listed or value in listed)


_ACCOUNT = "system:serviceaccount"


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to do: with a resource, or with a path that is none (`path`)."""

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

    def allows(self, user: UserInfo, wish: Attributes) -> str | None:
        """Return why it is allowed, in words; None if it is not."""
        if roles.MASTERS in user.groups:
            return ""
        for why, rule in self.rules(user, wish.namespace):
            if _covers(rule, wish):
                return f"RBAC: allowed by {why}"
        return None

    def require(self, user: UserInfo, wish: Attributes) -> None:
        """Refuse what is not allowed."""
        if self.allows(user, wish) is None:
            raise _refusal(user, wish)

    def rules(self, user: UserInfo, namespace: str) -> Iterator[tuple[str, Object]]:
        """Give every rule that counts for a user, in a namespace and in the whole cluster."""
        for name, groups, rules in roles.ALWAYS:
            if set(groups) & set(user.groups):
                yield from ((f'ClusterRole "{name}"', rule) for rule in rules)
        for binding in self._view.all(roles.RBAC, "clusterrolebindings"):
            yield from self._of_binding("ClusterRoleBinding", binding, user, "")
        if namespace:
            for binding in self._view.all(roles.RBAC, "rolebindings", namespace):
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
            role = self._view.find(roles.RBAC, "clusterroles", "", reference["name"])
        else:
            role = self._view.find(roles.RBAC, "roles", namespace, reference["name"])
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
            return user.username == f"{_ACCOUNT}:{subject.get('namespace') or namespace}:{name}"
    return False


def _covers(rule: Object, wish: Attributes) -> bool:
    if not has(rule.get("verbs"), wish.verb):
        return False
    if wish.path:
        return any(_is_under(wish.path, url) for url in rule.get("nonResourceURLs") or ())
    wanted = rule.get("resourceNames")
    return (
        has(rule.get("apiGroups"), wish.group)
        and _has_resource(rule.get("resources") or (), wish)
        and (not wanted or wish.name in wanted)
    )


def _has_resource(listed: Sequence[str], wish: Attributes) -> bool:
    return (
        "*" in listed
        or wish.combined in listed
        or (bool(wish.subresource) and f"*/{wish.subresource}" in listed)
    )


def _is_under(path: str, url: str) -> bool:
    return path.startswith(url[:-1]) if url.endswith("*") else path == url


def _refusal(user: UserInfo, wish: Attributes) -> Refusal:
    if wish.path:
        told = f'User "{user.username}" cannot {wish.verb} path "{wish.path}"'
        return forbidden(f"forbidden: {told}", {})
    where = f'in the namespace "{wish.namespace}"' if wish.namespace else "at the cluster scope"
    told = (
        f'User "{user.username}" cannot {wish.verb} resource "{wish.combined}" '
        f'in API group "{wish.group}" {where}'
    )
    qualified = f"{wish.resource}.{wish.group}" if wish.group else wish.resource
    named = f'{qualified} "{wish.name}"' if wish.name else qualified
    details = {"name": wish.name, "group": wish.group, "kind": wish.resource}
    return forbidden(
        f"{named} is forbidden: {told}", {key: value for key, value in details.items() if value}
    )
