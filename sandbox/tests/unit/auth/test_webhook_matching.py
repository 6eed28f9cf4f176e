"""Writes that match a webhook's rules."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.auth import webhook_matching
from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.auth.memory_view import MemoryView, Object

USER = UserInfo(username="jane")


def request(resource: str, operation: str = "CREATE", **fields: Any) -> AdmissionRequest:
    resource, _, part = resource.partition("/")
    group = {"deployments": "apps", "clusterroles": "rbac.authorization.k8s.io"}.get(resource, "")
    if resource.endswith("webhookconfigurations"):
        group = "admissionregistration.k8s.io"
    kind = kinds.find(group, "v1", resource)
    assert kind is not None
    if kind.namespaced:
        fields.setdefault("namespace", "n")
    fields.setdefault("object", {"metadata": {"name": "o"}})
    return AdmissionRequest(
        kind=kind, operation=operation, user=USER, subresource=part, name="o", **fields
    )


def rule(resources: str, operations: str = "CREATE", **fields: Any) -> Object:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": operations.split(),
        "resources": resources.split(),
        **fields,
    }


@pytest.fixture
def view() -> MemoryView:
    view = MemoryView()
    view.put("namespaces", {"metadata": {"name": "n", "labels": {"team": "a"}}})
    return view


@pytest.mark.parametrize(
    ("given", "asked", "concerned"),
    [
        (rule("pods"), request("pods"), True),
        (rule("pods"), request("pods", "UPDATE"), False),
        (rule("pods", "*"), request("pods", "DELETE"), True),
        (rule("pods"), request("configmaps"), False),
        (rule("*"), request("configmaps"), True),
        (rule("*"), request("pods/binding"), False),
        (rule("pods"), request("pods/binding"), False),
        (rule("pods/binding"), request("pods/binding"), True),
        (rule("pods/*"), request("pods/binding"), True),
        (rule("*/*"), request("pods/binding"), True),
        (rule("*/status"), request("pods/status"), True),
        (rule("deployments"), request("deployments"), False),
        (rule("deployments", apiGroups=["apps"]), request("deployments"), True),
        (rule("deployments", apiGroups=["*"]), request("deployments"), True),
        (rule("pods", apiVersions=["v1beta1"]), request("pods"), False),
        (rule("*", scope="Cluster"), request("pods"), False),
        (rule("*", scope="Cluster"), request("nodes"), True),
        (rule("*", scope="Cluster"), request("namespaces"), True),
        (rule("*", scope="Namespaced"), request("nodes"), False),
        (rule("*", scope="Namespaced"), request("pods"), True),
        (rule("*", apiGroups=["*"]), request("mutatingwebhookconfigurations"), False),
    ],
)
def test_rules_name_operations_groups_versions_resources_and_scope(
    view: MemoryView, given: Object, asked: AdmissionRequest, concerned: bool
) -> None:
    assert webhook_matching.concerns({"rules": [given]}, asked, view) is concerned


def test_namespaces_are_selected_by_their_labels(view: MemoryView) -> None:
    webhook = {"rules": [rule("*")], "namespaceSelector": {"matchLabels": {"team": "a"}}}
    assert webhook_matching.concerns(webhook, request("pods"), view)
    view.put("namespaces", {"metadata": {"name": "other"}})
    assert not webhook_matching.concerns(webhook, request("pods", namespace="other"), view)
    assert webhook_matching.concerns(webhook, request("nodes"), view)  # it has none
    labelled = {"metadata": {"name": "x", "labels": {"team": "a"}}}
    assert webhook_matching.concerns(webhook, request("namespaces", object=labelled), view)
    assert not webhook_matching.concerns(webhook, request("namespaces"), view)
    with pytest.raises(Refusal, match='namespaces "none" not found'):
        webhook_matching.concerns(webhook, request("pods", namespace="none"), view)


def test_objects_are_selected_by_old_or_new_labels(view: MemoryView) -> None:
    webhook = {"rules": [rule("pods", "*")], "objectSelector": {"matchLabels": {"on": "1"}}}
    on: Object = {"metadata": {"labels": {"on": "1"}}}
    off: Object = {"metadata": {}}
    for old, new, concerned in (
        (on, off, True),
        (off, on, True),
        (off, off, False),
        (on, None, True),
    ):
        asked = request("pods", "UPDATE", object=new, old_object=old)
        assert webhook_matching.concerns(webhook, asked, view) is concerned


def test_conditions_must_all_be_true() -> None:
    asked = request("pods", object={"metadata": {"name": "gpu-1"}})

    def hold(*expressions: str) -> bool:
        conditions = [{"name": "c", "expression": each} for each in expressions]
        return webhook_matching.conditions_hold({"matchConditions": conditions}, asked)

    assert hold()
    assert hold("object.metadata.name == 'gpu-1'", "request.userInfo.username == 'jane'")
    assert hold("request.operation == 'CREATE' && oldObject == null && !request.dryRun")
    assert not hold("true", "false")
    # One that is false beats one that fails.
    assert not hold("object.spec.x == 1", "false")
    with pytest.raises(webhook_matching.ConditionError, match="no such key: spec"):
        hold("object.spec.x == 1", "true")
    with pytest.raises(webhook_matching.ConditionError, match="does not give a bool"):
        hold("1")
