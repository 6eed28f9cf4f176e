"""Tokens: the user behind one, and its end."""

from __future__ import annotations

import base64
import json

import pytest

from hami_sandbox.access import User
from hami_sandbox.apiserver.auth import users
from hami_sandbox.apiserver.auth.users import AUDIENCE, Authenticator
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.auth.memory_view import MemoryView, Object

ADMIN = "t-admin"
NOW = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class House:
    """A server's users, with one service account `robot` in the namespace `n`."""

    def __init__(self) -> None:
        self.view = MemoryView()
        self.clock = Clock()
        self.robot = self.account()
        admin = User(token=ADMIN, user="admin", uid="1", groups=("system:masters",))
        self.authenticator = Authenticator(
            self.view, [admin], key=users.signing_key(b"secret"), clock=self.clock
        )

    def account(self) -> Object:
        return self.view.put("serviceaccounts", {"metadata": {"name": "robot", "namespace": "n"}})

    def token(self, *audiences: str, pod: Object | None = None) -> str:
        token, _ = self.authenticator.issue(
            "n", self.robot, audiences=audiences, seconds=600, pod=pod
        )
        return token

    def accepts(self, token: str) -> bool:
        try:
            self.authenticator.authenticate(f"Bearer {token}")
        except Refusal:
            return False
        return True


@pytest.fixture
def house() -> House:
    return House()


def test_a_static_token_is_its_user_who_counts_as_authenticated(house: House) -> None:
    user = house.authenticator.authenticate("Bearer t-admin")
    assert (user.username, user.uid) == ("admin", "1")
    assert user.groups == ("system:masters", "system:authenticated")


def test_nobody_is_anonymous_and_a_stranger_is_refused(house: House) -> None:
    assert house.authenticator.authenticate(None).username == "system:anonymous"
    assert not house.accepts("t-other")
    assert not house.accepts("a.b.c")
    with pytest.raises(Refusal, match="401 Unauthorized"):
        house.authenticator.authenticate("Basic dXNlcjpwdw==")


def test_a_service_account_acts_under_its_name_and_groups(house: House) -> None:
    user = house.authenticator.authenticate(f"bearer {house.token()}")
    assert user.username == "system:serviceaccount:n:robot"
    assert user.uid == house.robot["metadata"]["uid"]
    assert set(user.groups) == {
        "system:serviceaccounts",
        "system:serviceaccounts:n",
        "system:authenticated",
    }


def test_a_token_ends_at_its_time(house: House) -> None:
    token = house.token()
    house.clock.now = NOW + 599
    assert house.accepts(token)
    house.clock.now = NOW + 600
    assert not house.accepts(token)


def test_a_token_ends_with_its_account_even_if_the_name_comes_back(house: House) -> None:
    token = house.token()
    house.view.remove("serviceaccounts", "n", "robot")
    assert not house.accepts(token)
    house.robot = house.account()
    assert not house.accepts(token)
    assert house.accepts(house.token())


def test_a_token_of_a_pod_names_pod_and_node_and_ends_with_the_pod(house: House) -> None:
    house.view.put("nodes", {"metadata": {"name": "gpu-a", "uid": "node-1"}})
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "gpu-a"}}
    token = house.token(pod=house.view.put("pods", pod))
    user = house.authenticator.authenticate(f"Bearer {token}")
    assert user.extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert user.extra["authentication.kubernetes.io/node-name"] == ("gpu-a",)
    assert user.as_object()["extra"]["authentication.kubernetes.io/node-uid"] == ["node-1"]
    house.view.remove("pods", "n", "p")
    assert not house.accepts(token)


def test_a_token_for_others_does_not_open_the_server(house: House) -> None:
    token = house.token("hami")
    assert not house.accepts(token)
    found = house.authenticator.whose(token, ("x", "hami"))
    assert found is not None
    assert found[1] == ["hami"]
    assert house.authenticator.whose(house.token(AUDIENCE, "hami"), (AUDIENCE,)) is not None


def test_a_token_that_was_changed_or_signed_elsewhere_is_refused(house: House) -> None:
    head, claims, signature = house.token().split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    told["sub"] = "system:serviceaccount:kube-system:other"
    forged = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
    assert not house.accepts(f"{head}.{forged}.{signature}")
    assert not house.accepts(f"{head}.{claims}.{signature[:-4]}AAAA")
    other = Authenticator(house.view, [], key=users.signing_key(b"other"), clock=house.clock)
    token, _ = other.issue("n", house.robot, audiences=(), seconds=600)
    assert not house.accepts(token)
