"""Lists, and what a resourceVersion asks of them."""

from __future__ import annotations

import pytest

from tests.conformance.objects import causes, config_map, lease, names, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, leases


@pytest.fixture
def made(api: Client, namespace: str) -> list[Object]:
    """Leases a, b and c, created in this order and each at its own resourceVersion."""
    return [api.create(leases(namespace), lease(name)) for name in "abc"]


def test_a_list_names_its_kind_and_version_and_its_items_do_not(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(leases(namespace))
    assert (answer["kind"], answer["apiVersion"]) == ("LeaseList", "coordination.k8s.io/v1")
    assert names(answer) == ["a", "b", "c"]
    assert all("kind" not in item and "apiVersion" not in item for item in answer["items"])


def test_an_empty_list_has_an_empty_array_and_a_resource_version(
    api: Client, namespace: str
) -> None:
    answer = api.get(leases(namespace))
    assert answer["items"] == []
    assert int(revision(answer)) > 0


def test_items_are_sorted_by_name_whatever_the_order_of_creation(
    api: Client, namespace: str
) -> None:
    for name in ["m", "z", "a", "m-1"]:
        api.create(leases(namespace), lease(name))
    assert names(api.get(leases(namespace))) == ["a", "m", "m-1", "z"]


def test_a_list_across_namespaces_shows_each_objects_namespace(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(leases(), fieldSelector="metadata.namespace=" + namespace)
    assert [(i["metadata"]["namespace"], i["metadata"]["name"]) for i in answer["items"]] == [
        (namespace, name) for name in "abc"
    ]


def test_a_list_of_a_namespace_that_does_not_exist_is_empty(api: Client, namespace: str) -> None:
    assert api.get(leases(f"{namespace}-not"))["items"] == []


def test_a_list_is_as_new_as_the_last_write_that_was_answered(api: Client, namespace: str) -> None:
    for number in range(20):
        written = api.create(leases(namespace), lease(f"l{number:02}"))
        answer = api.get(leases(namespace))
        assert names(answer)[-1] == f"l{number:02}"
        assert int(revision(answer)) >= int(revision(written))


def test_resource_versions_grow_with_every_write_across_kinds(api: Client, namespace: str) -> None:
    versions = [
        int(revision(api.create(leases(namespace), lease("a")))),
        int(revision(api.create(config_maps(namespace), config_map("a")))),
        int(revision(api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "x"}}))),
        int(revision(api.patch(config_maps(namespace, "a"), {"data": {"k": "v"}}))),
    ]
    assert versions == sorted(set(versions))


def test_a_write_that_changes_nothing_keeps_the_resource_version(
    api: Client, namespace: str, made: list[Object]
) -> None:
    same = api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "nobody"}})
    assert revision(same) == revision(made[0])


def test_version_zero_gives_a_state_that_the_server_has_at_hand(
    api: Client, namespace: str, made: list[Object]
) -> None:
    # Any state would do, but what a server has just shown it has at hand.
    assert names(api.get(leases(namespace))) == ["a", "b", "c"]
    answer = api.get(leases(namespace), resourceVersion="0")
    assert names(answer) == ["a", "b", "c"]
    assert int(revision(answer)) >= int(revision(made[2]))


def test_a_plain_version_gives_that_state_or_a_newer_one(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(leases(namespace), resourceVersion=revision(made[2]))
    assert names(answer) == ["a", "b", "c"]
    assert int(revision(answer)) >= int(revision(made[2]))


def test_not_older_than_gives_that_state_or_a_newer_one(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(
        leases(namespace), resourceVersion=revision(made[2]), resourceVersionMatch="NotOlderThan"
    )
    assert names(answer) == ["a", "b", "c"]
    assert int(revision(answer)) >= int(revision(made[2]))


def test_not_older_than_with_a_limit_pages_through_a_state_that_is_new_enough(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(
        leases(namespace),
        resourceVersion=revision(made[2]),
        resourceVersionMatch="NotOlderThan",
        limit=2,
    )
    assert names(answer) == ["a", "b"]
    assert int(revision(answer)) >= int(revision(made[2]))
    assert names(
        api.get(leases(namespace), limit=2, **{"continue": answer["metadata"]["continue"]})
    ) == ["c"]


@pytest.mark.parametrize("limit", [None, 2])
def test_exact_gives_the_past_as_it_was(
    api: Client, namespace: str, made: list[Object], limit: int | None
) -> None:
    api.patch(leases(namespace, "a"), {"spec": {"holderIdentity": "changed later"}})
    api.delete(leases(namespace, "b"))
    more = {} if limit is None else {"limit": limit}
    answer = api.get(
        leases(namespace),
        resourceVersion=revision(made[1]),
        resourceVersionMatch="Exact",
        **more,
    )
    assert names(answer) == ["a", "b"]
    assert revision(answer) == revision(made[1])
    assert answer["items"][0]["spec"]["holderIdentity"] == "nobody"


def test_a_plain_version_with_a_limit_means_exactly_that_state(
    api: Client, namespace: str, made: list[Object]
) -> None:
    answer = api.get(leases(namespace), resourceVersion=revision(made[1]), limit=5)
    assert names(answer) == ["a", "b"]
    assert revision(answer) == revision(made[1])


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "NotOlderThan"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
    ],
    ids=lambda query: " ".join(query.values()),
)
def test_a_match_that_makes_no_sense_is_refused(
    api: Client, namespace: str, query: dict[str, str]
) -> None:
    with refused(422, "Invalid") as refusal:
        api.get(leases(namespace), **query)
    assert set(causes(refusal.error)) == {"resourceVersionMatch"}


def test_a_version_that_is_no_number_is_a_bad_request(api: Client, namespace: str) -> None:
    with refused(400, "BadRequest") as refusal:
        api.get(leases(namespace), resourceVersion="new")
    assert "new" in refusal.message


def test_a_version_of_the_future_is_waited_for_and_then_refused_with_a_retry(
    api: Client, namespace: str
) -> None:
    future = str(int(revision(api.get(leases(namespace)))) + 10_000_000)
    answer = api.request("GET", leases(namespace), query={"resourceVersion": future})
    status = answer.json()
    assert (answer.status, status["reason"]) == (504, "Timeout")
    assert [c["reason"] for c in status["details"]["causes"]] == ["ResourceVersionTooLarge"]
    assert int(status["details"]["retryAfterSeconds"]) > 0
    assert int(answer.headers["Retry-After"]) > 0
