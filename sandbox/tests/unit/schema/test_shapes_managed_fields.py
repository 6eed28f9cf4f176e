"""The record of who wrote which field, kept up by ordinary writes."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.apiserver.schema import field_paths, managed_fields
from sandbox.tests.unit.schema.given import (
    CONFIG_MAP,
    LATER,
    NOW,
    POD,
    Object,
    complete,
    config_map,
    kind,
    named,
    owners,
    pod,
)


def written(
    old: Object | None,
    new: Object,
    manager: str,
    *,
    now: dt.datetime = NOW,
    subresource: str = "",
) -> Object:
    of = POD if new["kind"] == "Pod" else CONFIG_MAP
    return managed_fields.tracked(of, old, new, manager=manager, now=now, subresource=subresource)


def changed(obj: Object, **fields: object) -> Object:
    """Give what a client sends that has read the object and changed something."""
    return {**obj, **fields}


def test_who_creates_owns_everything_it_wrote_and_its_defaults() -> None:
    made = written(None, complete(POD, pod()), "kubectl-create")
    fields = owners(made)["kubectl-create", "Update"]
    assert fields["f:spec"]["f:restartPolicy"] == {}
    assert fields["f:spec"]["f:containers"]['k:{"name":"main"}']["f:resources"] == {}
    assert "f:status" not in fields
    assert "f:metadata" not in fields


def test_a_map_that_was_not_there_is_owned_itself() -> None:
    made = written(None, config_map(a="1"), "one")
    assert owners(made) == {("one", "Update"): {"f:data": {".": {}, "f:a": {}}}}


def test_who_changes_a_field_takes_it() -> None:
    made = written(None, config_map(a="1", b="1"), "one")
    both = written(made, changed(made, data={"a": "2", "b": "1", "c": "1"}), "two", now=LATER)
    assert owners(both) == {
        ("one", "Update"): {"f:data": {".": {}, "f:b": {}}},
        ("two", "Update"): {"f:data": {"f:a": {}, "f:c": {}}},
    }
    assert [entry["time"][-5:] for entry in both["metadata"]["managedFields"]] == ["4:05Z", "7:05Z"]


def test_a_field_that_is_gone_is_nobodys() -> None:
    made = written(None, config_map(a="1", b="1"), "one")
    left = written(made, changed(made, data={"b": "1"}), "two")
    assert owners(left) == {("one", "Update"): {"f:data": {".": {}, "f:b": {}}}}


def test_a_write_that_changes_nothing_leaves_the_record_alone() -> None:
    made = written(None, config_map(a="1"), "one")
    assert written(made, changed(made), "two", now=LATER) == made


def test_the_status_is_written_by_another_entry() -> None:
    made = written(None, complete(POD, pod()), "one")
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    found = written(made, changed(made, status=status), "kubelet", subresource="status")
    entry = next(e for e in found["metadata"]["managedFields"] if e["manager"] == "kubelet")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {
        "f:status": {
            "f:conditions": {
                ".": {},
                'k:{"type":"Ready"}': {".": {}, "f:status": {}, "f:type": {}},
            }
        }
    }


def test_a_client_may_edit_the_record() -> None:
    made = written(None, config_map(a="1"), "one")
    entry = {**made["metadata"]["managedFields"][0], "manager": "other", "operation": "Apply"}
    edited = {**made, "metadata": {**made["metadata"], "managedFields": [entry]}}
    assert set(owners(written(made, edited, "kubectl"))) == {("other", "Apply")}


def test_a_record_that_was_dropped_stays_dropped_until_somebody_applies() -> None:
    made = written(None, config_map(a="1"), "one")
    cleared = {**made, "metadata": {**made["metadata"], "managedFields": [{}]}}
    without = written(made, cleared, "two")
    assert "managedFields" not in without["metadata"]
    again = written(without, changed(without, data={"a": "2"}), "two")
    assert "managedFields" not in again["metadata"]


def test_a_replacement_that_says_nothing_of_owners_keeps_the_record() -> None:
    made = written(None, config_map(a="1"), "one")
    found = written(made, config_map(a="1", b="1"), "two")
    assert set(owners(found)) == {("one", "Update"), ("two", "Update")}


def test_of_many_writers_the_oldest_share_an_entry() -> None:
    live = written(None, config_map(k="1"), "first")
    for number in range(30):
        data = {**live["data"], f"k{number}": "1"}
        now = NOW + dt.timedelta(seconds=number)
        live = written(live, changed(live, data=data), f"writer-{number}", now=now)
    record = owners(live)
    assert len(record) == 10
    ancient = record["ancient-changes", "Update"]["f:data"]
    assert {"f:k", "f:k0"} <= ancient.keys()
    owned = {path for fields in record.values() for path in field_paths.decode(fields)}
    assert {("f:data", f"f:k{number}") for number in range(30)} <= owned


def test_an_object_of_which_nothing_is_owned_has_no_record() -> None:
    account = kind("ServiceAccount")
    made = managed_fields.tracked(account, None, named(account), manager="one", now=NOW)
    assert "managedFields" not in made["metadata"]


_elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
_paths = st.lists(_elements, min_size=1, max_size=4).map(tuple)


@given(st.frozensets(_paths, max_size=8))
def test_a_set_of_fields_survives_writing_and_reading(paths: frozenset[tuple[str, ...]]) -> None:
    assert field_paths.decode(field_paths.encode(paths)) == paths


def test_paths_are_written_as_conflicts_name_them() -> None:
    path = ("f:spec", "f:ports", 'k:{"containerPort":80,"protocol":"TCP"}', "f:name")
    assert field_paths.text(path) == '.spec.ports[containerPort=80,protocol="TCP"].name'
    assert field_paths.text(("f:metadata", "f:finalizers", 'v:"a/b"')) == (
        '.metadata.finalizers[="a/b"]'
    )


def test_a_record_that_makes_no_sense_is_left_out() -> None:
    strange = [{"operation": "Dance"}, "x", {"operation": "Apply", "fieldsV1": [1]}]
    obj = {**config_map(a="1"), "metadata": {"name": "x", "managedFields": strange}}
    assert [entry.paths for entry in managed_fields.read(obj).values()] == [frozenset()]
