"""Admission webhooks: requests that reach them, and missing answers."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.conformance.hooks import Hooks, patching, rule
from tests.conformance.objects import config_map, pod
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, pods

pytestmark = pytest.mark.needs("webhooks")


def names(requests: list[Object]) -> list[str]:
    return [request["name"] for request in requests]


def unreachable(hooks: Hooks, namespace: str, policy: str) -> Object:
    """Return a webhook at a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = {"url": f"https://127.0.0.1:{port}/nobody", "caBundle": hooks.ca}
    return hooks.webhook("/gone", namespace, clientConfig=client, failurePolicy=policy)


def test_an_unreachable_webhook_that_must_not_fail_refuses_the_request(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    webhook = unreachable(hooks, namespace, "Fail")
    with hooks.installed(api, namespace, webhook):
        answer = api.request("POST", config_maps(namespace), body=config_map("m"))
    assert (answer.status, answer.json()["reason"]) == (500, "InternalError")
    assert f'failed calling webhook "{webhook["name"]}"' in answer.json()["message"]
    assert api.find(config_maps(namespace, "m")) is None


def test_an_unreachable_webhook_that_may_fail_is_ignored(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    with hooks.installed(api, namespace, unreachable(hooks, namespace, "Ignore")):
        api.create(config_maps(namespace), config_map("m"))
    assert api.find(config_maps(namespace, "m")) is not None


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_webhook_that_is_too_slow_counts_as_failed(
    api: Client, namespace: str, hooks: Hooks, policy: str
) -> None:
    released = threading.Event()

    def slow(_: Object) -> Object:
        released.wait(60)
        return {"allowed": True}

    hooks.answers["/slow"] = slow
    selector = {"matchLabels": {"slow": "true"}}
    webhook = hooks.webhook(
        "/slow", namespace, failurePolicy=policy, timeoutSeconds=1, objectSelector=selector
    )
    with hooks.installed(api, namespace, webhook):
        wish = config_map("m", labels={"slow": "true"})
        answer = api.request("POST", config_maps(namespace), body=wish)
        released.set()
    assert names(hooks.requests("/slow")) == ["m"]
    # Its own limit, not the usual ten seconds.
    assert [query for path, query in hooks.calls if path == "/slow"] == ["timeout=1s"]
    assert answer.status == (500 if policy == "Fail" else 201)


@pytest.mark.parametrize(
    "response",
    [
        {"allowed": True, "uid": "another"},
        {"allowed": True, "patch": "bm90IGEgcGF0Y2g=", "patchType": "JSONPatch"},
        patching({"op": "remove", "path": "/spec/nothing"}),
    ],
    ids=["wrong uid", "no patch", "patch that does not apply"],
)
def test_an_answer_that_makes_no_sense_is_a_failure(
    api: Client, namespace: str, hooks: Hooks, response: Object
) -> None:
    hooks.answers["/odd"] = lambda _: response
    webhook = hooks.webhook("/odd", namespace, failurePolicy="Fail")
    with hooks.installed(api, namespace, webhook):
        answer = api.request("POST", config_maps(namespace), body=config_map("m"))
    assert answer.status == 500
    assert api.find(config_maps(namespace, "m")) is None


def test_a_certificate_of_another_authority_is_a_failure(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    other = Hooks(hooks.host)
    try:
        webhook = hooks.webhook(
            "/a",
            namespace,
            clientConfig={"url": hooks.url("/a"), "caBundle": other.ca},
        )
        with hooks.installed(api, namespace, webhook):
            answer = api.request("POST", config_maps(namespace), body=config_map("m"))
    finally:
        other.close()
    assert answer.status == 500
    assert "x509" in answer.json()["message"] or "certificate" in answer.json()["message"]
    assert hooks.requests("/a") == []


def test_only_selected_objects_are_reviewed(api: Client, namespace: str, hooks: Hooks) -> None:
    selector = {
        "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]
    }
    webhook = hooks.webhook("/a", namespace, objectSelector=selector)
    with hooks.installed(api, namespace, webhook):
        api.create(config_maps(namespace), config_map("unlabelled"))
        api.create(
            config_maps(namespace), config_map("ignored", labels={"hami.io/webhook": "ignore"})
        )
        api.create(config_maps(namespace), config_map("other", labels={"hami.io/webhook": "on"}))
    assert names(hooks.requests("/a")) == ["unlabelled", "other"]


def test_an_update_is_reviewed_if_the_old_or_the_new_object_is_selected(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    for name, labels in (("leaves", {"on": "1"}), ("enters", {}), ("neither", {})):
        api.create(config_maps(namespace), config_map(name, labels=labels))
    webhook = hooks.webhook(
        "/a",
        namespace,
        rules=[rule("configmaps", "UPDATE")],
        objectSelector={"matchLabels": {"on": "1"}},
    )
    with hooks.installed(api, namespace, webhook):
        for name, value in (("leaves", None), ("enters", "1"), ("neither", "0")):
            api.patch(config_maps(namespace, name), {"metadata": {"labels": {"on": value}}})
    assert names(hooks.requests("/a")) == ["leaves", "enters"]


def test_only_selected_namespaces_are_reviewed(api: Client, namespace: str, hooks: Hooks) -> None:
    elsewhere = {"matchLabels": {"kubernetes.io/metadata.name": f"{namespace}-not"}}
    webhooks = [
        hooks.webhook("/here", namespace),
        hooks.webhook("/elsewhere", namespace, namespaceSelector=elsewhere),
    ]
    with hooks.installed(api, namespace, *webhooks):
        api.create(config_maps(namespace), config_map("m"))
    assert names(hooks.requests("/here")) == ["m"]
    assert hooks.requests("/elsewhere") == []


def test_only_operations_and_kinds_of_a_rule_are_reviewed(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        api.create(pods(namespace), pod("p"))
        api.create(config_maps(namespace), config_map("m"))
        api.patch(config_maps(namespace, "m"), {"data": {"k": "v"}})
        api.delete(config_maps(namespace, "m"))
    assert names(hooks.requests("/a")) == ["m"]


def test_match_conditions_are_expressions_that_must_all_hold(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    conditions = [
        {"name": "named", "expression": "object.metadata.name.startsWith('gpu-')"},
        {
            "name": "not-ours",
            "expression": "!(request.userInfo.username in ['system:nobody'])",
        },
        {
            "name": "asks",
            "expression": "has(object.data) && object.data.exists(k, k == 'asks')",
        },
    ]
    webhook = hooks.webhook("/a", namespace, matchConditions=conditions)
    with hooks.installed(api, namespace, webhook):
        for name, data in (("gpu-1", {"asks": "1"}), ("gpu-2", {}), ("cpu-1", {"asks": "1"})):
            api.create(config_maps(namespace), config_map(name, data))
    assert names(hooks.requests("/a")) == ["gpu-1"]


@pytest.mark.parametrize(("policy", "calls"), [("IfNeeded", 2), ("Never", 1)])
def test_a_webhook_is_asked_again_if_a_later_one_changed_the_object_and_it_wants_that(
    api: Client, namespace: str, hooks: Hooks, policy: str, calls: int
) -> None:
    hooks.answers["/later"] = lambda _: patching(
        {"op": "add", "path": "/data", "value": {"later": "1"}}
    )
    with hooks.installed(
        api,
        namespace,
        hooks.webhook("/first", namespace, reinvocationPolicy=policy),
        hooks.webhook("/later", namespace),
    ):
        made = api.create(config_maps(namespace), config_map("m"))
    asked = hooks.requests("/first")
    assert len(asked) == calls
    assert "later" not in asked[0]["object"].get("data", {})
    if calls == 2:
        assert asked[1]["object"]["data"] == {"later": "1"}
    assert len(hooks.requests("/later")) == 1
    assert made["data"] == {"later": "1"}


def test_webhooks_of_one_configuration_are_asked_in_their_order(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    paths = ["/z", "/a", "/m"]
    with hooks.installed(api, namespace, *(hooks.webhook(path, namespace) for path in paths)):
        api.create(config_maps(namespace), config_map("m"))
    assert [path for path, _ in hooks.reviews] == paths


def test_a_removed_configuration_is_soon_no_longer_asked(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        api.create(config_maps(namespace), config_map("before"))
    for number in range(300):
        asked = len(hooks.requests("/a"))
        api.create(config_maps(namespace), config_map(f"after-{number}"), dryRun="All")
        if len(hooks.requests("/a")) == asked:
            break
    else:
        pytest.fail("300 requests later the webhook is still asked")
    assert "before" in names(hooks.requests("/a"))
