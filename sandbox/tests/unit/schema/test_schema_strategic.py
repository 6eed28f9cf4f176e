"""Strategic merge patch: merge keys of a kind, and the directives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.schema import patches
from sandbox.tests.unit.schema.given import CONFIG_MAP as MAP
from sandbox.tests.unit.schema.given import DAEMON_SET, NODE, POD, Object, config_map, named, pod


def patched(of: Kind, current: Object, patch: object, media: str = patches.STRATEGIC) -> Object:
    return patches.patched(of, current, media, json.dumps(patch).encode())


@pytest.fixture
def current() -> Object:
    return pod(
        containers=[
            {"name": "a", "image": "x:1", "env": [{"name": "A", "value": "1"}], "args": ["1"]},
            {"name": "b", "image": "y:1"},
        ],
        volumes=[{"name": "v", "emptyDir": {}}],
        tolerations=[{"key": "k"}],
    )


def containers(found: Object) -> dict[str, Any]:
    return {each["name"]: each for each in found["spec"]["containers"]}


def test_lists_with_a_key_merge_and_others_are_replaced(current: Object) -> None:
    change = {
        "containers": [{"name": "a", "env": [{"name": "B", "value": "2"}], "args": ["2"]}],
        "tolerations": [{"key": "other"}],
    }
    found = patched(POD, current, {"spec": change})
    first = containers(found)["a"]
    assert first["image"] == "x:1"
    assert first["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert first["args"] == ["2"]
    assert containers(found)["b"]["image"] == "y:1"
    assert found["spec"]["tolerations"] == [{"key": "other"}]


def test_an_element_is_deleted_or_replaced_by_directive(current: Object) -> None:
    gone = patched(POD, current, {"spec": {"containers": [{"$patch": "delete", "name": "a"}]}})
    assert [each["name"] for each in gone["spec"]["containers"]] == ["b"]
    replaced = patched(
        POD, current, {"spec": {"containers": [{"$patch": "replace", "name": "a", "image": "z"}]}}
    )
    assert containers(replaced)["a"] == {"name": "a", "image": "z", "resources": {}}


def test_a_whole_list_is_replaced_by_directive(current: Object) -> None:
    patch = {"spec": {"containers": [{"name": "c", "image": "z"}, {"$patch": "replace"}]}}
    assert list(containers(patched(POD, current, patch))) == ["c"]


def test_elements_are_put_in_the_order_asked_for(current: Object) -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
            "containers": [{"name": "c", "image": "z"}],
        }
    }
    assert list(containers(patched(POD, current, patch))) == ["c", "b", "a"]


def test_an_element_that_the_order_does_not_name_stays_behind_its_neighbour() -> None:
    env = [{"name": name, "value": "1"} for name in "ABC"]
    current = pod(containers=[{"name": "a", "image": "x", "env": env}])
    order = {"name": "a", "$setElementOrder/env": [{"name": "C"}, {"name": "A"}]}
    found = patched(POD, current, {"spec": {"containers": [order]}})
    assert [each["name"] for each in containers(found)["a"]["env"]] == ["C", "A", "B"]


def test_only_retained_keys_stay(current: Object) -> None:
    volume = {"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}
    found = patched(POD, current, {"spec": {"volumes": [volume]}})
    assert found["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_a_map_is_replaced_or_emptied_by_directive() -> None:
    current = config_map(a="1", b="1")
    replaced = patched(MAP, current, {"data": {"$patch": "replace", "c": "1", "d": None}})
    assert replaced["data"] == {"c": "1"}
    assert "data" not in patched(MAP, current, {"data": {"$patch": "delete"}})


def test_a_set_grows_and_shrinks() -> None:
    current = named(MAP)
    current["metadata"]["finalizers"] = ["a/a", "a/b"]
    grown = patched(MAP, current, {"metadata": {"finalizers": ["a/c", "a/a"]}})
    assert grown["metadata"]["finalizers"] == ["a/a", "a/b", "a/c"]
    shrunk = patched(MAP, grown, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}})
    assert shrunk["metadata"]["finalizers"] == ["a/a", "a/c"]


def test_what_is_new_keeps_no_directives_and_no_nulls() -> None:
    patch: Object = {
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "a", "$setElementOrder/env": [], "image": "x", "args": None}
                    ]
                }
            }
        }
    }
    found = patched(DAEMON_SET, named(DAEMON_SET), patch)
    assert found["spec"]["template"]["spec"]["containers"] == [
        {"name": "a", "image": "x", "resources": {}}
    ]


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "does not contain declared merge key: name"),
        ({"spec": {"containers": ["x"]}}, "expected objects"),
        ({"metadata": {"$patch": "shred"}}, "unknown patch type: shred"),
    ],
)
def test_a_patch_that_makes_no_sense_is_refused(current: Object, patch: Object, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        patched(POD, current, patch)
    assert refused.value.status == 500
    assert words in refused.value.message


@pytest.mark.parametrize("media", [patches.STRATEGIC, patches.MERGE])
def test_a_patch_that_leaves_a_wrong_type_is_invalid(media: str) -> None:
    with pytest.raises(Refusal) as refused:
        patched(MAP, config_map(a="1"), {"data": {"a": 5}}, media)
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert "of type string" in refused.value.message


@pytest.mark.parametrize("media", [patches.STRATEGIC, patches.MERGE])
def test_unknown_fields_of_a_patch_are_told_and_dropped(media: str) -> None:
    unknown: list[str] = []
    body = b'{"spec": {"unschedulabel": true, "unschedulable": true}}'
    found = patches.patched(NODE, named(NODE), media, body, unknown=unknown)
    assert unknown == ["spec.unschedulabel"]
    assert found["spec"] == {"unschedulable": True}


@pytest.mark.parametrize(
    ("media", "status"),
    [("application/json", 415), ("", 415), (patches.APPLY, 415), (patches.JSON, 400)],
)
def test_another_type_of_patch_is_refused(media: str, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        patched(MAP, config_map(), {"data": {}}, media)
    assert refused.value.status == status


def test_a_custom_resource_has_no_strategic_merge() -> None:
    custom = Kind(group="a.b", version="v1", resource="cs", kind="C", singular="c", custom=True)
    assert patched(custom, named(custom), {"spec": {"x": 1}}, patches.MERGE)["spec"] == {"x": 1}
    with pytest.raises(Refusal) as refused:
        patched(custom, named(custom), {"spec": {"x": 1}})
    assert refused.value.status == 415


def test_the_stored_object_is_never_touched(current: Object) -> None:
    before = json.dumps(current)
    patched(POD, current, {"spec": {"containers": [{"name": "a", "image": "other"}]}})
    patched(POD, current, [{"op": "replace", "path": "/spec/volumes", "value": []}], patches.JSON)
    assert json.dumps(current) == before
