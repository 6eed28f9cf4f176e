"""The API server's gate as the chart installs it: RBAC, then admission policies.

Roles and policies are those that Helm renders; the sandbox's authorizer and CEL evaluate them. So a
right that the chart gives away, or a key that a policy forgets, lets an attack through here.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from hami_sandbox.apiserver.auth import authorization, cel
from hami_sandbox.apiserver.auth.authorization import RBAC, Attributes, Authorizer
from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.refusals import Refusal
from tests.attacks.attack import Result
from tests.chart import rendering

Object = dict[str, Any]
#: User, verb, resource, the object before and after.
Request = tuple[UserInfo, str, str, Object | None, Object | None]

NODE_CLAIM = "authentication.kubernetes.io/node-name"
OF_THE_API = "writes that the API server takes"
_ACCOUNT = f"system:serviceaccount:{rendering.NAMESPACE}:hami-device-plugin"
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}
#: Verb of RBAC -> operation of admission.
_OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}


def agent_of(node: str) -> UserInfo:
    """Return the agent's account with the token that kubelet mounts into its pod on a node."""
    return UserInfo(
        username=_ACCOUNT,
        groups=("system:serviceaccounts", authorization.AUTHENTICATED),
        extra={NODE_CLAIM: (node,)},
    )


def account(name: str, node: str = "") -> UserInfo:
    """Return a user, with a token that names a node or none."""
    groups = ("system:serviceaccounts", authorization.AUTHENTICATED)
    extra = {NODE_CLAIM: (node,)} if node else {}
    return UserInfo(username=name, groups=groups, extra=extra)


#: A user with Kubernetes' own role `edit` in every namespace.
EDITOR = UserInfo(username="jane", groups=("editors", authorization.AUTHENTICATED))


class _View:
    def __init__(self, objects: Iterable[Object]) -> None:
        self._objects = list(objects)

    def find(self, group: str, resource: str, namespace: str, name: str) -> Object | None:
        found = self.all(group, resource, namespace)
        return next((each for each in found if each["metadata"]["name"] == name), None)

    def all(self, group: str, resource: str, namespace: str = "") -> Iterable[Object]:
        assert group == RBAC
        return [
            each
            for each in self._objects
            if _PLURALS.get(each["kind"]) == resource
            and namespace in ("", each["metadata"].get("namespace", ""))
        ]


class Gate:
    """What an account may do on a cluster with the chart's default values, or others."""

    def __init__(self, values: rendering.Values | None = None) -> None:
        objects = rendering.render(values).objects
        editors: Object = {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "editors"},
            "roleRef": {"kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "Group", "name": "editors"}],
        }
        self._authorizer = Authorizer(_View([*objects, *authorization.STORED_ROLES, editors]))
        self._policies = [e for e in objects if e["kind"] == "ValidatingAdmissionPolicy"]
        assert len(self._policies) >= 2

    def asks(
        self,
        user: UserInfo,
        verb: str,
        resource: str,
        *,
        group: str = "",
        namespace: str = "",
        old: Object | None = None,
        new: Object | None = None,
    ) -> str:
        """Return why a request is refused; empty: it is not."""
        name = ((old or new or {}).get("metadata") or {}).get("name", "")
        plain, _, subresource = resource.partition("/")
        asked = Attributes(
            verb=verb,
            group=group,
            resource=plain,
            subresource=subresource,
            namespace=namespace,
            name=name,
        )
        try:
            self._authorizer.require(user, asked)
        except Refusal as refusal:
            return refusal.message
        return self.judges((user, verb, resource, old, new))

    def judges(self, request: Request) -> str:
        """Return why a policy refuses a request of an account with every right; empty: none."""
        for policy in self._policies:
            if why := _denied(policy["spec"], request):
                return f"ValidatingAdmissionPolicy '{policy['metadata']['name']}': {why}"
        return ""

    def tries(self, *requests: Request, **options: Any) -> Result:
        """Count the requests that get through."""
        refusals = [
            self.asks(user, verb, resource, old=old, new=new, **options)
            for user, verb, resource, old, new in requests
        ]
        assert refusals
        return Result(refusals.count(""), OF_THE_API, next(filter(None, refusals), ""))


@functools.cache
def default_gate() -> Gate:
    return Gate()


def merged(old: Object, change: Mapping[str, Any]) -> Object:
    """Return an object after a merge patch."""
    made = copy.deepcopy(old)
    for key, value in change.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            made[key] = merged(made.get(key) or {}, value)
        else:
            made[key] = copy.deepcopy(value)
    return made


def _denied(spec: Object, request: Request) -> str:
    """Return why a policy refuses a request; empty: it does not, or is not asked."""
    user, verb, resource, old, new = request
    rules = spec["matchConstraints"]["resourceRules"]
    operation = _OPERATIONS.get(verb, "")
    if not any(resource in r["resources"] and operation in r["operations"] for r in rules):
        return ""
    known: Object = {
        "object": new,
        "oldObject": old,
        "request": {"userInfo": user.as_object(), "operation": operation},
    }
    try:
        if not all(cel.compiled(c["expression"])(**known) for c in spec["matchConditions"]):
            return ""
        known["variables"] = {}
        for each in spec["variables"]:
            known["variables"][each["name"]] = cel.compiled(each["expression"])(**known)
        for validation in spec["validations"]:
            if not cel.compiled(validation["expression"])(**known):
                return str(cel.compiled(validation["messageExpression"])(**known))
    except cel.CelError as error:
        return f"failed: {error}"  # failurePolicy: Fail
    return ""
