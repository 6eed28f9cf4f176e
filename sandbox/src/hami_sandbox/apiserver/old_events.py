"""Events do not stay: those that nobody repeated for an hour are removed."""

from __future__ import annotations

import asyncio
import datetime as dt

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store
from hami_sandbox.times import read

_EVENTS = ("", "events")
_LIFETIME = dt.timedelta(hours=1)
#: Seconds between two looks.
_PAUSE = 60


async def forget(store: Store) -> None:
    """Remove old events, now and then, for as long as the server runs."""
    while True:
        await asyncio.sleep(_PAUSE)
        remove(store, dt.datetime.now(dt.UTC))


def remove(store: Store, now: dt.datetime) -> int:
    """Remove what is too old at this time; return how many."""
    old = [found for found in store.all(*_EVENTS) if _last(found) < now - _LIFETIME]
    for event in old:
        metadata = event["metadata"]
        store.remove(
            _EVENTS,
            metadata.get("namespace") or "",
            metadata["name"],
            over=int(metadata["resourceVersion"]),
        )
    return len(old)


def _last(event: Object) -> dt.datetime:
    """Return when the event was last written; its own times are its reporter's affair."""
    times = [event["metadata"]["creationTimestamp"]]
    times += [
        entry["time"] for entry in event["metadata"].get("managedFields") or () if "time" in entry
    ]
    return max(map(read, times))
