"""Lists in pages: limit, continue, and consistency of the pages that follow."""

from __future__ import annotations

import pytest

from tests.conformance.objects import lease, names, refused, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import leases

ALL = ["a", "b", "c", "d", "e"]


@pytest.fixture
def first(api: Client, namespace: str) -> Object:
    """Give the first page, with two of five leases."""
    for name in ALL:
        api.create(leases(namespace), lease(name, labels={"vowel": str(name in "ae").lower()}))
    return api.get(leases(namespace), limit=2)


def follow(api: Client, namespace: str, page: Object, **query: str | float) -> Object:
    return api.get(leases(namespace), **{"continue": page["metadata"]["continue"]}, **query)


def test_a_page_says_how_to_go_on_and_how_much_remains(first: Object) -> None:
    assert names(first) == ["a", "b"]
    assert first["metadata"]["continue"]
    assert first["metadata"]["remainingItemCount"] == 3


def test_the_pages_together_are_the_whole_list(api: Client, namespace: str, first: Object) -> None:
    second = follow(api, namespace, first, limit=2)
    third = follow(api, namespace, second, limit=2)
    assert [names(first), names(second), names(third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert second["metadata"]["remainingItemCount"] == 1
    assert "continue" not in third["metadata"]
    assert "remainingItemCount" not in third["metadata"]


def test_a_page_that_holds_everything_has_no_continuation(
    api: Client, namespace: str, first: Object
) -> None:
    exactly = api.get(leases(namespace), limit=len(ALL))
    assert names(exactly) == ALL
    assert "continue" not in exactly["metadata"]


def test_a_continuation_without_a_limit_gives_all_the_rest(
    api: Client, namespace: str, first: Object
) -> None:
    assert names(follow(api, namespace, first)) == ["c", "d", "e"]


def test_later_pages_show_the_state_of_the_first_one(
    api: Client, namespace: str, first: Object
) -> None:
    api.delete(leases(namespace, "c"))
    api.create(leases(namespace), lease("cc"))
    api.patch(leases(namespace, "d"), {"spec": {"holderIdentity": "later"}})
    rest = follow(api, namespace, first, limit=10)
    assert names(rest) == ["c", "d", "e"]
    assert rest["items"][1]["spec"]["holderIdentity"] == "nobody"
    assert revision(rest) == revision(first)


def test_pages_of_a_selection_have_full_size_and_no_count_of_the_rest(
    api: Client, namespace: str, first: Object
) -> None:
    page = api.get(leases(namespace), limit=2, labelSelector="vowel=false")
    assert names(page) == ["b", "c"]
    assert "remainingItemCount" not in page["metadata"]
    rest = follow(api, namespace, page, limit=2, labelSelector="vowel=false")
    assert names(rest) == ["d"]
    assert "continue" not in rest["metadata"]


def test_a_limit_of_zero_or_less_is_none(api: Client, namespace: str, first: Object) -> None:
    for limit in (0, -1):
        whole = api.get(leases(namespace), limit=limit)
        assert names(whole) == ALL
        assert "continue" not in whole["metadata"]


def test_a_limit_that_is_no_number_is_a_bad_request(api: Client, namespace: str) -> None:
    with refused(400, "BadRequest"):
        api.get(leases(namespace), limit="many")


def test_a_continuation_that_the_server_did_not_give_is_a_bad_request(
    api: Client, namespace: str
) -> None:
    with refused(400, "BadRequest") as refusal:
        api.get(leases(namespace), limit=2, **{"continue": "not-a-token"})
    assert "continue" in refusal.message


def test_a_continuation_has_its_own_version_and_takes_no_other(
    api: Client, namespace: str, first: Object
) -> None:
    with refused(400, "BadRequest"):
        follow(api, namespace, first, resourceVersion=revision(first))
    with refused(422, "Invalid"):
        follow(
            api,
            namespace,
            first,
            resourceVersion=revision(first),
            resourceVersionMatch="Exact",
        )
