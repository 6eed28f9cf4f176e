"""The store: one counter, no lost writes, an exact history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver.store import StaleError, Store
from hami_sandbox.apiserver.table import State
from sandbox.tests.unit.apiserver.making import MAPS, config_map, remove, write

NAMES = st.sampled_from(["a", "a-b", "b", "c"])
NAMESPACES = st.sampled_from(["n", "n-1", "n1"])
STEPS = st.lists(st.tuples(NAMESPACES, NAMES, st.booleans()), max_size=60)


def seen(state: State, namespace: str = "") -> dict[str, str]:
    """Return keys and versions, in the state's order."""
    return {key: str(stored.revision) for key, stored in state.items(namespace)}


def play(store: Store, steps: list[tuple[str, str, bool]]) -> dict[int, dict[str, str]]:
    """Write or remove; return what each version's state was."""
    states: dict[int, dict[str, str]] = {store.revision: {}}
    present: dict[str, str] = {}
    for namespace, name, removing in steps:
        key = f"{namespace}/{name}"
        if not removing:
            present[key] = str(write(store, name, namespace).revision)
        elif key in present:
            remove(store, name, namespace)
            del present[key]
        states[store.revision] = dict(present)
    return states


@settings(max_examples=40)
@given(STEPS)
def test_every_past_state_is_what_it_was(steps: list[tuple[str, str, bool]]) -> None:
    store = Store()
    for revision, expected in play(store, steps).items():
        state = store.table(MAPS).past(revision)
        assert state is not None
        assert state.revision == revision
        assert seen(state) == expected
        assert list(seen(state)) == sorted(expected)
        for namespace in ("n", "n-1", "n1"):
            mine = {k: v for k, v in expected.items() if k.startswith(f"{namespace}/")}
            assert seen(state, namespace) == mine


@settings(max_examples=40)
@given(STEPS, st.integers(min_value=1, max_value=8))
def test_a_bounded_past_is_exact_or_gone(steps: list[tuple[str, str, bool]], bound: int) -> None:
    store = Store(history=bound)
    states = play(store, steps)
    history = store.table(MAPS).history
    for revision, expected in states.items():
        state = store.table(MAPS).past(revision)
        if revision < history.forgotten:
            assert state is None
        else:
            assert state is not None
            assert seen(state) == expected
    # The last `bound` changes are known whatever happens.
    changes = sorted(states)[1:]
    assert len(changes) <= bound or history.forgotten <= changes[-bound - 1]
    assert history.end - history.position(0) <= bound + bound // 8


@settings(max_examples=40)
@given(STEPS, st.data())
def test_what_happened_since_any_version_leads_to_the_present(
    steps: list[tuple[str, str, bool]], data: st.DataObject
) -> None:
    store = Store()
    states = play(store, steps)
    history = store.table(MAPS).history
    since = data.draw(st.sampled_from(sorted(states)))
    state = dict(states[since])
    for change in history.since(history.position(since)) or ():
        if change.new is None:
            del state[change.key]
        else:
            state[change.key] = str(change.new.revision)
    assert state == states[store.revision]


def test_versions_grow_by_one_with_every_write_of_any_kind() -> None:
    store = Store()
    first = write(store, "a").revision
    lease = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "l"}}
    second = store.put(("coordination.k8s.io", "leases"), lease, over=0).revision
    gone = remove(store, "a").revision
    assert (second - first, gone - second, store.revision) == (1, 1, gone)


def test_a_write_over_another_version_is_stale_and_changes_nothing() -> None:
    store = Store()
    old = write(store, "a")
    new = write(store, "a")
    for over in (0, old.revision, new.revision + 1):
        with pytest.raises(StaleError):
            store.put(MAPS, config_map("a"), over=over)
        with pytest.raises(StaleError):
            store.remove(MAPS, "default", "a", over=over)
    assert store.table(MAPS).get("default", "a") is new
    assert store.revision == new.revision


def test_what_is_gone_is_shown_as_it_was_last_under_the_version_of_its_end() -> None:
    store = Store()
    last = write(store, "a", labels={"k": "v"})
    gone = remove(store, "a")
    assert gone.object["metadata"]["labels"] == {"k": "v"}
    assert gone.object["metadata"]["resourceVersion"] == str(store.revision)
    assert last.object["metadata"]["resourceVersion"] == str(last.revision)


def test_forgetting_keeps_the_present_and_the_state_at_that_version() -> None:
    store = Store()
    versions = [write(store, name).revision for name in "abc"]
    store.forget(versions[1])
    table = store.table(MAPS)
    assert table.past(versions[0]) is None
    state = table.past(versions[1])
    assert state is not None
    assert list(seen(state)) == ["default/a", "default/b"]
    assert list(seen(table.now(store.revision))) == ["default/a", "default/b", "default/c"]


def test_a_kind_that_begins_now_knows_nothing_of_before() -> None:
    store = Store()
    write(store, "a")
    store.begin(("x.example", "things"))
    table = store.table(("x.example", "things"))
    assert table.past(store.revision - 1) is None
    assert table.past(store.revision) is not None


def test_bytes_are_made_once_and_name_the_kind_only_outside_of_lists() -> None:
    stored = write(Store(), "a", annotations={"quote": '"é'})
    whole: dict[str, Any] = json.loads(stored.whole)
    assert whole == stored.object
    bare = json.loads(stored.bare)
    assert bare == {"metadata": stored.object["metadata"]}
    assert stored.bare is stored.bare


def test_wakers_hear_of_their_kind_only_and_until_they_sleep() -> None:
    store = Store()
    heard: list[str] = []

    def waker() -> None:
        heard.append("changed")

    store.table(MAPS).wake(waker)
    write(store, "a")
    store.put(("", "secrets"), {"kind": "Secret", "apiVersion": "v1", **config_map("s")}, over=0)
    remove(store, "a")
    store.table(MAPS).let_sleep(waker)
    write(store, "a")
    assert heard == ["changed", "changed"]
