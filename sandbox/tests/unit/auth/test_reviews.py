"""Questions about users, tokens and rights."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from hami_sandbox.apiserver.auth import authorization
from hami_sandbox.apiserver.auth.authorization import Authorizer
from hami_sandbox.apiserver.auth.reviews import Reviews
from hami_sandbox.apiserver.auth.users import AUDIENCE, Authenticator, UserInfo
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.auth.memory_view import MemoryView, Object

ADMIN = UserInfo(username="admin", groups=("system:masters", "system:authenticated"))
ROBOT = UserInfo(username="robot", groups=("system:authenticated",))
NOW = 1_800_000_000.0


@pytest.fixture
def view() -> MemoryView:
    view = MemoryView()
    view.put("serviceaccounts", {"metadata": {"name": "robot", "namespace": "n"}})
    return view


@pytest.fixture
def reviews(view: MemoryView) -> Reviews:
    authenticator = Authenticator(view, [], key=b"k", clock=lambda: NOW)
    return Reviews(view, authenticator, Authorizer(view))


def may(reviews: Reviews, user: UserInfo, **attributes: str) -> Object:
    body = {"spec": {"resourceAttributes": attributes}}
    status: Object = reviews.answer("selfsubjectaccessreviews", body, user=user)["status"]
    return status


def test_a_token_comes_with_its_end_and_opens_what_it_is_for(reviews: Reviews) -> None:
    wish = {"spec": {"expirationSeconds": 600, "audiences": ["hami"]}}
    made = reviews.token("n", "robot", wish)
    assert (made["kind"], made["apiVersion"]) == ("TokenRequest", "authentication.k8s.io/v1")
    assert made["status"]["expirationTimestamp"] == "2027-01-15T08:10:00Z"
    spec = {"token": made["status"]["token"], "audiences": ["hami", "other"]}
    answer = reviews.answer("tokenreviews", {"spec": spec}, user=ADMIN)
    assert answer["status"]["authenticated"] is True
    assert answer["status"]["audiences"] == ["hami"]
    assert answer["status"]["user"]["username"] == "system:serviceaccount:n:robot"


def test_a_token_lasts_an_hour_unless_told_and_is_for_the_server(reviews: Reviews) -> None:
    made = reviews.token("n", "robot", {})
    assert made["spec"] == {
        "audiences": [AUDIENCE],
        "expirationSeconds": 3600,
        "boundObjectRef": None,
    }


def test_a_token_for_less_than_ten_minutes_or_for_nobody_is_refused(reviews: Reviews) -> None:
    with pytest.raises(Refusal, match=r"422 Invalid.*less than 10 minutes"):
        reviews.token("n", "robot", {"spec": {"expirationSeconds": 599}})
    with pytest.raises(Refusal, match="404 NotFound"):
        reviews.token("n", "other", {})
    bound = {"boundObjectRef": {"kind": "Pod", "name": "p"}}
    with pytest.raises(Refusal, match='404 NotFound: pods "p" not found'):
        reviews.token("n", "robot", {"spec": bound})


def test_an_unknown_token_is_nobodys(reviews: Reviews) -> None:
    answer = reviews.answer("tokenreviews", {"spec": {"token": "x"}}, user=ADMIN)
    assert not answer["status"].get("authenticated")
    assert answer["status"]["error"]


def test_who_asks_who_he_is_is_told(reviews: Reviews) -> None:
    answer = reviews.answer("selfsubjectreviews", {}, user=ROBOT)
    assert answer["status"]["userInfo"] == {
        "username": "robot",
        "groups": ["system:authenticated"],
    }


def test_an_access_review_answers_what_a_request_would(view: MemoryView, reviews: Reviews) -> None:
    assert may(reviews, ADMIN, verb="list", resource="pods", namespace="n") == {"allowed": True}
    asked = {"verb": "list", "resource": "pods", "namespace": "n"}
    assert may(reviews, ROBOT, **asked) == {"allowed": False}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    view.put("clusterroles", {"metadata": {"name": "r"}, "rules": [rule]}, group=authorization.RBAC)
    view.put(
        "clusterrolebindings",
        {
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "robot"}],
        },
        group=authorization.RBAC,
    )
    assert may(reviews, ROBOT, **asked)["allowed"] is True
    other = {"spec": {"user": "robot", "resourceAttributes": asked}}
    for resource in ("subjectaccessreviews", "localsubjectaccessreviews"):
        answer = reviews.answer(resource, other, user=ADMIN, namespace="n")
        assert 'RBAC: allowed by ClusterRoleBinding "b"' in answer["status"]["reason"]
    path = {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}}
    answer = reviews.answer("selfsubjectaccessreviews", path, user=ROBOT)
    assert answer["status"]["allowed"] is True


def test_a_rules_review_lists_what_a_user_may(view: MemoryView, reviews: Reviews) -> None:
    answer = reviews.answer("selfsubjectrulesreviews", {"spec": {"namespace": "n"}}, user=ROBOT)
    resources = [name for each in answer["status"]["resourceRules"] for name in each["resources"]]
    paths = [
        url for each in answer["status"]["nonResourceRules"] for url in each["nonResourceURLs"]
    ]
    assert "selfsubjectaccessreviews" in resources
    assert "/healthz" in paths


def test_a_review_of_nothing_is_refused(reviews: Reviews) -> None:
    with pytest.raises(Refusal, match="422 Invalid"):
        reviews.answer("selfsubjectaccessreviews", {"spec": {}}, user=ROBOT)


def test_masters_may_act_as_others_and_nobody_else(view: MemoryView) -> None:
    authorizer = Authorizer(view)
    headers = CIMultiDict([("Impersonate-User", "jane"), ("Impersonate-Group", "dev")])
    jane = authorization.acting(headers, ADMIN, authorizer)
    assert (jane.username, jane.groups) == ("jane", ("dev", "system:authenticated"))
    with pytest.raises(Refusal, match='cannot impersonate resource "users"'):
        authorization.acting(headers, ROBOT, authorizer)
    account = CIMultiDict([("Impersonate-User", "system:serviceaccount:n:robot")])
    robot = authorization.acting(account, ADMIN, authorizer)
    assert "system:serviceaccounts:n" in robot.groups
    with pytest.raises(Refusal, match='"serviceaccounts" in API group "" in the namespace "n"'):
        authorization.acting(account, ROBOT, authorizer)


def test_without_headers_one_is_oneself_and_a_group_needs_a_user(view: MemoryView) -> None:
    authorizer = Authorizer(view)
    assert authorization.acting(CIMultiDict(), ROBOT, authorizer) is ROBOT
    with pytest.raises(Refusal, match="400 BadRequest"):
        authorization.acting(CIMultiDict([("Impersonate-Group", "g")]), ADMIN, authorizer)
