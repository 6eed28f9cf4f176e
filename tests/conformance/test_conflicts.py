"""Optimistic concurrency: a write to an outdated version is a conflict."""

from __future__ import annotations

import threading

import pytest

from tests.conformance.objects import config_map, lease, pod, refused, revision
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import config_maps, leases, pods

JSON_PATCH = "application/json-patch+json"


@pytest.fixture
def old(api: Client, namespace: str) -> Object:
    """Give lease `a` as it was before somebody else wrote to it."""
    made = api.create(leases(namespace), lease("a"))
    api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "somebody else"}})
    return made


def test_a_replacement_with_the_current_version_succeeds(
    api: Client, namespace: str, old: Object
) -> None:
    current = api.get(leases(namespace, "a"))
    current["spec"]["holderIdentity"] = "me"
    replaced = api.replace(leases(namespace, "a"), current)
    assert replaced["spec"]["holderIdentity"] == "me"
    assert int(revision(replaced)) > int(revision(current))


def test_a_replacement_with_a_stale_version_is_a_conflict_and_writes_nothing(
    api: Client, namespace: str, old: Object
) -> None:
    with refused(409, "Conflict") as refusal:
        api.replace(leases(namespace, "a"), old)
    assert "the object has been modified" in refusal.message
    assert refusal.error.body["details"]["name"] == "a"
    assert api.get(leases(namespace, "a"))["spec"]["holderIdentity"] == "somebody else"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/merge-patch+json", "object"),
        ("application/strategic-merge-patch+json", "object"),
        (JSON_PATCH, "operations"),
    ],
)
def test_a_patch_that_names_a_stale_version_is_a_conflict_and_writes_nothing(
    api: Client, namespace: str, old: Object, content_type: str, body: str
) -> None:
    before = api.get(leases(namespace, "a"))
    patch: object = {
        "metadata": {"resourceVersion": revision(old)},
        "spec": {"holderIdentity": "me"},
    }
    if body == "operations":
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": revision(old)},
            {"op": "replace", "path": "/spec/holderIdentity", "value": "me"},
        ]
    with refused(409, "Conflict"):
        api.patch(leases(namespace, "a"), patch, content_type)
    assert api.get(leases(namespace, "a")) == before


def test_a_patch_that_names_the_current_version_succeeds(
    api: Client, namespace: str, old: Object
) -> None:
    current = revision(api.get(leases(namespace, "a")))
    patch = {"metadata": {"resourceVersion": current}, "spec": {"holderIdentity": "me"}}
    assert api.patch(leases(namespace, "a"), patch)["spec"]["holderIdentity"] == "me"


def test_a_patch_without_a_version_needs_none(api: Client, namespace: str, old: Object) -> None:
    patched = api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "me"}})
    assert patched["spec"]["holderIdentity"] == "me"


def test_another_uid_is_a_conflict_in_a_replacement_and_invalid_in_a_patch(
    api: Client, namespace: str, old: Object
) -> None:
    current = api.get(leases(namespace, "a"))
    other = {"uid": "6e0c9e0e-0000-4000-8000-000000000000"}
    with refused(409, "Conflict") as refusal:
        api.replace(
            leases(namespace, "a"), {**current, "metadata": {**current["metadata"], **other}}
        )
    assert "UID in precondition" in refusal.message
    with refused(422, "Invalid") as refusal:
        api.patch(leases(namespace, "a"), {"metadata": other})
    assert "metadata.uid" in refusal.message
    assert api.get(leases(namespace, "a")) == current


def test_a_replacement_without_a_version_is_unconditional_where_the_kind_allows_it(
    api: Client, namespace: str
) -> None:
    api.create(config_maps(namespace), config_map("a", {"k": "old"}))
    replaced = api.replace(config_maps(namespace, "a"), config_map("a", {"k": "new"}))
    assert replaced["data"] == {"k": "new"}


def test_a_replacement_of_a_lease_must_name_a_version(
    api: Client, namespace: str, old: Object
) -> None:
    """Otherwise two leaders could both believe that they hold it."""
    with refused(422, "Invalid") as refusal:
        api.replace(leases(namespace, "a"), lease("a", holder="me"))
    assert "metadata.resourceVersion" in refusal.message


def test_of_many_replacements_of_one_version_exactly_one_succeeds(
    api: Client, namespace: str
) -> None:
    made = api.create(leases(namespace), lease("a"))
    results: list[int] = []
    barrier = threading.Barrier(6)

    def take(who: int) -> None:
        wish = {**made, "spec": {"holderIdentity": f"candidate-{who}"}}
        barrier.wait()
        try:
            api.replace(leases(namespace, "a"), wish)
            results.append(200)
        except ApiError as error:
            results.append(error.status)

    threads = [threading.Thread(target=take, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [200, 409, 409, 409, 409, 409]


def test_patches_of_different_keys_at_once_all_arrive(api: Client, namespace: str) -> None:
    api.create(config_maps(namespace), config_map("a"))
    failures: list[Exception] = []

    def write(who: int) -> None:
        try:
            for number in range(5):
                data = {f"k{who}-{number}": "v"}
                api.patch(config_maps(namespace, "a"), {"data": data})
        except ApiError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(api.get(config_maps(namespace, "a"))["data"]) == 20


def test_a_replacement_of_what_does_not_exist_is_not_found(api: Client, namespace: str) -> None:
    with refused(404, "NotFound"):
        api.replace(pods(namespace, "p"), pod("p"))


def test_a_replacement_under_another_name_is_a_bad_request(
    api: Client, namespace: str, old: Object
) -> None:
    with refused(400, "BadRequest"):
        api.replace(leases(namespace, "a"), lease("b"))


def test_a_field_that_is_fixed_at_creation_cannot_be_changed(api: Client, namespace: str) -> None:
    made = api.create(pods(namespace), pod("p"))
    for spec in ({"schedulerName": "other"}, {"restartPolicy": "Never"}):
        with refused(422, "Invalid") as refusal:
            api.patch(pods(namespace, "p"), {"spec": spec})
        assert "pod updates may not change fields" in refusal.message
    assert api.get(pods(namespace, "p")) == made


def test_a_generation_counts_changes_of_the_spec_and_nothing_else(
    api: Client, namespace: str
) -> None:
    """Pods have one since Kubernetes 1.33."""
    made = api.create(pods(namespace), pod("p"))
    labelled = api.patch(pods(namespace, "p"), {"metadata": {"labels": {"a": "b"}}})
    status = api.patch(pods(namespace, "p", "status"), {"status": {"message": "m"}})
    changed = api.patch(pods(namespace, "p"), {"spec": {"activeDeadlineSeconds": 100}})
    generations = [o["metadata"]["generation"] for o in (made, labelled, status, changed)]
    assert generations == [1, 1, 1, 2]
