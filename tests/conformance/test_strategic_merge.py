"""Strategic merge patch: lists that are merged by a key, and the directives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.objects import config_map, container, pod, refused
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, leases, nodes, pods

STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def made(api: Client, namespace: str) -> Object:
    containers = [container("a", env=[{"name": "X", "value": "1"}]), container("b")]
    return api.create(pods(namespace), pod("p", {"containers": containers}))


def merge(api: Client, path: str, patch: Object, **query: str) -> Object:
    return api.patch(path, patch, STRATEGIC, **query)


def test_containers_are_merged_by_their_name(api: Client, namespace: str, made: Object) -> None:
    patch = {"spec": {"containers": [{"name": "b", "image": "registry.invalid/other:2"}]}}
    patched = merge(api, pods(namespace, "p"), patch)
    images = {c["name"]: c["image"] for c in patched["spec"]["containers"]}
    assert images == {"a": "registry.invalid/none:1", "b": "registry.invalid/other:2"}
    assert patched["spec"]["containers"][0] == made["spec"]["containers"][0]


def test_a_container_with_a_new_name_is_added_and_not_merged(
    api: Client, namespace: str, made: Object
) -> None:
    with refused(422, "Invalid") as refusal:  # which a pod, unlike its template, does not allow
        merge(api, pods(namespace, "p"), {"spec": {"containers": [container("c")]}})
    assert "may not add or remove containers" in refusal.message


def test_the_delete_directive_removes_the_container_with_that_name(
    api: Client, namespace: str, made: Object
) -> None:
    with refused(422, "Invalid") as refusal:
        merge(
            api,
            pods(namespace, "p"),
            {"spec": {"containers": [{"$patch": "delete", "name": "b"}]}},
        )
    assert "may not add or remove containers" in refusal.message


def test_labels_and_annotations_are_merged_and_null_removes(
    api: Client, namespace: str, made: Object
) -> None:
    path = pods(namespace, "p")
    merge(api, path, {"metadata": {"annotations": {"a": "1", "b": "1"}}})
    patched = merge(api, path, {"metadata": {"annotations": {"a": None, "c": "1"}}})
    assert patched["metadata"]["annotations"] == {"b": "1", "c": "1"}


def conditions(node: Object) -> dict[str, str]:
    return {c["type"]: c["status"] for c in node["status"]["conditions"]}


def test_conditions_of_a_node_are_merged_and_removed_by_type(api: Client, node: str) -> None:
    path = nodes(node, "status")
    gpu = {"type": "GPUHealthy", "status": "True"}
    added = merge(api, path, {"status": {"conditions": [gpu]}})
    assert conditions(added) == {"Ready": "True", "GPUHealthy": "True"}
    gone: dict[str, Any] = {"$patch": "delete", "type": "GPUHealthy"}
    assert conditions(merge(api, path, {"status": {"conditions": [gone]}})) == {"Ready": "True"}


def test_the_replace_directive_replaces_a_list_whole(api: Client, node: str) -> None:
    gpu = {"type": "GPUHealthy", "status": "True"}
    replaced = merge(
        api, nodes(node, "status"), {"status": {"conditions": [gpu, {"$patch": "replace"}]}}
    )
    assert conditions(replaced) == {"GPUHealthy": "True"}


def test_the_replace_directive_replaces_a_map_whole(api: Client, node: str) -> None:
    api.patch(nodes(node), {"metadata": {"annotations": {"old": "1"}}})
    patch = {"metadata": {"annotations": {"$patch": "replace", "new": "1"}}}
    assert merge(api, nodes(node), patch)["metadata"]["annotations"] == {"new": "1"}


def test_taints_have_no_merge_key_and_are_replaced(api: Client, node: str) -> None:
    taints = [{"key": "hami.io/other", "effect": "NoSchedule"}]
    patched = merge(api, nodes(node), {"spec": {"taints": taints}})
    assert patched["spec"]["taints"] == taints


def test_finalizers_are_a_set_that_grows_and_shrinks_by_directive(
    api: Client, namespace: str
) -> None:
    path = pods(namespace, "p")
    api.create(pods(namespace), pod("p", finalizers=["hami.io/a"]))
    grown = merge(api, path, {"metadata": {"finalizers": ["hami.io/b", "hami.io/a"]}})
    assert sorted(grown["metadata"]["finalizers"]) == ["hami.io/a", "hami.io/b"]
    shrunk = merge(api, path, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["hami.io/a"]}})
    assert shrunk["metadata"]["finalizers"] == ["hami.io/b"]
    api.patch(path, {"metadata": {"finalizers": None}})


def test_owner_references_are_merged_by_uid(api: Client, namespace: str, made: Object) -> None:
    # Owners that exist: a garbage collector, where one runs, takes the orphans of others.
    uids = {
        name: api.create(config_maps(namespace), config_map(name))["metadata"]["uid"]
        for name in ("one", "two")
    }

    def own(name: str, **fields: object) -> Object:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uids[name]}
        patch = {"metadata": {"ownerReferences": [{**owner, **fields}]}}
        return merge(api, pods(namespace, "p"), patch)

    own("one")
    own("two")
    owners = own("one", controller=True)["metadata"]["ownerReferences"]
    assert {o["name"]: o.get("controller", False) for o in owners} == {"one": True, "two": False}
    assert len(owners) == 2


def test_an_element_without_its_key_is_refused(api: Client, namespace: str, made: Object) -> None:
    answer = api.request(
        "PATCH",
        pods(namespace, "p"),
        body={"spec": {"containers": [{"image": "x"}]}},
        content_type=STRATEGIC,
    )
    assert answer.status in {400, 422, 500}  # kube-apiserver: 500
    assert "merge key" in answer.json()["message"]
    assert api.get(pods(namespace, "p")) == made


def test_an_unknown_directive_is_refused(api: Client, namespace: str, made: Object) -> None:
    answer = api.request(
        "PATCH",
        pods(namespace, "p"),
        body={"metadata": {"$patch": "shred"}},
        content_type=STRATEGIC,
    )
    assert answer.status in {400, 422, 500}  # kube-apiserver: 500
    assert "shred" in answer.json()["message"]
    assert api.get(pods(namespace, "p")) == made


def test_plain_fields_are_merged_as_in_a_merge_patch(api: Client, namespace: str) -> None:
    api.create(leases(namespace), {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}})
    patched = merge(api, leases(namespace, "l"), {"spec": {"leaseDurationSeconds": 5}})
    assert patched["spec"] == {"holderIdentity": "x", "leaseDurationSeconds": 5}
