"""Events end after an hour of silence, and not before."""

from __future__ import annotations

import datetime as dt

from hami_sandbox import api_objects
from hami_sandbox.apiserver import deletion
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def add(store: Store, name: str, minutes: int, *, repeated: int | None = None) -> None:
    def ago(number: int) -> str:
        return api_objects.stamp(NOW - dt.timedelta(minutes=number))

    metadata: Object = {"name": name, "namespace": "n", "creationTimestamp": ago(minutes)}
    if repeated is not None:
        metadata["managedFields"] = [{"manager": "m", "time": ago(repeated)}]
    event = {"kind": "Event", "apiVersion": "v1", "metadata": metadata}
    store.put(("", "events"), event, over=0)


def test_only_events_without_news_are_removed() -> None:
    store = Store()
    add(store, "new", 59)
    add(store, "old", 61)
    add(store, "repeated", 200, repeated=10)
    assert deletion.remove(store, NOW) == 1
    assert [e["metadata"]["name"] for e in store.all("", "events")] == ["new", "repeated"]
