"""Pages of a list: together they are the list as it was when it began."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver import lists
from hami_sandbox.apiserver.lists import Listed
from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from sandbox.tests.unit.apiserver.making import MAPS, kind, remove, write

NAMES = st.sampled_from([f"m{number}" for number in range(12)])


def page(
    store: Store, by: Selection | None = None, *, token: str = "", limit: int = 0, version: str = ""
) -> Listed:
    query = {"continue": token, "limit": str(limit), "resourceVersion": version}
    wish = lists.parse(query)
    found = lists.page(store, MAPS, wish, by or Selection(kind("ConfigMap")))
    return asyncio.run(found)


def names(found: Listed) -> list[str]:
    return [stored.object["metadata"]["name"] for stored in found.items]


@settings(max_examples=40)
@given(
    st.sets(NAMES, min_size=1),
    st.integers(1, 5),
    st.lists(st.tuples(NAMES, st.booleans()), max_size=20),
)
def test_pages_show_one_moment(
    present: set[str], limit: int, changes: list[tuple[str, bool]]
) -> None:
    store = Store()
    for name in sorted(present, reverse=True):
        write(store, name)
    whole = names(page(store))
    first = page(store, limit=limit)
    collected, version = names(first), first.revision
    told = first
    for name, removing in [*changes, ("m0", False)]:
        if not removing:
            write(store, name)
        elif store.find(*MAPS, "default", name) is not None:
            remove(store, name)
        if told.continue_:
            assert told.remaining == len(whole) - len(collected)
            told = page(store, limit=limit, token=told.continue_)
            assert told.revision == version
            collected += names(told)
    if told.continue_:
        collected += names(page(store, token=told.continue_))
    assert collected == whole


def test_a_page_is_full_though_many_are_not_selected() -> None:
    store = Store()
    for number in range(20):
        write(store, f"m{number:02}", labels={"odd": str(number % 2)})
    by = Selection(kind("ConfigMap"), label_selector="odd=1")
    first = page(store, by, limit=9)
    assert len(first.items) == 9
    assert first.remaining is None
    last = page(store, by, limit=9, token=first.continue_)
    assert names(last) == ["m19"]
    assert last.continue_ == ""


def test_a_forgotten_moment_is_gone_and_offers_the_present() -> None:
    store = Store()
    for name in "abc":
        write(store, name)
    first = page(store, limit=1)
    write(store, "bb")
    store.forget(store.revision)
    with pytest.raises(Refusal) as refused:
        page(store, limit=1, token=first.continue_)
    assert (refused.value.status, refused.value.reason) == (410, "Expired")
    offered = refused.value.body()["metadata"]["continue"]
    assert names(page(store, token=offered)) == ["b", "bb", "c"]


def test_version_zero_is_whatever_is_at_hand_as_a_whole() -> None:
    store = Store()
    for name in "abc":
        write(store, name)
    assert names(page(store, limit=1, version="0")) == ["a", "b", "c"]


@pytest.mark.parametrize("token", ["%", "not-a-token", "e30", "eyJydiI6OTk5OSwic3RhcnQiOiJhIn0"])
def test_a_continuation_of_somebody_else_is_refused(token: str) -> None:
    store = Store()
    write(store, "a")
    with pytest.raises(Refusal) as refused:
        page(store, token=token)
    assert refused.value.status == 400
