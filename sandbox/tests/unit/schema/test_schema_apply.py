"""Server-side apply: owners, conflicts, and fields without an owner."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.schema import apply, field_paths, schema
from sandbox.tests.unit.schema.given import (
    CONFIG_MAP,
    DAEMON_SET,
    LATER,
    NODE,
    NOW,
    POD,
    Object,
    applied,
    config_map,
    named,
    owners,
    pod,
)

_data = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)
_wishes = st.builds(
    lambda data, labels, finalizers: {
        **config_map(**data),
        "metadata": {"name": "x", "labels": labels, "finalizers": finalizers},
    },
    _data,
    _data,
    st.lists(st.sampled_from(["a/a", "a/b"]), unique=True),
)


def test_the_first_to_apply_owns_what_it_names() -> None:
    made = applied(None, config_map(a="1"), "one")
    assert made["data"] == {"a": "1"}
    assert made["metadata"]["managedFields"] == [
        {
            "manager": "one",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "2026-01-02T03:04:05Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}},
        }
    ]


@settings(max_examples=40)
@given(_wishes)
def test_applying_twice_changes_nothing(wish: Object) -> None:
    once = applied(None, wish, "one")
    assert applied(once, wish, "one", now=LATER) == once


@settings(max_examples=40)
@given(_wishes, _wishes)
def test_after_a_forced_apply_the_object_has_all_that_was_wished(one: Object, two: Object) -> None:
    live = applied(applied(None, one, "one"), two, "two", force=True)
    assert (live.get("data") or {}).items() >= two["data"].items()
    assert set(live["metadata"].get("finalizers", [])) >= set(two["metadata"]["finalizers"])
    # And applying it once more, even without force, is neither a change nor a conflict.
    assert applied(live, two, "two", now=LATER) == live


@settings(max_examples=40)
@given(_wishes, _wishes)
def test_who_applies_nothing_any_more_takes_only_its_own_fields_away(
    one: Object, two: Object
) -> None:
    alone = applied(None, one, "one")
    both = applied(alone, two, "two", force=True)
    left = applied(both, named(CONFIG_MAP), "two")
    expected = {k: v for k, v in one["data"].items() if two["data"].get(k, v) == v}
    assert left.get("data", {}) == expected
    assert not any(manager == "two" for manager, _ in owners(left))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("xyz"), _wishes), max_size=6))
def test_every_field_of_an_object_that_was_only_applied_has_an_owner(
    writes: list[tuple[str, Object]],
) -> None:
    live: Object | None = None
    for manager, wish in writes:
        live = applied(live, wish, manager, force=True)
    if live is not None:
        shape = schema.of(CONFIG_MAP)
        present = field_paths.owned(shape, {"data": live.get("data", {})})
        owned = {path for e in owners(live).values() for path in field_paths.decode(e)}
        assert present - {("f:data",)} <= owned


def test_a_field_of_another_is_a_conflict_in_the_words_of_the_server() -> None:
    live = applied(None, config_map(a="1", b="1"), "one")
    with pytest.raises(Refusal) as refused:
        applied(live, config_map(a="2"), "two")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert refused.value.message == ('Apply failed with 1 conflict: conflict with "one": .data.a')
    with pytest.raises(Refusal) as refused:
        applied(live, config_map(a="2", b="2"), "two")
    assert refused.value.message == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .data.a\n- .data.b'
    )
    assert refused.value.details == {
        "causes": [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "one"',
                "field": f".data.{name}",
            }
            for name in "ab"
        ]
    }


def test_a_shared_field_stays_until_its_last_owner_drops_it() -> None:
    live = applied(applied(None, config_map(a="1"), "one"), config_map(a="1"), "two")
    live = applied(live, named(CONFIG_MAP), "one")
    assert live["data"] == {"a": "1"}
    assert "data" not in applied(live, named(CONFIG_MAP), "two")


def test_elements_of_a_list_have_owners_of_their_own() -> None:
    wish = pod(containers=[{"name": "a", "image": "x"}, {"name": "b", "image": "x"}])
    live = applied(None, wish, "one", of=POD)
    assert owners(live)["one", "Apply"]["f:spec"]["f:containers"] == {
        'k:{"name":"a"}': {".": {}, "f:image": {}, "f:name": {}},
        'k:{"name":"b"}': {".": {}, "f:image": {}, "f:name": {}},
    }
    other = pod(containers=[{"name": "b", "image": "y"}])
    with pytest.raises(Refusal, match=r'\.spec\.containers\[name="b"\]\.image'):
        applied(live, other, "two", of=POD)
    taken = applied(live, other, "two", of=POD, force=True)
    assert [(c["name"], c["image"]) for c in taken["spec"]["containers"]] == [
        ("a", "x"),
        ("b", "y"),
    ]
    assert owners(taken)["one", "Apply"]["f:spec"]["f:containers"]['k:{"name":"b"}'] == {
        ".": {},
        "f:name": {},
    }


def test_an_element_that_is_no_longer_applied_goes_with_all_its_fields() -> None:
    def template(*names: str) -> Object:
        containers = [{"name": name, "image": "x", "args": ["1"]} for name in names]
        return named(DAEMON_SET, spec={"template": {"spec": {"containers": containers}}})

    live = applied(None, template("a", "b"), "one", of=DAEMON_SET)
    left = applied(live, template("b"), "one", of=DAEMON_SET)
    assert [c["name"] for c in left["spec"]["template"]["spec"]["containers"]] == ["b"]


def test_the_order_of_the_wish_wins_and_others_stay_near_their_place() -> None:
    def conditions(*kinds: str) -> Object:
        return named(NODE, status={"conditions": [{"type": kind} for kind in kinds]})

    live = applied(None, conditions("A", "B", "C"), "one", of=NODE, subresource="status")
    found = applied(live, conditions("C", "D", "A"), "two", of=NODE, subresource="status")
    assert [c["type"] for c in found["status"]["conditions"]] == ["C", "D", "A", "B"]


def test_ports_are_told_apart_by_number_and_protocol_and_tcp_is_meant() -> None:
    wish = pod(containers=[{"name": "a", "image": "x", "ports": [{"containerPort": 53}]}])
    live = applied(None, wish, "one", of=POD)
    ports = owners(live)["one", "Apply"]["f:spec"]["f:containers"]['k:{"name":"a"}']["f:ports"]
    assert list(ports) == ['k:{"containerPort":53,"protocol":"TCP"}']
    wish["spec"]["containers"][0]["ports"].append({"containerPort": 53, "protocol": "UDP"})
    both = applied(live, wish, "one", of=POD)["spec"]["containers"][0]["ports"]
    assert [port["protocol"] for port in both] == ["TCP", "UDP"]


def test_a_set_belongs_to_its_owners_value_by_value() -> None:
    def held(*finalizers: str) -> Object:
        return {**named(CONFIG_MAP), "metadata": {"name": "x", "finalizers": list(finalizers)}}

    live = applied(applied(None, held("a/a"), "one"), held("a/b", "a/a"), "two")
    assert owners(live)["one", "Apply"] == {"f:metadata": {"f:finalizers": {'v:"a/a"': {}}}}
    assert applied(live, held(), "two")["metadata"]["finalizers"] == ["a/a"]


def test_an_object_without_a_record_belongs_to_those_before_the_first_apply() -> None:
    live = config_map(a="1")
    with pytest.raises(Refusal, match='conflict with "before-first-apply" using v1'):
        applied(live, config_map(a="2"), "one")
    found = applied(live, config_map(b="1"), "one")
    assert found["data"] == {"a": "1", "b": "1"}
    assert set(owners(found)) == {("one", "Apply"), ("before-first-apply", "Update")}


def test_nobody_owns_what_the_server_keeps() -> None:
    wish = {**config_map(a="1"), "metadata": {"name": "x", "namespace": "n", "uid": "u"}}
    assert owners(applied(None, wish, "one")) == {("one", "Apply"): {"f:data": {"f:a": {}}}}


def test_equal_amounts_in_another_form_are_no_change() -> None:
    def capacity(amount: object) -> Object:
        return named(NODE, status={"capacity": {"memory": amount}})

    live = applied(None, capacity("1Gi"), "one", of=NODE, subresource="status")
    assert (
        applied(live, capacity("1024Mi"), "two", of=NODE, subresource="status")["status"]
        == (live["status"])
    )


def test_a_wish_may_be_yaml_with_what_looks_like_dates() -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  day: 2026-01-01\n"
    made = apply.applied(CONFIG_MAP, None, text, manager="one", force=False, now=NOW)
    assert made["data"] == {"day": "2026-01-01"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "error decoding YAML"),
        (b"\xff", 400, "error decoding YAML"),
        (b"[]", 400, "an object was expected"),
        (b'{"kind": "ConfigMap"}', 400, "invalid object type: /, Kind=ConfigMap"),
        (b'{"apiVersion": "v1"}', 400, "invalid object type: v1, Kind="),
        (b'{"apiVersion": "v1", "kind": "Secret"}', 400, "Kind=Secret"),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[]}}',
            400,
            "metadata.managedFields must be nil",
        ),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"dato":{}}',
            500,
            ".dato: field not declared in schema",
        ),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":5}}',
            500,
            "failed to create typed patch object (/x; v1, Kind=ConfigMap)",
        ),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(body: bytes, status: int, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        apply.applied(CONFIG_MAP, None, body, manager="one", force=False, now=NOW)
    assert refused.value.status == status
    assert words in refused.value.message


def test_the_live_object_is_never_touched() -> None:
    live = applied(None, pod(containers=[{"name": "a", "image": "x"}]), "one", of=POD)
    before = json.dumps(live)
    other: Any = pod(containers=[{"name": "a", "image": "y"}, {"name": "b", "image": "z"}])
    applied(live, other, "two", of=POD, force=True)
    applied(live, named(POD), "one", of=POD)
    assert json.dumps(live) == before
