"""Write the timeline: watches of pods and nodes, event by event to a file.

A broken watch goes on where it stopped; if the server no longer has that place (410), a new list
is written. `catch_up` waits until all that has happened so far is written: what the API has must
be there, and what came and went in between arrives before the watch has reached the list's version.
A watch without events does not say where it is, so half a second of silence counts as well.
"""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from tests.e2e.auditor import timeline
from tests.kubeapi.client import ApiError, Client
from tests.kubeapi.watching import Watch, WatchBroken

PATHS = ("/api/v1/pods", "/api/v1/nodes")
RETRY = 0.5
SILENCE = 0.5
_GONE = 410
_FAILURES = (ApiError, OSError, http.client.HTTPException, WatchBroken, ValueError)


class Recorder:
    """Records from `start` to `stop`; use it as a context."""

    def __init__(
        self,
        client: Client,
        path: pathlib.Path,
        clock: Callable[[], float] = time.time,
        silence: float = SILENCE,
    ) -> None:
        self.path = path
        self._client = client
        self._clock = clock
        self._silence = silence
        self._writing = threading.Condition()
        self._stopped = threading.Event()
        self._seen: dict[str, dict[str, int]] = {place: {} for place in PATHS}
        self._deleted: dict[str, set[str]] = {place: set() for place in PATHS}
        self._listed: dict[str, int] = dict.fromkeys(PATHS, 0)
        self._reached: dict[str, int] = dict.fromkeys(PATHS, 0)
        self._watches: dict[str, Watch] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> Self:
        """Write what is there now, and go on from it."""
        self.path.write_text("")
        for place in PATHS:
            version = self._list(place)
            thread = threading.Thread(
                target=self._follow, args=(place, version), name=f"record {place}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        with self._writing:
            watches = list(self._watches.values())
        for watch in watches:
            watch.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def catch_up(self, timeout: float = 30.0) -> None:
        """Wait until everything that has happened up to now is written."""
        for place in PATHS:
            now = self._client.get(place)
            with self._writing:
                done = self._writing.wait_for(lambda: self._has(place, now), timeout)  # noqa: B023 - called within the round
                while self._reached[place] < _version(now) and self._writing.wait(self._silence):
                    pass
            if not done:
                raise TimeoutError(
                    f"the record {self.path} of {place} is still behind the API after {timeout:g} s"
                )

    def _has(self, place: str, now: dict[str, Any]) -> bool:
        seen, deleted, listed = self._seen[place], self._deleted[place], self._listed[place]
        there = {_uid(item): _version(item) for item in now["items"]}
        reached = all(
            seen.get(uid, 0) >= version or uid in deleted or listed >= version
            for uid, version in there.items()
        )
        # What we know and the list has not is gone, unless it is younger than the list.
        return reached and all(uid in there or seen[uid] > _version(now) for uid in seen)

    def _follow(self, place: str, version: str) -> None:
        while not self._stopped.is_set():
            try:
                version = self._watch(place, version)
            except _FAILURES as error:
                if isinstance(error, ApiError) and error.status == _GONE:
                    version = ""
                else:
                    self._stopped.wait(RETRY)
            if not version:
                with contextlib.suppress(*_FAILURES):
                    version = self._list(place)

    def _watch(self, place: str, version: str) -> str:
        """Write events until the watch ends; return where to go on, nothing if that is lost."""
        query = {"resourceVersion": version, "allowWatchBookmarks": "true"}
        with self._client.watch(place, query=query) as watch:
            with self._writing:
                self._watches[place] = watch
            if self._stopped.is_set():
                return version
            for event in watch:
                if event["type"] == "ERROR":
                    return ""
                self._write(place, event["type"], event["object"])
                version = event["object"]["metadata"]["resourceVersion"]
        return version

    def _list(self, place: str) -> str:
        answer = self._client.get(place)
        self._write(place, timeline.LIST, answer)
        return str(answer["metadata"]["resourceVersion"])

    def _write(self, place: str, kind: str, thing: dict[str, Any]) -> None:
        with self._writing:
            if kind != timeline.BOOKMARK:
                with self.path.open("a") as file:
                    file.write(timeline.line(self._clock(), kind, thing))
            seen = self._seen[place]
            if kind == timeline.LIST:
                seen.clear()
                seen.update({_uid(item): _version(item) for item in thing.get("items") or ()})
                self._listed[place] = _version(thing)
            elif kind == "DELETED":
                seen.pop(_uid(thing), None)
                self._deleted[place].add(_uid(thing))
            elif kind != timeline.BOOKMARK:
                seen[_uid(thing)] = _version(thing)
            self._reached[place] = _version(thing)
            self._writing.notify_all()


def _uid(thing: dict[str, Any]) -> str:
    return str(thing["metadata"]["uid"])


def _version(thing: dict[str, Any]) -> int:
    return int(thing["metadata"]["resourceVersion"])
