"""Every Kubernetes takes all that the chart makes for it, each object whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering, validating

#: Ways to install that make different objects; together they make every object of the chart.
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything on": {
        "scheduler.replicas": 2,
        "scheduler.nodeName": "node-1",
        "scheduler.nodeSelector": {"a": "b"},
        "scheduler.tolerations": [{"operator": "Exists"}],
        "scheduler.topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
        "scheduler.clientCASecret": "clients",
        "scheduler.podAnnotations": {"a": "b"},
        "scheduler.extender.resources": {"limits": {"memory": "1Gi"}},
        "scheduler.kubeScheduler.resources": {"requests": {"cpu": "100m"}},
        "scheduler.service.annotations": {"a": "b"},
        "scheduler.admissionWebhook.namespaceSelector.matchLabels": {"a": "b"},
        "scheduler.admissionWebhook.objectSelector.matchExpressions": [
            {"key": "a", "operator": "Exists"}
        ],
        "scheduler.patch.tolerations": [{"operator": "Exists"}],
        "scheduler.patch.nodeSelector": {"a": "b"},
        "fallback.chains": [["3g.40gb", {"profile": "1g.10gb", "memory": 9000, "cores": 14}]],
        "global.imagePullSecrets": ["registry"],
        "global.labels": {"team": "gpu"},
        "global.annotations": {"team": "gpu"},
        "prometheus.enabled": True,
        "podSecurityPolicy.enabled": True,
    },
    "cert-manager": {"scheduler.certManager.enabled": True},
    "own address": {"scheduler.admissionWebhook.customURL.enabled": True},
    "no webhook": {"scheduler.admissionWebhook.enabled": False},
    "no leader": {"scheduler.leaderElect": False, "scheduler.runAsUser": None},
    "webhook only": {"webhookOnly.enabled": True, "fallback.mode": "available"},
}
#: Kinds of operators; Kubernetes itself has no schema of them.
FOREIGN = ("cert-manager.io/v1", rendering.PROMETHEUS)
#: Roles that every cluster has.
FROM_THE_CLUSTER = (
    "extension-apiserver-authentication-reader",
    "system:kube-scheduler",
    "system:volume-scheduler",
)


@pytest.mark.parametrize("version", rendering.VERSIONS)
@pytest.mark.parametrize("way", WAYS)
def test_every_object_fits_the_schema_of_its_kubernetes(way: str, version: str) -> None:
    rendered = rendering.render(WAYS[way], kube=version)

    for each in rendered.objects:
        if each["apiVersion"] not in FOREIGN:
            validating.check(each, version)
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == rendering.RELEASE


@pytest.mark.parametrize("version", rendering.VERSIONS)
def test_the_schemas_know_all_fields_and_no_other(version: str) -> None:
    deployment = rendering.render(kube=version).one("Deployment", "hami-scheduler")
    validating.check(deployment, version)

    deployment["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(validating.Invalid, match="comand"):
        validating.check(deployment, version)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", rendering.VERSIONS)
def test_no_name_is_given_twice_and_every_name_that_is_used_exists(way: str, version: str) -> None:
    rendered = rendering.render(WAYS[way], kube=version)
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in rendered.objects
    ]
    assert len(names) == len(set(names))

    for pod in rendered.pods():
        assert rendered.has("ServiceAccount", pod["spec"]["serviceAccountName"])
        for volume in pod["spec"].get("volumes", []):
            if "configMap" in volume:
                assert rendered.has("ConfigMap", volume["configMap"]["name"])
    for each in rendered.objects:
        if each["kind"].endswith("Binding") and each["kind"] != "ValidatingAdmissionPolicyBinding":
            ref, [subject] = each["roleRef"], each["subjects"]
            assert rendered.has("ServiceAccount", subject["name"])
            assert rendered.has(ref["kind"], ref["name"]) or ref["name"] in FROM_THE_CLUSTER
