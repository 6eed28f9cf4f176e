"""Events on objects, and their aggregation.

What is said of an object, and many such sayings as one.

Telling users what happened to their pods, without ever being in the way.
`record` only notes; a background task sends. Three rules keep a busy cluster from being flooded:

- The same thing said again of the same object is counted on the event that is there, at most once a
  minute.
- Above a rate, what is said of many pods becomes one event on their namespace
  (`hami.kube.events`).
- The queue is bounded, and forgets the oldest first.

What the server refuses is dropped, and logged once a minute: events are not worth a retry.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.transport import TokenBucket
from hami.wire import codec, correlation

_NAMES = 5
_FIRST_MESSAGE = 600


class PodEvent(msgspec.Struct, frozen=True):
    """An event, without when and how often."""

    namespace: str
    name: str
    uid: str
    kind: str
    type: str
    reason: str
    message: str


class _Key(NamedTuple):
    namespace: str
    type: str
    reason: str


class _Group(msgspec.Struct):
    first: PodEvent
    #: The objects, in order; a dict is an ordered set.
    names: dict[str, None]


class Groups:
    """Sayings of the same kind about objects of one namespace."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}

    def add(self, said: PodEvent) -> None:
        key = _Key(said.namespace, said.type, said.reason)
        self._groups.setdefault(key, _Group(said, {})).names[said.name] = None

    def take(self) -> list[PodEvent]:
        """Return one saying for each group, and begin anew."""
        groups, self._groups = self._groups, {}
        return [_as_one(group) for group in groups.values()]


def _as_one(group: _Group) -> PodEvent:
    first, names = group.first, list(group.names)
    if len(names) == 1:
        return first
    told = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
    what = "pods" if first.kind == "Pod" else "objects"
    message = f"{len(names)} {what}: {first.message[:_FIRST_MESSAGE]} ({told})"
    if not first.namespace:
        # Of objects without a namespace, such as nodes, the first one bears it.
        return msgspec.structs.replace(first, message=message)
    return msgspec.structs.replace(
        first, kind="Namespace", name=first.namespace, uid="", message=message
    )


_log = logging.getLogger(__name__)

_RATE, _BURST = 20.0, 40
_FLUSH_EVERY = 2.0
_QUEUE = 1000
_SERIES = 4096
_SAME_WITHIN = 600.0
_PATCH_EVERY = 60.0
_MESSAGE_BYTES = 1024
_SENDERS = 4
_TIMEOUT = 10.0
_LOG_EVERY = 60.0


class Stats(msgspec.Struct):
    #: Requests that the server took: new events, and counts on those there.
    sent: int = 0
    #: Records that went into an event on their namespace.
    aggregated: int = 0
    dropped: int = 0
    failed: int = 0


class _Series(msgspec.Struct):
    """One event on the server, and how often it was said."""

    said: PodEvent
    name: str
    seen: float
    #: The request that caused it, for the audit log.
    correlation: str
    count: int = 1
    #: What the server knows; 0: the event is not there yet.
    told: int = 0
    told_at: float = 0.0


class EventRecorder:
    def __init__(
        self,
        client: Client,
        *,
        component: str,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.stats = Stats()
        self._client = client
        self._source = {"component": component, "host": host}
        self._clock = clock
        self._now = now
        self._bucket = TokenBucket(rate=_RATE, burst=_BURST, clock=clock)
        self._queue: deque[_Series] = deque()
        self._filled = asyncio.Event()
        #: By what was said, the last one at the end.
        self._series: OrderedDict[PodEvent, _Series] = OrderedDict()
        self._groups = Groups()
        self._complained_at: float | None = None

    def record(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        kind: str = "Pod",
        type: str = "Normal",  # noqa: A002 - as in the API
        reason: str,
        message: str,
    ) -> None:
        """Take note of an event; it is sent soon, alone or with others. Never blocks or raises."""
        said = PodEvent(namespace, name, uid, kind, type, reason, _cut(message))
        now = self._clock()
        series = self._series.get(said)
        if series is not None and now - series.seen < _SAME_WITHIN:
            series.count += 1
            series.seen = now
            self._series.move_to_end(said)
        elif self._bucket.try_take():
            self._begin(said)
        else:
            self.stats.aggregated += 1
            self._groups.add(said)

    async def run(self) -> NoReturn:
        """Send what is recorded, for ever; end by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_SENDERS):
                tasks.create_task(self._send_all(), name="events")
            while True:
                await asyncio.sleep(_FLUSH_EVERY)
                self.flush()

    def flush(self) -> None:
        """Queue what was gathered: events on namespaces, and counts that have grown."""
        for said in self._groups.take():
            self._begin(said)
        now = self._clock()
        for series in list(self._series.values()):
            if series.count > series.told > 0 and now - series.told_at >= _PATCH_EVERY:
                if not self._bucket.try_take():
                    break
                series.told_at = now
                self._enqueue(series)
        while self._series:
            first = next(iter(self._series))
            if now - self._series[first].seen < _SAME_WITHIN:
                break
            del self._series[first]

    def _begin(self, said: PodEvent) -> None:
        name = f"{said.name[:200]}.{secrets.token_hex(8)}"
        series = _Series(said, name, self._clock(), correlation.current())
        self._series[said] = series
        self._series.move_to_end(said)
        if len(self._series) > _SERIES:
            self._series.popitem(last=False)
        self._enqueue(series)

    def _enqueue(self, series: _Series) -> None:
        if len(self._queue) >= _QUEUE:
            self.stats.dropped += 1
            self._forget(self._queue.popleft())
        self._queue.append(series)
        self._filled.set()

    async def _send_all(self) -> NoReturn:
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            series = self._queue.popleft()
            correlation.begin(series.correlation)
            try:
                await self._send(series)
                self.stats.sent += 1
            except errors.KubeError as error:
                self.stats.failed += 1
                self._forget(series)
                self._complain(error)

    def _forget(self, series: _Series) -> None:
        """There is nothing to count on: said again, it begins anew."""
        if self._series.get(series.said) is series:
            del self._series[series.said]

    async def _send(self, series: _Series) -> None:
        namespace = series.said.namespace or "default"
        count = series.count
        if series.told:
            body: dict[str, object] = {"count": count, "lastTimestamp": self._stamp()}
            path = paths.events(namespace, series.name)
            await self._client.patch(path, codec.encode(body), timeout=_TIMEOUT, retry_busy=False)
        else:
            body = self._document(series, namespace, count)
            path = paths.events(namespace)
            await self._client.create(path, codec.encode(body), timeout=_TIMEOUT, retry_busy=False)
        series.told = count
        series.told_at = self._clock()

    def _document(self, series: _Series, namespace: str, count: int) -> dict[str, object]:
        said, stamp = series.said, self._stamp()
        about = {
            "apiVersion": "v1",
            "kind": said.kind,
            "name": said.name,
            "namespace": said.namespace,
            "uid": said.uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": {key: value for key, value in about.items() if value},
            "type": said.type,
            "reason": said.reason,
            "message": said.message,
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source["host"],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": count,
        }

    def _complain(self, error: errors.KubeError) -> None:
        now = self._clock()
        if self._complained_at is None or now - self._complained_at >= _LOG_EVERY:
            self._complained_at = now
            _log.warning(
                "events cannot be sent", extra={"error": str(error), "failed": self.stats.failed}
            )

    def _stamp(self) -> str:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MESSAGE_BYTES:
        return encoded.decode()
    return encoded[: _MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
