"""Server-side apply: fields have owners; taking one needs force."""

from __future__ import annotations

from typing import Any

from tests.conformance.objects import config_map, container, lease, pod, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, leases, nodes, pods

APPLY = "application/apply-patch+yaml"


def apply(api: Client, path: str, wish: Object, manager: str, **query: str) -> Object:
    return api.patch(path, wish, APPLY, fieldManager=manager, **query)


def owners(stored: Object) -> dict[tuple[str, str], Any]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"]
        for entry in stored["metadata"]["managedFields"]
    }


def test_apply_creates_what_is_not_there(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    answer = api.request(
        "PATCH",
        path,
        body=config_map("m", {"k": "v"}),
        content_type=APPLY,
        query={"fieldManager": "one"},
    )
    assert answer.status == 201
    assert api.get(path)["data"] == {"k": "v"}
    assert owners(answer.json()) == {("one", "Apply"): {"f:data": {"f:k": {}}}}


def test_apply_again_changes_nothing(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    first = apply(api, path, config_map("m", {"k": "v"}), "one")
    assert revision(apply(api, path, config_map("m", {"k": "v"}), "one")) == revision(first)


def test_apply_takes_yaml(api: Client, namespace: str) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  k: v\n"
    answer = api.request(
        "PATCH",
        config_maps(namespace, "m"),
        body=text,
        content_type=APPLY,
        query={"fieldManager": "one"},
    )
    assert (answer.status, answer.json()["data"]) == (201, {"k": "v"})


def test_a_field_that_is_no_longer_applied_is_removed(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    apply(api, path, config_map("m", {"a": "1", "b": "1"}), "one")
    assert apply(api, path, config_map("m", {"b": "1"}), "one")["data"] == {"b": "1"}


def test_managers_of_different_fields_do_not_disturb_each_other(
    api: Client, namespace: str
) -> None:
    path = config_maps(namespace, "m")
    apply(api, path, config_map("m", {"a": "1"}), "one")
    both = apply(api, path, config_map("m", {"b": "1"}), "two")
    assert both["data"] == {"a": "1", "b": "1"}
    assert owners(both) == {
        ("one", "Apply"): {"f:data": {"f:a": {}}},
        ("two", "Apply"): {"f:data": {"f:b": {}}},
    }


def test_a_field_of_another_manager_is_a_conflict_that_names_owner_and_field(
    api: Client, namespace: str
) -> None:
    path = config_maps(namespace, "m")
    before = apply(api, path, config_map("m", {"a": "1"}), "one")
    with refused(409, "Conflict") as refusal:
        apply(api, path, config_map("m", {"a": "2"}), "two")
    assert '"one"' in refusal.message
    found = refusal.error.body["details"]["causes"]
    assert [(c["reason"], c["field"]) for c in found] == [("FieldManagerConflict", ".data.a")]
    assert api.get(path) == before


def test_force_takes_the_field_and_its_former_owner_loses_it(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    apply(api, path, config_map("m", {"a": "1"}), "one")
    taken = apply(api, path, config_map("m", {"a": "2"}), "two", force="true")
    assert taken["data"] == {"a": "2"}
    assert owners(taken) == {("two", "Apply"): {"f:data": {"f:a": {}}}}


def test_the_same_value_is_owned_together_without_a_conflict(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    for manager in ("one", "two"):
        apply(api, path, config_map("m", {"a": "1"}), manager)
    kept = apply(api, path, config_map("m"), "one")
    assert kept["data"] == {"a": "1"}  # the other one still wants it
    assert "data" not in apply(api, path, config_map("m"), "two")


def test_an_ordinary_write_owns_what_it_wrote(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    api.create(config_maps(namespace), config_map("m", {"a": "1"}), fieldManager="writer")
    with refused(409, "Conflict") as refusal:
        apply(api, path, config_map("m", {"a": "2"}), "one")
    assert '"writer"' in refusal.message
    api.patch(path, {"data": {"b": "1"}}, fieldManager="patcher")
    assert owners(api.get(path))["patcher", "Update"] == {"f:data": {"f:b": {}}}


def test_the_manager_of_an_ordinary_write_is_by_default_the_user_agent(
    api: Client, namespace: str
) -> None:
    answer = api.request(
        "POST",
        config_maps(namespace),
        body=config_map("m", {"a": "1"}),
        headers={"User-Agent": "some-agent/v1 (linux)"},
    )
    assert set(owners(answer.json())) == {("some-agent", "Update")}


def test_lists_with_a_key_are_merged_by_it(api: Client, node: str) -> None:
    def conditions(kind: str) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node},
            "status": {"conditions": [{"type": kind, "status": "True"}]},
        }

    apply(api, nodes(node, "status"), conditions("GPU"), "one")
    merged = apply(api, nodes(node, "status"), conditions("Fabric"), "two")
    kinds = [c["type"] for c in merged["status"]["conditions"]]
    assert sorted(kinds) == ["Fabric", "GPU", "Ready"]


def test_a_container_is_owned_by_its_name(api: Client, namespace: str) -> None:
    wish = pod("p", {"containers": [container("a"), container("b")]})
    apply(api, pods(namespace, "p"), wish, "one")
    stored = owners(api.get(pods(namespace, "p")))["one", "Apply"]
    assert set(stored["f:spec"]["f:containers"]) == {'k:{"name":"a"}', 'k:{"name":"b"}'}
    other = pod("p", {"containers": [container("b", image="registry.invalid/x:2")]})
    other["spec"] = {"containers": other["spec"]["containers"]}
    patched = apply(api, pods(namespace, "p"), other, "two", force="true")
    images = {c["name"]: c["image"] for c in patched["spec"]["containers"]}
    assert images == {"a": "registry.invalid/none:1", "b": "registry.invalid/x:2"}


def test_apply_must_name_its_manager_and_its_kind(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    with refused(422, "Invalid") as refusal:
        api.patch(path, config_map("m"), APPLY)
    assert "fieldManager" in refusal.message
    for missing in ("apiVersion", "kind"):
        wish = {key: value for key, value in config_map("m").items() if key != missing}
        with refused(400, "BadRequest"):
            apply(api, path, wish, "one")


def test_force_is_only_for_apply(api: Client, namespace: str) -> None:
    api.create(config_maps(namespace), config_map("m"))
    with refused(422, "Invalid"):
        api.patch(config_maps(namespace, "m"), {"data": {"a": "1"}}, force="true")


def test_apply_with_a_stale_version_is_a_conflict(api: Client, namespace: str) -> None:
    made = api.create(leases(namespace), lease("a"))
    api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "newer"}})
    wish = lease("a", holder="me", resourceVersion=revision(made))
    with refused(409, "Conflict"):
        apply(api, leases(namespace, "a"), wish, "one", force="true")


def test_apply_cannot_forge_the_record_of_owners(api: Client, namespace: str) -> None:
    wish = config_map("m", {"a": "1"}, managedFields=[{"manager": "x"}])
    with refused(400, "BadRequest") as refusal:
        apply(api, config_maps(namespace, "m"), wish, "one")
    assert "managedFields" in refusal.message


def test_the_record_of_owners_can_be_dropped(api: Client, namespace: str) -> None:
    path = config_maps(namespace, "m")
    apply(api, path, config_map("m", {"a": "1"}), "one")
    cleared = api.patch(path, {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in cleared["metadata"]
