"""Each account may do what it needs, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.rendering import NAMESPACE, Rendered
from tests.e2e.install import identity

READ = {"get", "list", "watch"}
WEBHOOK = "scheduler.admissionWebhook"


def rights(rendered: Rendered, kind: str, name: str) -> dict[str, set[str]]:
    """Give the verbs by resource, with the names that they are limited to."""
    found: dict[str, set[str]] = {}
    for rule in rendered.one(kind, name)["rules"]:
        [group], only = rule["apiGroups"], rule.get("resourceNames", [""])
        for resource in rule["resources"]:
            for each in only:
                place = ":".join(filter(None, (group, resource, each)))
                found.setdefault(place, set()).update(rule["verbs"])
    return found


def bound(rendered: Rendered, account: str) -> set[str]:
    """Name the roles of an account, each with its namespace."""
    return {
        "/".join(filter(None, (each["metadata"].get("namespace"), each["roleRef"]["name"])))
        for each in rendered.objects
        if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        for subject in each["subjects"]
        if (subject["name"], subject["namespace"]) == (account, NAMESPACE)
    }


def test_the_scheduler_has_the_rights_that_the_tests_on_kubernetes_prove_sufficient() -> None:
    chart = rights(rendering.render(), "ClusterRole", "hami-scheduler")

    proven: dict[str, set[str]] = {}
    for rule in identity.RULES:
        if rule["apiGroups"] == [""]:
            for resource in rule["resources"]:
                proven[resource] = set(rule["verbs"])
    assert chart == proven


def test_of_leases_it_may_change_its_own_only() -> None:
    rendered = rendering.render({"schedulerName": "mine"})
    assert rights(rendered, "Role", "hami-scheduler") == {
        "coordination.k8s.io:leases": {*READ, "create"},
        "coordination.k8s.io:leases:mine": {"update"},
    }


def test_the_kube_scheduler_beside_it_is_one_like_the_clusters() -> None:
    assert bound(rendering.render(), "hami-scheduler") == {
        "hami-scheduler",
        f"{NAMESPACE}/hami-scheduler",
        "system:kube-scheduler",
        "system:volume-scheduler",
        "kube-system/extension-apiserver-authentication-reader",
    }


@pytest.mark.parametrize(
    "values", [{}, {"devicePlugin.evictRefused": True}, {"scheduler.overuse.action": "evict"}]
)
def test_only_the_scheduler_evicts_and_only_where_configured(values: dict[str, Any]) -> None:
    rendered = rendering.render(values)
    scheduler = rights(rendered, "ClusterRole", "hami-scheduler")
    assert scheduler.get("pods/eviction", set()) == ({"create"} if values else set())
    # A node that is taken over marks its own pods, and evicts or deletes none.
    assert rights(rendered, "ClusterRole", "hami-device-plugin") == {
        "nodes": {*READ, "patch"},
        "nodes/status": {"patch"},
        "pods": {*READ, "patch"},
        "events": {"create", "patch"},
    }
    assert bound(rendered, "hami-device-plugin") == {"hami-device-plugin"}


@pytest.mark.parametrize("removes", [False, True])
def test_the_scheduler_deletes_pods_only_where_configured(*, removes: bool) -> None:
    rendered = rendering.render({"scheduler.removeRejected": removes})
    pods = rights(rendered, "ClusterRole", "hami-scheduler")["pods"]
    assert pods == {*READ, "patch"} | ({"delete"} if removes else set())


def test_the_policies_speak_of_the_account_that_the_agent_has() -> None:
    rendered = rendering.render()
    account = rendered.pod("DaemonSet", "hami-device-plugin")["spec"]["serviceAccountName"]
    for name in rendered.names("ValidatingAdmissionPolicy"):
        variables = rendered.one("ValidatingAdmissionPolicy", name)["spec"]["variables"]
        [agent] = [each["expression"] for each in variables if each["name"] == "isAgent"]
        assert f'"system:serviceaccount:{NAMESPACE}:{account}"' in agent


@pytest.mark.parametrize("mode", ["type", "available"])
def test_the_webhook_alone_reads_nodes_and_pods_only_where_they_count(mode: str) -> None:
    rendered = rendering.render({"webhookOnly.enabled": True, "fallback.mode": mode})
    expected = {"nodes": READ} | ({"pods": READ} if mode == "available" else {})
    assert rights(rendered, "ClusterRole", "hami-webhook") == expected
    assert bound(rendered, "hami-webhook") == {"hami-webhook"}


@pytest.mark.parametrize(
    ("values", "secrets", "webhook"),
    [
        (
            {},
            {
                "secrets": {"create"},
                "secrets:hami-scheduler-tls": {"get", "update"},
                "secrets:hami-grant-signing-key": {"get", "update"},
                "secrets:hami-grant-public-key": {"get", "update"},
            },
            True,
        ),
        (
            {"scheduler.certManager.enabled": True},
            {
                "secrets": {"create"},
                "secrets:hami-grant-signing-key": {"get", "update"},
                "secrets:hami-grant-public-key": {"get", "update"},
            },
            False,
        ),
        # What its owner brought is only read.
        (
            {
                f"{WEBHOOK}.existingSecret": "mine",
                "scheduler.grantKey.existingSigningSecret": "my-key",
                "scheduler.grantKey.existingPublicSecret": "my-public-key",
            },
            {"secrets:mine": {"get"}},
            True,
        ),
    ],
)
def test_the_jobs_that_make_certificates_may_do_only_that(
    values: dict[str, Any], secrets: dict[str, set[str]], *, webhook: bool
) -> None:
    rendered = rendering.render(values)
    assert rights(rendered, "Role", "hami-certs") == secrets
    if webhook:
        place = "admissionregistration.k8s.io:mutatingwebhookconfigurations:hami-webhook"
        assert rights(rendered, "ClusterRole", "hami-certs") == {place: {"get", "update"}}
    else:
        assert not rendered.has("ClusterRole", "hami-certs")


def test_the_cleanup_may_remove_what_was_made_and_nothing_else() -> None:
    rendered = rendering.render()
    named = rights(rendered, "Role", "hami-cleanup")

    assert named.pop("coordination.k8s.io:leases:hami-scheduler") == {"delete"}
    assert set(named) == {
        *(f"secrets:hami-grant-{each}key" for each in ("", "signing-", "public-")),
        *(f"secrets:hami-{each}-tls" for each in ("scheduler", "webhook")),
        *(f"secrets:hami-{each}-tls-ca" for each in ("scheduler", "webhook")),
    }
    assert all(verbs == {"get", "delete"} for verbs in named.values())
    assert rights(rendered, "ClusterRole", "hami-cleanup") == {"nodes": {"list", "patch"}}
    assert bound(rendered, "hami-cleanup") == {"hami-cleanup", f"{NAMESPACE}/hami-cleanup"}


@pytest.mark.parametrize("account", ["hami-certs", "hami-cleanup"])
def test_before_1_25_a_policy_for_the_jobs_can_be_had(account: str) -> None:
    wanted = {"podSecurityPolicy.enabled": True}
    rendered = rendering.render(wanted, kube="1.24.0")

    place = f"policy:podsecuritypolicies:{account}"
    assert rights(rendered, "ClusterRole", account)[place] == {"use"}
    assert rendered.one("PodSecurityPolicy", account)["spec"]["privileged"] is False
    assert rendering.render(kube="1.24.0").names("PodSecurityPolicy") == []
    assert rendering.render(wanted, kube="1.25.0").names("PodSecurityPolicy") == []
