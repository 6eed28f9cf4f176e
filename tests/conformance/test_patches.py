"""JSON patch (RFC 6902) and merge patch (RFC 7396)."""

from __future__ import annotations

import pytest

from tests.conformance.objects import config_map, container, lease, pod, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, leases, nodes, pods

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def made(api: Client, namespace: str) -> Object:
    data = {"keep": "1", "change": "1", "drop": "1"}
    annotations = {"hami.io/a": "1", "plain": "1"}
    return api.create(config_maps(namespace), config_map("m", data, annotations=annotations))


def operations(api: Client, namespace: str, *ops: Object) -> Object:
    return api.patch(config_maps(namespace, "m"), list(ops), JSON)


def test_json_patch_adds_replaces_and_removes(api: Client, namespace: str, made: Object) -> None:
    patched = operations(
        api,
        namespace,
        {"op": "add", "path": "/data/new", "value": "2"},
        {"op": "replace", "path": "/data/change", "value": "2"},
        {"op": "remove", "path": "/data/drop"},
    )
    assert patched["data"] == {"keep": "1", "change": "2", "new": "2"}


def test_json_patch_copies_and_moves(api: Client, namespace: str, made: Object) -> None:
    patched = operations(
        api,
        namespace,
        {"op": "copy", "from": "/data/keep", "path": "/data/copied"},
        {"op": "move", "from": "/data/drop", "path": "/data/moved"},
    )
    assert patched["data"] == {"keep": "1", "change": "1", "copied": "1", "moved": "1"}


def test_a_slash_in_a_key_is_written_as_tilde_one(
    api: Client, namespace: str, made: Object
) -> None:
    patched = operations(
        api, namespace, {"op": "replace", "path": "/metadata/annotations/hami.io~1a", "value": "2"}
    )
    assert patched["metadata"]["annotations"] == {"hami.io/a": "2", "plain": "1"}


def test_json_patch_inserts_into_and_appends_to_arrays(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("l", finalizers=["hami.io/b"]))
    add = {"op": "add", "path": "/metadata/finalizers/0", "value": "hami.io/a"}
    append = {"op": "add", "path": "/metadata/finalizers/-", "value": "hami.io/c"}
    patched = api.patch(leases(namespace, "l"), [add, append], JSON)
    assert patched["metadata"]["finalizers"] == ["hami.io/a", "hami.io/b", "hami.io/c"]
    api.patch(leases(namespace, "l"), [{"op": "remove", "path": "/metadata/finalizers"}], JSON)
    assert "finalizers" not in api.get(leases(namespace, "l"))["metadata"]


def test_a_test_that_holds_lets_the_rest_happen(api: Client, namespace: str, made: Object) -> None:
    patched = operations(
        api,
        namespace,
        {"op": "test", "path": "/metadata/resourceVersion", "value": revision(made)},
        {"op": "test", "path": "/data/change", "value": "1"},
        {"op": "replace", "path": "/data/change", "value": "2"},
    )
    assert patched["data"]["change"] == "2"


@pytest.mark.parametrize(
    "broken",
    [
        {"op": "test", "path": "/data/keep", "value": "other"},
        {"op": "remove", "path": "/data/absent"},
        {"op": "add", "path": "/absent/deep", "value": "2"},
    ],
    ids=["failed test", "remove absent", "add below absent"],
)
def test_an_operation_that_fails_refuses_the_whole_patch(
    api: Client, namespace: str, made: Object, broken: Object
) -> None:
    with refused(422, "Invalid"):
        operations(api, namespace, {"op": "replace", "path": "/data/change", "value": "2"}, broken)
    assert api.get(config_maps(namespace, "m")) == made


def test_json_patch_that_leaves_an_invalid_object_is_refused(
    api: Client, namespace: str, made: Object
) -> None:
    with refused(422, "Invalid"):
        operations(
            api, namespace, {"op": "add", "path": "/metadata/labels", "value": {"k": "x" * 64}}
        )
    assert api.get(config_maps(namespace, "m")) == made


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{"data": {"a": "b"}}'),
        (JSON, b"[{"),
        (MERGE, b"{"),
        (MERGE, b"[]"),
    ],
)
def test_a_patch_of_the_wrong_shape_is_a_bad_request(
    api: Client, namespace: str, made: Object, content_type: str, body: bytes
) -> None:
    answer = api.request("PATCH", config_maps(namespace, "m"), body=body, content_type=content_type)
    assert answer.status == 400
    assert api.get(config_maps(namespace, "m")) == made


def test_a_patch_of_an_unknown_type_is_unsupported(
    api: Client, namespace: str, made: Object
) -> None:
    answer = api.request("PATCH", config_maps(namespace, "m"), body={"data": {"a": "b"}})
    assert (answer.status, answer.json()["reason"]) == (415, "UnsupportedMediaType")


def test_merge_patch_sets_keeps_and_removes(api: Client, namespace: str, made: Object) -> None:
    patch = {"data": {"change": "2", "drop": None, "new": "2"}}
    patched = api.patch(config_maps(namespace, "m"), patch, MERGE)
    assert patched["data"] == {"keep": "1", "change": "2", "new": "2"}
    assert patched["metadata"]["annotations"] == made["metadata"]["annotations"]


def test_merge_patch_removes_a_whole_map_with_null(
    api: Client, namespace: str, made: Object
) -> None:
    patched = api.patch(config_maps(namespace, "m"), {"data": None}, MERGE)
    assert "data" not in patched


def test_merge_patch_replaces_lists_whole(api: Client, namespace: str) -> None:
    made = api.create(pods(namespace), pod("p", {"containers": [container("a"), container("b")]}))
    with refused(422, "Invalid"):  # for a pod may not lose a container
        api.patch(
            pods(namespace, "p"), {"spec": {"containers": [made["spec"]["containers"][0]]}}, MERGE
        )


def test_merge_patch_of_a_nodes_taints_replaces_them_all(api: Client, node: str) -> None:
    taints = [{"key": "hami.io/other", "effect": "NoSchedule"}]
    patched = api.patch(nodes(node), {"spec": {"taints": taints}}, MERGE)
    assert patched["spec"]["taints"] == taints


def test_a_patch_of_an_object_that_does_not_exist_is_not_found(api: Client, namespace: str) -> None:
    for content_type, body in ((MERGE, {}), (JSON, []), (STRATEGIC, {})):
        with refused(404, "NotFound"):
            api.patch(config_maps(namespace, "absent"), body, content_type)


def test_a_patch_cannot_change_a_name_or_a_namespace(
    api: Client, namespace: str, made: Object
) -> None:
    for metadata in ({"name": "other"}, {"namespace": "default"}):
        answer = api.request(
            "PATCH",
            config_maps(namespace, "m"),
            body={"metadata": metadata},
            content_type=MERGE,
        )
        assert (answer.status, answer.json()["reason"]) == (400, "BadRequest")
    assert api.get(config_maps(namespace, "m")) == made


def test_a_dry_patch_answers_with_the_result_and_stores_nothing(
    api: Client, namespace: str, made: Object
) -> None:
    dry = api.patch(config_maps(namespace, "m"), {"data": {"keep": "2"}}, MERGE, dryRun="All")
    assert dry["data"]["keep"] == "2"
    assert api.get(config_maps(namespace, "m")) == made


def test_numbers_and_text_keep_their_kind(api: Client, namespace: str, made: Object) -> None:
    answer = api.request(
        "PATCH", config_maps(namespace, "m"), body={"data": {"k": 5}}, content_type=MERGE
    )
    assert (answer.status, answer.json()["reason"]) == (422, "Invalid")
    assert api.get(config_maps(namespace, "m")) == made
