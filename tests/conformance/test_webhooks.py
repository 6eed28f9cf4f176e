"""Admission webhooks: what they are asked, and what becomes of their answer."""

from __future__ import annotations

import pytest

from tests.conformance.hooks import Hooks, allow, patching, rule
from tests.conformance.objects import bind, config_map, container, pod, refused
from tests.kubeapi.client import Client
from tests.kubeapi.paths import config_maps, group, pods

pytestmark = pytest.mark.needs("webhooks")


def test_a_webhook_is_asked_with_a_review_of_the_object(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        api.create(config_maps(namespace), config_map("m", {"k": "v"}))
    ((_, review),) = hooks.reviews
    assert (review["kind"], review["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    request = review["request"]
    assert request["uid"]
    assert (request["operation"], request["name"], request["namespace"]) == (
        "CREATE",
        "m",
        namespace,
    )
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert request["requestKind"] == request["kind"]
    assert request["requestResource"] == request["resource"]
    assert (request["object"]["kind"], request["object"]["data"]) == ("ConfigMap", {"k": "v"})
    assert request["object"]["metadata"]["namespace"] == namespace
    assert request["oldObject"] is None
    assert request["dryRun"] is False
    assert request["options"]["kind"] == "CreateOptions"


def test_a_review_says_who_is_asking(api: Client, namespace: str, hooks: Hooks) -> None:
    path = group("authentication.k8s.io/v1", "selfsubjectreviews")
    me = api.create(path, {})["status"]["userInfo"]
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        api.create(config_maps(namespace), config_map("m"))
    (request,) = hooks.requests("/a")
    assert request["userInfo"]["username"] == me["username"]
    assert set(request["userInfo"]["groups"]) == set(me["groups"])


def test_every_review_has_its_own_uid(api: Client, namespace: str, hooks: Hooks) -> None:
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        for name in "abc":
            api.create(config_maps(namespace), config_map(name))
    assert len({request["uid"] for request in hooks.requests("/a")}) == 3


def test_a_dry_run_is_reviewed_as_one(api: Client, namespace: str, hooks: Hooks) -> None:
    hooks.answers["/a"] = lambda _: patching(
        {"op": "add", "path": "/data", "value": {"added": "1"}}
    )
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        dry = api.create(config_maps(namespace), config_map("m"), dryRun="All")
    assert hooks.requests("/a")[0]["dryRun"] is True
    assert dry["data"] == {"added": "1"}
    assert api.find(config_maps(namespace, "m")) is None


def test_a_webhook_must_declare_that_dry_runs_have_no_side_effects(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    webhook = hooks.webhook("/a", namespace, sideEffects="NoneOnDryRun")
    with hooks.installed(api, namespace, webhook):
        api.create(config_maps(namespace), config_map("m"), dryRun="All")
    assert [request["dryRun"] for request in hooks.requests("/a")] == [True]
    with refused(422, "Invalid"):
        api.create(
            group("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
            {
                "metadata": {"generateName": "conformance-"},
                "webhooks": [hooks.webhook("/a", namespace, sideEffects="Some")],
            },
        )


def test_a_pod_is_reviewed_with_its_defaults_and_without_a_generated_name(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    webhook = hooks.webhook("/a", namespace, rules=[rule("pods")])
    with hooks.installed(api, namespace, webhook):
        wish = pod("")
        wish["metadata"] = {"generateName": "job-"}
        made = api.create(pods(namespace), wish)
    (request,) = hooks.requests("/a")
    assert made["metadata"]["name"].startswith("job-")
    assert "name" not in request["object"]["metadata"]
    assert request.get("name", "") == ""
    assert "uid" not in request["object"]["metadata"]
    assert request["object"]["spec"]["restartPolicy"] == "Always"
    assert request["object"]["status"] == {}


def test_a_patch_is_applied_before_the_object_is_stored(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    hooks.answers["/a"] = lambda _: patching(
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"},
        {"op": "add", "path": "/metadata/annotations", "value": {"hami.io/seen": "1"}},
        {
            "op": "add",
            "path": "/spec/containers/0/resources/limits",
            "value": {"nvidia.com/gpu": "1"},
        },
    )
    webhook = hooks.webhook("/a", namespace, rules=[rule("pods")])
    with hooks.installed(api, namespace, webhook):
        made = api.create(pods(namespace), pod("p"))
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    assert made["metadata"]["annotations"] == {"hami.io/seen": "1"}
    # What the patch added is completed with its defaults as well.
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "1"},
        "requests": {"nvidia.com/gpu": "1"},
    }
    assert api.get(pods(namespace, "p")) == made


def test_a_denial_reaches_the_client_with_its_words_and_stores_nothing(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    hooks.answers["/a"] = lambda _: {
        "allowed": False,
        "status": {"message": "more memory than any card has"},
    }
    webhook = hooks.webhook("/a", namespace)
    with hooks.installed(api, namespace, webhook):
        answer = api.request("POST", config_maps(namespace), body=config_map("m"))
    status = answer.json()
    assert answer.status == 400
    assert status["message"] == (
        f'admission webhook "{webhook["name"]}" denied the request: more memory than any card has'
    )
    assert api.find(config_maps(namespace, "m")) is None


def test_a_denial_may_choose_its_code_and_reason(api: Client, namespace: str, hooks: Hooks) -> None:
    hooks.answers["/a"] = lambda _: {
        "allowed": False,
        "status": {"message": "no", "code": 403, "reason": "Forbidden"},
    }
    webhook = hooks.webhook("/a", namespace)
    with hooks.installed(api, namespace, webhook), refused(403, "Forbidden") as refusal:
        api.create(config_maps(namespace), config_map("m"))
    assert refusal.message.endswith("denied the request: no")


def test_warnings_reach_the_client_as_headers(api: Client, namespace: str, hooks: Hooks) -> None:
    hooks.answers["/a"] = lambda _: allow(warnings=["no memory asked for", 'say "1Gi"'])
    with hooks.installed(api, namespace, hooks.webhook("/a", namespace)):
        answer = api.request("POST", config_maps(namespace), body=config_map("m"))
    assert answer.status == 201
    assert answer.headers.get_all("Warning") == [
        '299 - "no memory asked for"',
        '299 - "say \\"1Gi\\""',
    ]


def test_an_update_is_reviewed_with_the_old_and_the_new_object(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    api.create(config_maps(namespace), config_map("m", {"k": "old"}))
    webhook = hooks.webhook("/a", namespace, rules=[rule("configmaps", "UPDATE", "DELETE")])
    with hooks.installed(api, namespace, webhook):
        api.patch(config_maps(namespace, "m"), {"data": {"k": "new"}})
        api.delete(config_maps(namespace, "m"))
    update, delete = hooks.requests("/a")
    assert (update["operation"], delete["operation"]) == ("UPDATE", "DELETE")
    assert (update["oldObject"]["data"], update["object"]["data"]) == ({"k": "old"}, {"k": "new"})
    assert (delete["oldObject"]["data"], delete["object"]) == ({"k": "new"}, None)


def test_a_rule_for_pods_does_not_cover_their_subresources(
    api: Client, namespace: str, hooks: Hooks, node: str
) -> None:
    webhook = hooks.webhook("/a", namespace, rules=[rule("pods", "CREATE", "UPDATE")])
    other = hooks.webhook("/b", namespace, rules=[rule("pods/binding")])
    with hooks.installed(api, namespace, webhook, other):
        api.create(pods(namespace), pod("p"))
        bind(api, namespace, "p", node, annotations={"k": "v"})
        api.patch(pods(namespace, "p", "status"), {"status": {"message": "m"}})
    assert [request["operation"] for request in hooks.requests("/a")] == ["CREATE"]
    (binding,) = hooks.requests("/b")
    assert (binding["subResource"], binding["kind"]["kind"]) == ("binding", "Binding")
    assert binding["object"]["metadata"]["annotations"] == {"k": "v"}
    assert binding["object"]["target"]["name"] == node


def test_a_patch_that_makes_the_object_invalid_is_refused(
    api: Client, namespace: str, hooks: Hooks
) -> None:
    hooks.answers["/a"] = lambda _: patching(
        {"op": "add", "path": "/spec/containers/-", "value": container("main")}
    )
    webhook = hooks.webhook("/a", namespace, rules=[rule("pods")])
    with hooks.installed(api, namespace, webhook), refused(422, "Invalid") as refusal:
        api.create(pods(namespace), pod("p"))
    assert "spec.containers[1].name" in refusal.message
