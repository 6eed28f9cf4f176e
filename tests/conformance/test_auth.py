"""Credentials, service accounts and their rights."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conformance.objects import config_map, refused
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import config_maps, core, group, pods

RBAC = "rbac.authorization.k8s.io/v1"


def token(api: Client, namespace: str, account: str, **spec: object) -> Object:
    wish = {"spec": {"expirationSeconds": 600, **spec}}
    return api.create(core("serviceaccounts", namespace, account, "token"), wish)


@pytest.fixture
def account(api: Client, namespace: str) -> Iterator[Client]:
    """Give a client that acts as the new service account `robot`."""
    api.create(core("serviceaccounts", namespace), {"metadata": {"name": "robot"}})
    secret = token(api, namespace, "robot")["status"]["token"]
    with api.with_token(secret) as client:
        yield client


def allow(api: Client, namespace: str, **rule: list[str]) -> None:
    wish = {"apiGroups": [""], "resources": ["configmaps"], **rule}
    api.create(group(RBAC, "roles", namespace), {"metadata": {"name": "r"}, "rules": [wish]})
    api.create(
        group(RBAC, "rolebindings", namespace),
        {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": namespace}],
        },
    )


def test_an_invalid_token_is_unauthorized(api: Client, namespace: str) -> None:
    with api.with_token("not-a-token") as stranger, refused(401, "Unauthorized"):
        stranger.get(pods(namespace))


def test_a_request_without_credentials_sees_nothing(api: Client, namespace: str) -> None:
    with api.with_token(None) as nobody:
        answer = nobody.request("GET", pods(namespace))
    # Forbidden where anonymous requests are let in to be judged, as by default.
    assert (answer.status, answer.json()["reason"]) in {
        (401, "Unauthorized"),
        (403, "Forbidden"),
    }


def test_a_client_can_ask_who_it_is(api: Client) -> None:
    path = group("authentication.k8s.io/v1", "selfsubjectreviews")
    assert api.create(path, {})["status"]["userInfo"]["username"]


@pytest.mark.needs("rbac")
def test_health_and_version_need_no_credentials(api: Client) -> None:
    with api.with_token(None) as nobody:
        for path in ("/healthz", "/livez", "/readyz", "/version"):
            assert nobody.request("GET", path).status == 200


@pytest.mark.needs("rbac")
def test_a_token_request_gives_a_token_and_its_end(api: Client, namespace: str) -> None:
    api.create(core("serviceaccounts", namespace), {"metadata": {"name": "robot"}})
    answer = token(api, namespace, "robot")
    assert answer["kind"] == "TokenRequest"
    assert answer["status"]["token"].count(".") == 2
    assert answer["status"]["expirationTimestamp"].endswith("Z")


@pytest.mark.needs("rbac")
def test_a_service_account_acts_under_its_own_name(
    api: Client, namespace: str, account: Client
) -> None:
    path = group("authentication.k8s.io/v1", "selfsubjectreviews")
    user = account.create(path, {})["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{namespace}:robot"
    assert {"system:serviceaccounts", f"system:serviceaccounts:{namespace}"} <= set(user["groups"])


@pytest.mark.needs("rbac")
def test_what_is_not_allowed_is_forbidden_and_says_who_wanted_what(
    api: Client, namespace: str, account: Client
) -> None:
    with refused(403, "Forbidden") as refusal:
        account.get(pods(namespace))
    assert refusal.message == (
        f'pods is forbidden: User "system:serviceaccount:{namespace}:robot" cannot list resource '
        f'"pods" in API group "" in the namespace "{namespace}"'
    )
    with refused(403, "Forbidden"):
        account.watch(pods(namespace))
    with refused(403, "Forbidden"):
        account.get(core("nodes"))


@pytest.mark.needs("rbac")
def test_a_role_allows_its_verbs_in_its_namespace_and_no_more(
    api: Client, namespace: str, account: Client
) -> None:
    api.create(config_maps(namespace), config_map("m", {"k": "v"}))
    allow(api, namespace, verbs=["get", "list"])

    def allowed() -> Object | None:
        try:
            return account.get(config_maps(namespace, "m"))
        except ApiError as error:
            assert error.status == 403  # noqa: PT017 - until the role has arrived
            return None

    assert wait_for("the role to count", allowed, timeout=60)["data"] == {"k": "v"}
    assert account.get(config_maps(namespace))["items"]
    for method, path in (
        ("POST", config_maps(namespace)),
        ("DELETE", config_maps(namespace, "m")),
        ("GET", config_maps("default")),
        ("GET", config_maps()),
    ):
        with refused(403, "Forbidden"):
            account.call(method, path, body=config_map("n") if method == "POST" else None)


@pytest.mark.needs("rbac")
def test_a_role_may_name_single_objects(api: Client, namespace: str, account: Client) -> None:
    for name in ("mine", "other"):
        api.create(config_maps(namespace), config_map(name))
    allow(api, namespace, verbs=["patch"], resourceNames=["mine"])

    def patched() -> Object | None:
        try:
            return account.patch(config_maps(namespace, "mine"), {"data": {"k": "v"}})
        except ApiError as error:
            assert error.status == 403  # noqa: PT017 - until the role has arrived
            return None

    assert wait_for("the role to count", patched, timeout=60)["data"] == {"k": "v"}
    with refused(403, "Forbidden"):
        account.patch(config_maps(namespace, "other"), {"data": {"k": "v"}})


@pytest.mark.needs("rbac")
def test_an_access_review_answers_what_a_request_would(
    api: Client, namespace: str, account: Client
) -> None:
    def may(client: Client, verb: str) -> bool:
        attributes = {"namespace": namespace, "verb": verb, "resource": "pods"}
        answer = client.create(
            group("authorization.k8s.io/v1", "selfsubjectaccessreviews"),
            {"spec": {"resourceAttributes": attributes}},
        )
        allowed: bool = answer["status"]["allowed"]
        return allowed

    assert may(api, "list")
    assert not may(account, "list")


@pytest.mark.needs("rbac")
def test_a_token_review_tells_whose_a_token_is(api: Client, namespace: str) -> None:
    api.create(core("serviceaccounts", namespace), {"metadata": {"name": "robot"}})
    secret = token(api, namespace, "robot")["status"]["token"]
    path = group("authentication.k8s.io/v1", "tokenreviews")
    status = api.create(path, {"spec": {"token": secret}})["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:robot"
    bad = api.create(path, {"spec": {"token": "not-a-token"}})["status"]
    assert bad.get("authenticated", False) is False


@pytest.mark.needs("rbac")
def test_a_token_for_another_audience_does_not_open_the_api(api: Client, namespace: str) -> None:
    api.create(core("serviceaccounts", namespace), {"metadata": {"name": "robot"}})
    secret = token(api, namespace, "robot", audiences=["hami"])["status"]["token"]
    with api.with_token(secret) as client, refused(401, "Unauthorized"):
        client.get(pods(namespace))
    path = group("authentication.k8s.io/v1", "tokenreviews")
    status = api.create(path, {"spec": {"token": secret, "audiences": ["hami"]}})["status"]
    assert (status["authenticated"], status["audiences"]) == (True, ["hami"])


@pytest.mark.needs("rbac")
def test_a_token_ends_with_its_account(api: Client, namespace: str, account: Client) -> None:
    api.delete(core("serviceaccounts", namespace, "robot"))

    def locked_out() -> bool:
        return account.request("GET", pods(namespace)).status == 401

    assert wait_for("the token to end", locked_out, timeout=60)
    assert json.loads(account.request("GET", pods(namespace)).body)["reason"] == "Unauthorized"
