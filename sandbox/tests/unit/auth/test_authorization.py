"""Roles: what they allow, and the words of a refusal."""

from __future__ import annotations

import pytest

from hami_sandbox.apiserver.auth import authorization
from hami_sandbox.apiserver.auth.authorization import Attributes, Authorizer
from hami_sandbox.apiserver.auth.users import ANONYMOUS, UserInfo
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.auth.memory_view import MemoryView, Object

ROBOT = UserInfo(
    username="system:serviceaccount:n:robot", groups=("system:authenticated", "system:robots")
)
ACCOUNT = {"kind": "ServiceAccount", "name": "robot", "namespace": "n"}


def bind(view: MemoryView, rule: Object, subject: Object, *, cluster: bool = False) -> None:
    """Give a subject a role with one rule, in the namespace n or everywhere."""
    place = {} if cluster else {"namespace": "n"}
    kind = "ClusterRole" if cluster else "Role"
    view.put(f"{kind.lower()}s", {"metadata": {"name": "r"} | place, "rules": [rule]}, group=RBAC)
    view.put(
        f"{kind.lower()}bindings",
        {
            "metadata": {"name": "b"} | place,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": "r"},
            "subjects": [subject],
        },
        group=RBAC,
    )


RBAC = authorization.RBAC


def rule(verbs: str, resources: str, group: str = "", names: str = "") -> Object:
    made: Object = {
        "apiGroups": [group],
        "verbs": verbs.split(),
        "resources": resources.split(),
    }
    return made | ({"resourceNames": names.split()} if names else {})


def wish(verb: str, resource: str, name: str = "", namespace: str = "n") -> Attributes:
    resource, _, part = resource.partition("/")
    return Attributes(
        verb=verb, resource=resource, subresource=part, name=name, namespace=namespace
    )


def test_without_a_role_only_what_everybody_may_is_allowed() -> None:
    authorizer = Authorizer(MemoryView())
    for path in ("/healthz", "/version"):
        assert authorizer.allows(ANONYMOUS, Attributes(verb="get", path=path)) is not None
    for path in ("/api", "/apis/apps/v1"):
        asked = Attributes(verb="get", path=path)
        assert authorizer.allows(ANONYMOUS, asked) is None
        assert authorizer.allows(ROBOT, asked) is not None
    review = Attributes(
        verb="create", group="authorization.k8s.io", resource="selfsubjectaccessreviews"
    )
    assert authorizer.allows(ROBOT, review) is not None
    assert authorizer.allows(ROBOT, wish("list", "pods")) is None


def test_masters_may_all() -> None:
    user = UserInfo(username="admin", groups=("system:masters",))
    authorizer = Authorizer(MemoryView())
    assert authorizer.allows(user, wish("delete", "nodes", "a", "")) is not None
    assert authorizer.allows(user, Attributes(verb="post", path="/sandbox/compact")) is not None


@pytest.mark.parametrize(
    ("given", "asked", "allowed"),
    [
        (rule("get list", "pods"), wish("get", "pods", "p"), True),
        (rule("get list", "pods"), wish("watch", "pods"), False),
        (rule("get list", "pods"), wish("get", "pods/log", "p"), False),
        (rule("get", "pods/log"), wish("get", "pods/log", "p"), True),
        (rule("patch", "*/status"), wish("patch", "pods/status", "p"), True),
        (rule("patch", "*/status"), wish("patch", "pods", "p"), False),
        (rule("*", "*"), wish("create", "pods/binding", "p"), True),
        (rule("get", "pods", "apps"), wish("get", "pods", "p"), False),
        (rule("get", "pods", "*"), wish("get", "pods", "p"), True),
        (rule("get list", "pods", names="a b"), wish("get", "pods", "b"), True),
        (rule("get list", "pods", names="a b"), wish("get", "pods", "c"), False),
        (rule("get list", "pods", names="a b"), wish("list", "pods"), False),
        (rule("get", "pods"), wish("get", "pods", "p", "other"), False),
        (rule("get", "pods"), wish("get", "pods", "p", ""), False),
    ],
)
def test_a_role_allows_what_its_rules_cover(
    given: Object, asked: Attributes, allowed: bool
) -> None:
    view = MemoryView()
    bind(view, given, ACCOUNT)
    assert (Authorizer(view).allows(ROBOT, asked) is not None) is allowed


@pytest.mark.parametrize(
    ("subject", "meant"),
    [
        (ACCOUNT, True),
        ({"kind": "ServiceAccount", "name": "robot"}, True),  # of the binding's own namespace
        ({"kind": "ServiceAccount", "name": "robot", "namespace": "other"}, False),
        ({"kind": "User", "name": ROBOT.username}, True),
        ({"kind": "Group", "name": "system:robots"}, True),
        ({"kind": "Group", "name": "system:masters"}, False),
    ],
)
def test_a_binding_means_its_subjects(subject: Object, meant: bool) -> None:
    view = MemoryView()
    bind(view, rule("get", "pods"), subject)
    found = Authorizer(view).allows(ROBOT, wish("get", "pods", "p"))
    assert (found is not None) is meant


def test_a_cluster_role_counts_everywhere_and_a_reason_is_given() -> None:
    view = MemoryView()
    bind(view, rule("get", "pods"), {"kind": "Group", "name": "system:robots"}, cluster=True)
    authorizer = Authorizer(view)
    assert authorizer.allows(ROBOT, wish("get", "pods", "p", "other")) == (
        'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "system:robots"'
    )


def test_a_cluster_role_bound_in_a_namespace_counts_there() -> None:
    view = MemoryView()
    for content in authorization.STORED_ROLES:
        resource = f"{content['kind'].lower()}s"
        view.put(resource, {**content, "metadata": dict(content["metadata"])}, group=RBAC)
    view.put(
        "rolebindings",
        {
            "metadata": {"name": "b", "namespace": "n"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
            "subjects": [ACCOUNT],
        },
        group=RBAC,
    )
    authorizer = Authorizer(view)
    assert authorizer.allows(ROBOT, wish("create", "pods")) is not None
    assert authorizer.allows(ROBOT, wish("get", "pods/log", "p")) is not None
    assert authorizer.allows(ROBOT, wish("create", "pods", "", "other")) is None
    assert authorizer.allows(ROBOT, wish("create", "nodes", "", "")) is None


def test_a_binding_without_its_role_allows_nothing() -> None:
    view = MemoryView()
    bind(view, rule("get", "pods"), ACCOUNT)
    view.remove("roles", "n", "r", group=RBAC)
    assert Authorizer(view).allows(ROBOT, wish("get", "pods", "p")) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            wish("list", "pods"),
            (
                f'pods is forbidden: User "{ROBOT.username}" cannot list resource "pods" '
                'in API group "" in the namespace "n"'
            ),
        ),
        (
            wish("get", "pods/log", "p"),
            (
                f'pods "p" is forbidden: User "{ROBOT.username}" cannot get resource "pods/log" in '
                'API group "" in the namespace "n"'
            ),
        ),
        (
            Attributes(verb="get", group="apps", resource="deployments", name="d"),
            (
                f'deployments.apps "d" is forbidden: User "{ROBOT.username}" cannot get resource '
                '"deployments" in API group "apps" at the cluster scope'
            ),
        ),
        (
            Attributes(verb="get", path="/metrics"),
            f'forbidden: User "{ROBOT.username}" cannot get path "/metrics"',
        ),
    ],
)
def test_a_refusal_says_who_wanted_what(asked: Attributes, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        Authorizer(MemoryView()).require(ROBOT, asked)
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    assert caught.value.message == message
