"""Discovery: versions, groups, resources, health."""

from __future__ import annotations

import re

import pytest

from tests.kubeapi.client import Client, Object

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

# Everything that the product or its tests touch: group version, resource, kind, namespaced, short.
USED = [
    ("v1", "pods", "Pod", True, "po"),
    ("v1", "nodes", "Node", False, "no"),
    ("v1", "namespaces", "Namespace", False, "ns"),
    ("v1", "configmaps", "ConfigMap", True, "cm"),
    ("v1", "events", "Event", True, "ev"),
    ("v1", "resourcequotas", "ResourceQuota", True, "quota"),
    ("v1", "serviceaccounts", "ServiceAccount", True, "sa"),
    ("v1", "secrets", "Secret", True, None),
    ("coordination.k8s.io/v1", "leases", "Lease", True, None),
    (
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        False,
        None,
    ),
]
SUBRESOURCES = {
    ("pods/binding", "Binding", ("create",)),
    ("pods/status", "Pod", ("get", "patch", "update")),
    ("nodes/status", "Node", ("get", "patch", "update")),
}
VERBS = {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}


def test_the_version_names_a_release(api: Client) -> None:
    version = api.get("/version")
    assert re.fullmatch(r"v1\.\d+\.\d+.*", version["gitVersion"])
    assert f"v{version['major']}.{version['minor'].rstrip('+')}." in version["gitVersion"]


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_a_healthy_server_says_ok(api: Client, path: str) -> None:
    answer = api.request("GET", path, accept="*/*")
    assert (answer.status, answer.body) == (200, b"ok")
    verbose = api.request("GET", path, query={"verbose": ""}, accept="*/*")
    assert verbose.status == 200
    assert b"[+]ping ok" in verbose.body
    assert verbose.body.strip().endswith(b"check passed")


def test_the_core_group_has_version_one(api: Client) -> None:
    answer = api.get("/api")
    assert (answer["kind"], answer["versions"]) == ("APIVersions", ["v1"])


def test_the_groups_name_their_versions_and_prefer_one(api: Client) -> None:
    answer = api.get("/apis")
    assert answer["kind"] == "APIGroupList"
    groups = {group["name"]: group for group in answer["groups"]}
    for name in ("coordination.k8s.io", "admissionregistration.k8s.io"):
        assert groups[name]["preferredVersion"] == {"groupVersion": f"{name}/v1", "version": "v1"}
        assert {"groupVersion": f"{name}/v1", "version": "v1"} in groups[name]["versions"]


def test_a_group_can_be_asked_for_by_itself(api: Client) -> None:
    answer = api.get("/apis/coordination.k8s.io")
    assert (answer["kind"], answer["name"]) == ("APIGroup", "coordination.k8s.io")


def resources(api: Client, version: str) -> dict[str, Object]:
    answer = api.get(f"/api/{version}" if "/" not in version else f"/apis/{version}")
    assert (answer["kind"], answer["groupVersion"]) == ("APIResourceList", version)
    return {resource["name"]: resource for resource in answer["resources"]}


@pytest.mark.parametrize(("version", "name", "kind", "namespaced", "short"), USED)
def test_a_version_lists_its_resources(  # noqa: PLR0917 - one argument for each column of the table
    api: Client, version: str, name: str, kind: str, namespaced: object, short: str | None
) -> None:
    found = resources(api, version)[name]
    assert (found["kind"], found["namespaced"]) == (kind, namespaced)
    assert found["singularName"] == kind.lower()
    assert (short in found.get("shortNames", [])) == (short is not None)
    assert set(found["verbs"]) == (VERBS - {"deletecollection"} if name == "namespaces" else VERBS)


@pytest.mark.parametrize(("name", "kind", "verbs"), sorted(SUBRESOURCES))
def test_a_version_lists_its_subresources(
    api: Client, name: str, kind: str, verbs: tuple[str, ...]
) -> None:
    found = resources(api, "v1")[name]
    assert (found["kind"], sorted(found["verbs"])) == (kind, sorted(verbs))


def aggregated(api: Client, path: str) -> dict[tuple[str, str], dict[str, Object]]:
    answer = api.request("GET", path, accept=AGGREGATED)
    assert answer.status == 200
    assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
    found = answer.json()
    assert (found["kind"], found["apiVersion"]) == (
        "APIGroupDiscoveryList",
        "apidiscovery.k8s.io/v2",
    )
    return {
        (group["metadata"].get("name", ""), version["version"]): {
            resource["resource"]: resource for resource in version["resources"]
        }
        for group in found["items"]
        for version in group["versions"]
    }


def test_one_request_tells_everything_about_the_core_group(api: Client) -> None:
    core = aggregated(api, "/api")["", "v1"]
    for version, name, kind, namespaced, short in USED:
        if version == "v1":
            found = core[name]
            assert found["responseKind"]["kind"] == kind
            assert found["scope"] == ("Namespaced" if namespaced else "Cluster")
            assert (short in found.get("shortNames", [])) == (short is not None)
    subresources = {s["subresource"]: s for s in core["pods"]["subresources"]}
    assert subresources["binding"]["responseKind"]["kind"] == "Binding"
    assert set(subresources["status"]["verbs"]) == {"get", "patch", "update"}


def test_one_request_tells_everything_about_all_other_groups(api: Client) -> None:
    found = aggregated(api, "/apis")
    assert found["coordination.k8s.io", "v1"]["leases"]["responseKind"]["kind"] == "Lease"
    hooks = found["admissionregistration.k8s.io", "v1"]["mutatingwebhookconfigurations"]
    assert hooks["scope"] == "Cluster"


def test_aggregated_discovery_has_an_etag_and_answers_that_nothing_changed(api: Client) -> None:
    first = api.request("GET", "/api", accept=AGGREGATED)
    again = api.request(
        "GET", "/api", accept=AGGREGATED, headers={"If-None-Match": first.headers["ETag"]}
    )
    assert (again.status, again.body) == (304, b"")


@pytest.mark.needs("openapi")
def test_the_document_of_a_version_is_found_through_the_index(api: Client) -> None:
    """Without it kubectl does not know whether the server validates fields."""
    index = api.get("/openapi/v3")["paths"]
    address = index["api/v1"]["serverRelativeURL"]
    path, _, query = address.partition("?")
    document = api.get(path, **dict([query.split("=", 1)]))
    assert document["openapi"].startswith("3.")
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}


@pytest.mark.parametrize("path", ["/api/v2", "/apis/nothing.invalid", "/apis/apps/v0", "/nothing"])
def test_an_unknown_path_is_not_found(api: Client, path: str) -> None:
    assert api.request("GET", path).status == 404
