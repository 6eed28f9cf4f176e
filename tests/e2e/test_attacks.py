"""Attacks on the real API server: a node's stolen token, and users who patch pods."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from hami.wire import annotation_keys
from tests.attacks import attack as attacks
from tests.attacks import report
from tests.attacks.attack import Result
from tests.attacks.gate import OF_THE_API
from tests.chart import rendering
from tests.e2e.chart.metadata_writes import path_of
from tests.e2e.chart.policy import ELSEWHERE, NODE, Stage
from tests.e2e.install.nodes import KEYS
from tests.e2e.test_admission_policy import GRANT, Plant, agent, annotated, plant, stage, trusted
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import core, nodes

__all__ = ["agent", "plant", "stage", "trusted"]  # fixtures

report.declared()
Write = Callable[[], object]


def again(name: str) -> Callable[[attacks.Test], attacks.Test]:
    return attacks.again(name, "e2e")


def tried(*writes: Write) -> Result:
    """Count the writes that the API server takes; each is a dry run where it can be one."""
    taken, refusal = 0, ""
    for write in writes:
        try:
            write()
            taken += 1
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            refusal = refusal or error.message
    return Result(taken, OF_THE_API, refusal)


def patches(client: Client, path: str, *changes: Object) -> list[Write]:
    def one(change: Object) -> Write:
        return lambda: client.patch(path, change, dryRun="All")

    return [one(change) for change in changes]


@again("other-nodes-cards")
def test_another_nodes_register(agent: Client) -> Result:
    changes = [
        {"metadata": annotated(key)}
        for key in (KEYS.register, KEYS.binding, annotation_keys.NODE_LOCK)
    ]
    return tried(
        *patches(agent, nodes(ELSEWHERE), *changes),
        *patches(agent, nodes(ELSEWHERE, "status"), *changes),
    )


@again("other-nodes-pods")
def test_another_nodes_pods(plant: Plant, agent: Client) -> Result:
    changes = [
        {"metadata": annotated(key)}
        for key in (KEYS.allocated, annotation_keys.BIND_PHASE, "example.com/note")
    ]
    return tried(
        *patches(agent, path_of(plant(nodeName=ELSEWHERE)), *changes),
        *patches(agent, path_of(plant(schedulerName="nobody")), *changes),
    )


@again("own-nodes-taints")
def test_its_nodes_labels_and_taints(agent: Client) -> Result:
    label = {"metadata": {"labels": {"node-restriction.kubernetes.io/team": "payments"}}}
    taints = {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}}
    agent.patch(nodes(NODE), {"metadata": annotated(KEYS.register)}, dryRun="All")
    return tried(
        *patches(agent, nodes(NODE), label, taints, {"spec": {"unschedulable": True}}),
        *patches(agent, nodes(NODE, "status"), label),
    )


@again("own-nodes-pods")
def test_its_pods_labels_and_images(plant: Plant, agent: Client) -> Result:
    here = plant(nodeName=NODE)
    phase = annotated(annotation_keys.BIND_PHASE, "success")
    label = {"labels": {annotation_keys.ASSIGNED_NODE: NODE}}
    agent.patch(path_of(here), {"metadata": phase | label}, dryRun="All")
    [container] = here["spec"]["containers"]
    image: dict[str, Any] = {"spec": {"containers": [{**container, "image": "evil"}]}}
    return tried(
        *patches(
            agent,
            path_of(here),
            image,
            {"metadata": {"labels": {"app": "payments"}}},
            {"metadata": {"finalizers": ["example.com/never"]}},
        )
    )


@again("secrets")
def test_secrets(stage: Stage, agent: Client) -> Result:
    account = core("serviceaccounts", stage.namespace, "default", "token")
    return tried(
        lambda: agent.get(core("secrets", stage.namespace)),
        lambda: agent.get(core("secrets", "kube-system")),
        lambda: agent.create(account, {"spec": {}}),
    )


@again("pods-deleted")
def test_eviction(stage: Stage, plant: Plant) -> Result:
    """Try it with the rights of the chart's own role: the stage lets its agent do more."""
    here = plant(nodeName=ELSEWHERE)
    role = rendering.render().one("ClusterRole", "hami-device-plugin")
    rights = {each: rule["verbs"] for rule in role["rules"] for each in rule["resources"]}
    thief = stage.account("thief", rights)
    return tried(
        lambda: thief.create(path_of(here, "eviction"), {"metadata": here["metadata"]}),
        lambda: thief.delete(path_of(here)),
        lambda: thief.patch(path_of(here, "status"), {"status": {"phase": "Failed"}}),
    )


@again("patched-grant")
def test_a_users_patch_of_a_grant(stage: Stage, plant: Plant) -> Result:
    user = stage.account("patcher", {"pods": ["patch"], "pods/status": ["patch"]})
    granted = plant(GRANT, nodeName=ELSEWHERE)
    changes = [
        {"metadata": annotated(key, value)}
        for key in (KEYS.allocated, annotation_keys.GRANT_MAC, annotation_keys.RESIZE)
        for value in ("GPU-stolen,NVIDIA,80000,100:;", "")
    ]
    return tried(
        *patches(user, path_of(granted), *changes),
        *patches(user, path_of(granted, "status"), *changes),
    )
