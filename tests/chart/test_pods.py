"""The chart's pods: confined, probed, spread, and ended in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.rendering import Object, Rendered
from tests.e2e.install import timing

ALONE = {"webhookOnly.enabled": True}
SECCOMP_ANNOTATION = "seccomp.security.alpha.kubernetes.io/pod"
KUBE_SCHEDULER, OURS = "kube-scheduler", "vgpu-scheduler-extender"


def pod(rendered: Rendered) -> Object:
    return rendered.pod("Deployment", "hami-scheduler")


def container(rendered: Rendered, name: str) -> Object:
    return rendered.container("Deployment", "hami-scheduler", name)


@pytest.mark.parametrize("values", [{}, ALONE])
@pytest.mark.parametrize("version", rendering.VERSIONS)
def test_no_container_is_root_or_may_become_it(version: str, values: dict[str, Any]) -> None:
    """Also in the namespaces that demand the strictest of the Pod Security Standards."""
    for each in rendering.render(values, kube=version).pods("Deployment", "Job"):
        confined = each["spec"]["securityContext"]
        assert confined["runAsNonRoot"] is True
        assert confined["runAsUser"] > 0
        if version == "1.18.20":
            assert each["metadata"]["annotations"][SECCOMP_ANNOTATION] == "runtime/default"
        else:
            assert confined["seccompProfile"] == {"type": "RuntimeDefault"}
            assert SECCOMP_ANNOTATION not in each["metadata"].get("annotations", {})
        for one in each["spec"]["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def secrets(spec: Object) -> list[Object]:
    """Return the volumes of Secrets, also of several in one."""
    kinds = ("secret", "projected")
    return [each[kind] for each in spec["volumes"] for kind in kinds if kind in each]


def test_keys_are_readable_for_the_user_that_runs_and_no_other() -> None:
    spec = pod(rendering.render({"scheduler.runAsUser": 1234}))["spec"]
    confined = spec["securityContext"]

    assert {confined[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {1234}
    assert [each["defaultMode"] for each in secrets(spec)] == [0o440, 0o440]


def test_the_cluster_may_choose_the_user() -> None:
    none_is_local = {"scheduler.runAsUser": None, "scheduler.patch.runAsUser": None}
    rendered = rendering.render(none_is_local)

    for each in rendered.pods("Deployment", "Job"):
        assert set(each["spec"]["securityContext"]) == {"runAsNonRoot", "seccompProfile"}
    assert len(secrets(pod(rendered)["spec"])) == 2
    assert all("defaultMode" not in each for each in secrets(pod(rendered)["spec"]))


@pytest.mark.parametrize("name", [KUBE_SCHEDULER, OURS])
def test_a_container_that_hangs_is_restarted_as_the_failover_tests_do_it(name: str) -> None:
    probed = container(rendering.render(), name)
    liveness = probed["livenessProbe"]

    assert liveness["periodSeconds"] == timing.PROBE_PERIOD_S
    assert liveness["timeoutSeconds"] == timing.PROBE_TIMEOUT_S
    assert liveness["failureThreshold"] == timing.PROBE_FAILURES
    assert liveness["terminationGracePeriodSeconds"] == 1
    starting = probed["startupProbe"]
    assert starting["httpGet"] == liveness["httpGet"]
    assert starting["periodSeconds"] * starting["failureThreshold"] == 120


@pytest.mark.parametrize(
    ("version", "path", "hurried"),
    [
        ("1.18.0", "/healthz", False),
        ("1.27.0", "/healthz", False),
        ("1.28.0", "/healthz", True),
        ("1.30.0", "/healthz", True),
        ("1.31.0", "/livez", True),
    ],
)
def test_probes_are_those_of_the_version(version: str, path: str, *, hurried: bool) -> None:
    liveness = container(rendering.render(kube=version), KUBE_SCHEDULER)["livenessProbe"]
    assert liveness["httpGet"] == {"path": path, "port": "secure", "scheme": "HTTPS"}
    assert ("terminationGracePeriodSeconds" in liveness) is hurried


def test_every_replica_that_knows_the_cluster_is_ready() -> None:
    ready = container(rendering.render(), OURS)["readinessProbe"]
    assert ready["httpGet"] == {"path": "/readyz?webhook", "port": "http", "scheme": "HTTPS"}


def test_probes_that_restart_can_be_switched_off() -> None:
    rendered = rendering.render({"scheduler.livenessProbe": False})
    for name in (KUBE_SCHEDULER, OURS):
        assert {"livenessProbe", "startupProbe"}.isdisjoint(container(rendered, name))
    assert "readinessProbe" in container(rendered, OURS)


@pytest.mark.parametrize(
    ("delay", "drain", "grace"), [("5s", "10s", 20), ("0", "1m", 65), ("1.5s", "2s", 9)]
)
def test_a_pod_has_time_to_end_in_order(delay: str, drain: str, grace: int) -> None:
    values = {"scheduler.shutdownDelay": delay, "scheduler.drainTimeout": drain}
    spec = pod(rendering.render(values))["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace


def test_replicas_prefer_different_nodes_and_are_not_drained_together() -> None:
    rendered = rendering.render({"scheduler.replicas": 3})
    deployment = rendered.one("Deployment", "hami-scheduler")["spec"]

    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    affinity = pod(rendered)["spec"]["affinity"]["podAntiAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    labels = pod(rendered)["metadata"]["labels"]
    chosen = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert chosen.items() <= labels.items()
    budget = rendered.one("PodDisruptionBudget", "hami-scheduler")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_a_single_replica_can_be_drained() -> None:
    assert rendering.render().names("PodDisruptionBudget") == []


@pytest.mark.parametrize(("version", "group"), [("1.20.0", "v1beta1"), ("1.21.0", "v1")])
def test_the_budget_is_of_the_versions_group(version: str, group: str) -> None:
    rendered = rendering.render({"scheduler.replicas": 2}, kube=version)
    budget = rendered.one("PodDisruptionBudget", "hami-scheduler")
    assert budget["apiVersion"] == f"policy/{group}"


def test_without_a_lease_the_old_pod_ends_before_the_new_one_starts() -> None:
    rendered = rendering.render({"scheduler.leaderElect": False})
    assert rendered.one("Deployment", "hami-scheduler")["spec"]["strategy"] == {"type": "Recreate"}
    assert rendered.names("Role") == ["hami-certs", "hami-cleanup"]


def test_pods_go_where_they_are_configured_to() -> None:
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    affinity: Object = {"nodeAffinity": {}}
    values = {
        "scheduler.nodeName": "node-1",
        "scheduler.nodeSelector": {"role": "control"},
        "scheduler.tolerations": [{"operator": "Exists"}],
        "scheduler.affinity": affinity,
        "scheduler.topologySpreadConstraints": spread,
        "scheduler.priorityClassName": "high",
    }
    spec = pod(rendering.render(values))["spec"]
    assert spec["nodeName"] == "node-1"
    assert spec["nodeSelector"] == {"role": "control"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["affinity"] == affinity
    assert spec["topologySpreadConstraints"] == spread
    assert spec["priorityClassName"] == "high"
    assert pod(rendering.render())["spec"]["priorityClassName"] == "system-node-critical"


def test_jobs_go_where_they_are_configured_to() -> None:
    values = {
        "scheduler.patch.nodeSelector": {"role": "control"},
        "scheduler.patch.tolerations": [{"operator": "Exists"}],
        "scheduler.patch.priorityClassName": "high",
        "scheduler.patch.podAnnotations": {"a": "b"},
    }
    rendered = rendering.render(values)
    for job in rendered.names("Job"):
        template = rendered.pod("Job", job)
        assert template["spec"]["nodeSelector"] == {"role": "control"}
        assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
        assert template["spec"]["priorityClassName"] == "high"
        assert template["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"scheduler.extenderHTTPTimeout": 30}, "checksum/kube-scheduler"),
        ({"devicePlugin.deviceSplitCount": 3}, "checksum/config"),
        ({"fallback.chains": [["1g.10gb"]]}, "checksum/config"),
    ],
)
def test_a_changed_file_starts_new_pods(values: dict[str, Any], changed: str) -> None:
    before = pod(rendering.render())["metadata"]["annotations"]
    after = pod(rendering.render(values))["metadata"]["annotations"]
    assert {name for name in before if before[name] != after[name]} == {changed}


def test_a_pod_knows_its_name_for_its_role() -> None:
    names = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container(rendering.render(), OURS)["env"]
    }
    assert names == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}


def test_without_a_kube_scheduler_there_is_nothing_of_it() -> None:
    values = {"scheduler.kubeScheduler.enabled": False, "scheduler.clientCASecret": "clients"}
    rendered = rendering.render(values)
    assert [each["name"] for each in pod(rendered)["spec"]["containers"]] == [OURS]
    assert rendered.names("ConfigMap") == ["hami-device-plugin", "hami-scheduler-device"]
    bindings = ["hami-certs", "hami-cleanup", "hami-device-plugin", "hami-scheduler"]
    assert rendered.names("ClusterRoleBinding") == bindings
