"""Documents from which clients learn what is served: discovery and OpenAPI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_sandbox.apiserver.kinds import KINDS
from hami_sandbox.apiserver.schema import discovery, openapi


def test_every_kind_is_found_under_its_group_and_version() -> None:
    for kind in KINDS:
        found = discovery.resources(KINDS, kind.group, kind.version)
        assert found is not None
        assert found["groupVersion"] == kind.api_version
        names = {resource["name"]: resource for resource in found["resources"]}
        assert names[kind.resource]["kind"] == kind.kind
        for sub in kind.subresources:
            assert names[f"{kind.resource}/{sub.name}"]["kind"] == sub.kind


def test_both_ways_of_discovery_tell_the_same() -> None:
    documents = [discovery.aggregated(KINDS, core=core)[0] for core in (True, False)]
    listed = {
        (group["metadata"].get("name", ""), version["version"], resource["resource"]): resource
        for document in documents
        for group in document["items"]
        for version in group["versions"]
        for resource in version["resources"]
    }
    assert listed.keys() == {(kind.group, kind.version, kind.resource) for kind in KINDS}
    for kind in KINDS:
        told = listed[kind.group, kind.version, kind.resource]
        assert told["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
        assert told["verbs"] == list(kind.verbs)
        assert [sub["subresource"] for sub in told.get("subresources", [])] == [
            sub.name for sub in kind.subresources
        ]


def test_the_etag_tells_whether_anything_changed() -> None:
    _, etag = discovery.aggregated(KINDS, core=True)
    assert discovery.aggregated(KINDS, core=True)[1] == etag
    assert discovery.aggregated(KINDS[1:], core=True)[1] != etag
    assert etag.startswith('"')
    assert etag.endswith('"')


def test_groups_are_listed_once_without_the_core() -> None:
    names = [group["name"] for group in discovery.groups(KINDS)["groups"]]
    assert len(names) == len(set(names))
    assert "" not in names
    assert discovery.group(KINDS, "apps") == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "apps",
        "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
    }


def test_what_is_not_served_has_no_document() -> None:
    assert discovery.group(KINDS, "nothing.invalid") is None
    assert discovery.group(KINDS, "") is None
    assert discovery.resources(KINDS, "apps", "v0") is None
    assert openapi.document(KINDS, "apis/apps/v0") is None


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_references(inner) for inner in value.values()))
    return set().union(*(_references(i) for i in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("path", sorted(openapi.index(KINDS)["paths"]))
def test_every_reference_of_a_document_leads_somewhere(path: str) -> None:
    document = openapi.document(KINDS, path)
    assert document is not None
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_kubectl_finds_how_a_patch_is_validated_and_lists_are_merged() -> None:
    document = openapi.document(KINDS, "apis/apps/v1")
    assert document is not None
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": "apps",
        "version": "v1",
        "kind": "Deployment",
    }
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    pod = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]
    containers = pod["properties"]["containers"]
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert pod["properties"]["tolerations"]["x-kubernetes-list-type"] == "atomic"


def test_the_index_changes_with_what_it_points_to() -> None:
    fewer = tuple(kind for kind in KINDS if kind.kind != "Deployment")
    before, after = openapi.index(KINDS)["paths"], openapi.index(fewer)["paths"]
    assert before["apis/apps/v1"] != after["apis/apps/v1"]
    assert before["api/v1"] == after["api/v1"]


def test_the_old_document_describes_all_kinds() -> None:
    document = openapi.version_two(KINDS)
    named = [
        kind["kind"]
        for definition in document["definitions"].values()
        for kind in definition.get("x-kubernetes-group-version-kind", [])
    ]
    assert {"Pod", "Deployment", "Lease"} <= set(named)
    json.dumps(document)
