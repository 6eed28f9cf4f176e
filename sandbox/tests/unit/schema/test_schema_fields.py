"""An object as the server keeps it: no unknown fields, canonical values."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.schema import schema
from sandbox.tests.unit.schema.given import (
    CONFIG_MAP,
    DEPLOYMENT,
    LEASE,
    NODE,
    POD,
    Object,
    config_map,
    kind,
    named,
    pod,
    settled,
)


def test_unknown_fields_are_named_by_their_paths_and_dropped() -> None:
    found = pod(volumez=[], containers=[{"name": "a", "image": "x", "ports": [{"nope": 1}]}])
    found["extra"] = 1
    assert schema.settle(POD, found) == [
        "spec.containers[0].ports[0].nope",
        "spec.volumez",
        "extra",
    ]
    assert "extra" not in found
    assert found["spec"]["containers"][0]["ports"] == [{}]


def test_nulls_and_empty_lists_and_maps_go_but_empty_structs_stay() -> None:
    found = pod(
        nodeSelector={}, volumes=[{"name": "v", "emptyDir": {}}], tolerations=[], affinity=None
    )
    spec = settled(POD, found)["spec"]
    assert spec.keys() == {"containers", "volumes"}
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]


def test_what_go_always_writes_is_there() -> None:
    found = settled(POD, {"spec": {"containers": [{"name": "a"}]}})
    assert found == {
        "metadata": {},
        "spec": {"containers": [{"name": "a", "resources": {}}]},
        "status": {},
    }


def test_a_zero_is_kept_only_where_it_differs_from_nothing() -> None:
    lease = settled(LEASE, named(LEASE, spec={"holderIdentity": "", "leaseTransitions": 0}))
    assert lease["spec"] == {"holderIdentity": "", "leaseTransitions": 0}
    spec = settled(POD, pod(hostNetwork=False, automountServiceAccountToken=False))["spec"]
    assert "hostNetwork" not in spec
    assert spec["automountServiceAccountToken"] is False
    rolling = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    deployment = settled(DEPLOYMENT, named(DEPLOYMENT, spec={"strategy": rolling}))
    assert deployment["spec"]["strategy"] == rolling


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (named(CONFIG_MAP, data={"k": 5}), "cannot unmarshal number into Go struct field data.k"),
        (named(CONFIG_MAP, data=[]), "array into Go struct field data of type map[string]string"),
        (named(CONFIG_MAP, immutable="yes"), "string into Go struct field immutable of type bool"),
        (named(CONFIG_MAP, binaryData={"k": "!"}), "illegal base64 data"),
        ({"metadata": {"name": True}}, "bool into Go struct field metadata.name of type string"),
        ({"metadata": {"labels": "x"}}, "metadata.labels"),
        ({"metadata": {"generation": 1.5}}, "metadata.generation of type int64"),
        ({"metadata": {"generation": 2**63}}, "metadata.generation of type int64"),
        ({"metadata": {"creationTimestamp": "yesterday"}}, 'parsing time "yesterday"'),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(obj: Object, words: str) -> None:
    with pytest.raises(schema.ShapeError) as refused:
        schema.settle(CONFIG_MAP, obj)
    assert words in str(refused.value)


def test_times_are_kept_in_whole_seconds_of_utc() -> None:
    found = {"metadata": {"creationTimestamp": "2026-01-02T05:04:05.9+02:00"}}
    assert settled(CONFIG_MAP, found)["metadata"] == {"creationTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456Z"),
        ("2026-01-02T05:04:05.000001+02:00", "2026-01-02T03:04:05.000001Z"),
    ],
)
def test_times_of_leases_keep_their_microseconds(written: str, kept: str) -> None:
    assert settled(LEASE, named(LEASE, spec={"renewTime": written}))["spec"]["renewTime"] == kept


@pytest.mark.parametrize("written", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5Z"])
def test_a_time_of_a_lease_has_exactly_six_digits(written: str) -> None:
    with pytest.raises(schema.ShapeError, match="parsing time"):
        schema.settle(LEASE, named(LEASE, spec={"renewTime": written}))


def test_amounts_are_canonical_and_a_thousandth_is_the_least() -> None:
    capacity = {"cpu": 4, "memory": "2048Mi", "a.b/c": "0.0001"}
    found = settled(NODE, named(NODE, status={"capacity": capacity}))
    assert found["status"]["capacity"] == {"cpu": "4", "memory": "2Gi", "a.b/c": "1m"}


@pytest.mark.parametrize("amount", ["much", True, [], None])
def test_an_amount_that_is_none_is_refused(amount: object) -> None:
    with pytest.raises(schema.ShapeError, match="quantities must match"):
        schema.settle(NODE, named(NODE, status={"capacity": {"cpu": amount}}))


def test_settling_twice_changes_nothing_more() -> None:
    once = settled(POD, pod(hostNetwork=False, nodeSelector={}, priority=0))
    twice = copy.deepcopy(once)
    assert schema.settle(POD, twice) == []
    assert twice == once


def test_a_custom_resource_keeps_fields_that_nobody_declared() -> None:
    custom = Kind(group="a.b", version="v1", resource="cs", kind="C", singular="c", custom=True)
    found: Object = {"metadata": {"labels": {}}, "spec": {"any": None, "list": []}, "x": 0}
    assert schema.settle(custom, found) == []
    assert found == {"metadata": {}, "spec": {"any": None, "list": []}, "x": 0}


def test_an_empty_record_of_owners_is_kept_for_it_means_something() -> None:
    found = config_map(a="1")
    found["metadata"]["managedFields"] = []
    assert settled(CONFIG_MAP, found)["metadata"]["managedFields"] == []


@pytest.mark.parametrize("each", [k for k in kinds.KINDS if not k.custom], ids=lambda k: k.resource)
def test_every_kind_that_is_served_is_described(each: Kind) -> None:
    described = schema.of(each)
    if each.group == "apiextensions.k8s.io":
        assert described.open
        return
    assert not described.open
    assert {"apiVersion", "kind", "metadata"} < described.fields.keys()


def test_the_two_kinds_of_events_are_told_apart() -> None:
    new = kind("Event", "events.k8s.io/v1")
    assert schema.settle(new, {"note": "x", "regarding": {}}) == []
    assert schema.settle(kind("Event"), {"note": "x"}) == ["note"]


def _structs(shape: schema.Shape, seen: dict[int, schema.Shape]) -> None:
    inner: Any = shape
    while inner.item is not None:
        inner = inner.item
    if inner.what == "struct" and id(inner.fields) not in seen:
        seen[id(inner.fields)] = inner
        for field in inner.fields.values():
            _structs(field, seen)


def test_a_list_is_told_apart_by_fields_that_its_elements_have() -> None:
    seen: dict[int, schema.Shape] = {}
    for each in kinds.KINDS:
        _structs(schema.of(each), seen)
    assert len(seen) > 150
    for struct in seen.values():
        for name, field in struct.fields.items():
            keys = {*field.keys, field.merge_key} - {""}
            assert not keys or keys <= field.of.fields.keys(), f"{struct.name}.{name}"
