"""Watches: their events add up to a list, or the watch ends with an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver import lists
from hami_sandbox.apiserver.answers import Form, Writer
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.watches import Watch
from sandbox.tests.unit.apiserver.making import MAPS, kind, remove, write

NAMES = st.sampled_from(["a", "b", "c"])
COLOURS = st.sampled_from(["red", "blue"])
STEP = st.tuples(st.sampled_from(["n", "m"]), NAMES, st.one_of(st.none(), COLOURS))


def watch(
    store: Store, by: Selection | None = None, query: Mapping[str, str] | None = None
) -> Watch:
    wish = lists.parse({"watch": "1", "timeoutSeconds": "60", **(query or {})})
    by = by or Selection(kind("ConfigMap"))
    return Watch(store, MAPS, wish, by, Writer(kind("ConfigMap"), Form.WHOLE, {}))


@contextlib.asynccontextmanager
async def opened(found: Watch) -> AsyncIterator[AsyncIterator[bytes]]:
    lines = found.lines()
    try:
        yield lines
    finally:
        await lines.aclose()  # type: ignore[attr-defined] # it is a generator


def events(chunk: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in chunk.splitlines()]


def change(store: Store, namespace: str, name: str, colour: str | None) -> None:
    if colour is not None:
        write(store, name, namespace, labels={"colour": colour})
    elif store.find(*MAPS, namespace, name) is not None:
        remove(store, name, namespace)


@settings(max_examples=40)
@given(st.lists(STEP, max_size=10), st.lists(STEP, max_size=30), st.data())
def test_events_lead_from_one_list_to_the_next(
    before: list[tuple[str, str, str | None]],
    after: list[tuple[str, str, str | None]],
    data: st.DataObject,
) -> None:
    """The events of a selection, applied to what it held, give what it holds."""
    store = Store()
    by = Selection(kind("ConfigMap"), namespace="n", label_selector="colour=red")
    for step in before:
        change(store, *step)

    def listed() -> dict[str, str]:
        return {
            found["metadata"]["name"]: found["metadata"]["resourceVersion"]
            for found in store.all(*MAPS)
            if by.matches(found)
        }

    mine, since = listed(), store.revision
    pauses = data.draw(st.sets(st.integers(0, 30)))

    async def follow() -> None:
        async with opened(watch(store, by, {"resourceVersion": str(since)})) as lines:
            for number, step in enumerate(after):
                change(store, *step)
                if number in pauses:
                    await catch_up(lines)
            await catch_up(lines)

    async def catch_up(lines: AsyncIterator[bytes]) -> None:
        while mine != listed():
            for event in events(await anext(lines)):
                apply(mine, event)

    asyncio.run(follow())
    assert mine == listed()


def apply(mine: dict[str, str], event: dict[str, Any]) -> None:
    """Do to what a client knows what an event says."""
    metadata = event["object"]["metadata"]
    assert metadata["labels"] == {"colour": "red"}
    assert (event["type"] == "ADDED") == (metadata["name"] not in mine)
    if event["type"] == "DELETED":
        del mine[metadata["name"]]
    else:
        mine[metadata["name"]] = metadata["resourceVersion"]


async def test_a_watch_that_is_too_slow_is_told_that_it_missed_something() -> None:
    store = Store(history=4)
    since = write(store, "a").revision
    async with opened(watch(store, query={"resourceVersion": str(since)})) as lines:
        write(store, "a")
        assert [event["type"] for event in events(await anext(lines))] == ["MODIFIED"]
        for _ in range(20):
            write(store, "a")
        (told,) = events(await anext(lines))
        assert await anext(lines, None) is None
    assert (told["type"], told["object"]["code"]) == ("ERROR", 410)
    assert told["object"]["reason"] == "Expired"


async def test_a_watch_list_marks_where_the_present_ends() -> None:
    store = Store()
    for name in "ab":
        write(store, name)
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with opened(watch(store, query=query)) as lines:
        present = events(await anext(lines))
        (mark,) = events(await anext(lines))
    assert [event["object"]["metadata"]["name"] for event in present] == ["a", "b"]
    assert mark["object"]["metadata"] == {
        "resourceVersion": str(store.revision),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }


async def test_a_watch_of_a_kind_that_is_no_longer_served_ends() -> None:
    store = Store()
    store.begin(MAPS)
    async with opened(watch(store)) as lines:
        waiting = asyncio.ensure_future(anext(lines, None))
        await asyncio.sleep(0)
        store.end(MAPS)
        assert await waiting is None


async def test_a_closed_watch_is_woken_no_more() -> None:
    store = Store()
    write(store, "a")
    one = watch(store)
    async with opened(one) as lines:
        await anext(lines)
        assert store.table(MAPS).watched
    assert not store.table(MAPS).watched
