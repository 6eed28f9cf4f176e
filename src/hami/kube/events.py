"""Events on objects, and their aggregation.

`record` only notes an event; a background task sends it, so that nothing waits for events. Three
rules keep a busy cluster from being flooded:

- The same event on the same object is counted on the event that exists, at most once a minute.
- Above a rate, events on many pods become one event on their namespace, and these have a rate, too.
- The queue is bounded, and forgets the oldest first.

An event that the server refuses is dropped, and logged once a minute: events are not worth a retry.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
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
    """An event, without time and count."""

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
    """Events of the same type and reason on objects of one namespace."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}

    def add(self, event: PodEvent) -> None:
        key = _Key(event.namespace, event.type, event.reason)
        self._groups.setdefault(key, _Group(event, {})).names[event.name] = None

    def __len__(self) -> int:
        return len(self._groups)

    def take(self) -> PodEvent | None:
        """Return one event for the oldest group, and forget the group; None: there is none."""
        for key in self._groups:
            return _as_one(self._groups.pop(key))
        return None


def _as_one(group: _Group) -> PodEvent:
    first, names = group.first, list(group.names)
    if len(names) == 1:
        return first
    listed = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
    what = "pods" if first.kind == "Pod" else "objects"
    message = f"{len(names)} {what}: {first.message[:_FIRST_MESSAGE]} ({listed})"
    if not first.namespace:
        # Objects without a namespace, such as nodes: the event is on the first of them.
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
#: Random bytes, or bytes of a digest, in the name of an event.
_NAME_BYTES = 8
_TIMEOUT = 10.0
_LOG_EVERY = 60.0


class Stats(msgspec.Struct):
    """Counts since the start."""

    #: Requests that the server accepted: new events, and counts on existing ones.
    sent: int = 0
    #: Records that went into an event on their namespace.
    aggregated: int = 0
    dropped: int = 0
    failed: int = 0


class _Series(msgspec.Struct):
    """One event on the server, and how often it happened."""

    event: PodEvent
    name: str
    seen: float
    #: The request that caused it, for the audit log.
    correlation: str
    count: int = 1
    #: The count that the server has; 0: the event does not exist there yet.
    sent: int = 0
    sent_at: float = 0.0


class EventRecorder:
    """Records events and sends them in the background."""

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
        # Neither waits for the other: a burst of events and one of binds.
        self._client = client.apart(_SENDERS)
        self._source = {"component": component, "host": host}
        self._clock = clock
        self._now = now
        self._bucket = TokenBucket(rate=_RATE, burst=_BURST, clock=clock)
        # Of their own: a steady stream of single events would leave none for groups.
        self._group_bucket = TokenBucket(rate=_RATE, burst=_BURST, clock=clock)
        self._queue: deque[_Series] = deque()
        self._filled = asyncio.Event()
        #: The last one is at the end.
        self._series: OrderedDict[PodEvent, _Series] = OrderedDict()
        self._groups = Groups()
        self._logged_at: float | None = None

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
        once: bool = False,
    ) -> None:
        """Take note of an event; it is sent soon, alone or with others. Never blocks or raises.

        `once`: it is sent alone, and only if the object has none of this reason, of any process
        that names the object's events alike. The caller keeps a rate.
        """
        event = PodEvent(namespace, name, uid, kind, type, reason, _cut(message))
        now = self._clock()
        series = self._series.get(event)
        if series is not None and now - series.seen < _SAME_WITHIN:
            series.count += 1
            series.seen = now
            self._series.move_to_end(event)
        elif once or self._bucket.try_take():
            self._begin(event, once=once)
        else:
            self.stats.aggregated += 1
            self._groups.add(event)

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
        self._flush_groups()
        now = self._clock()
        for series in list(self._series.values()):
            if series.count > series.sent > 0 and now - series.sent_at >= _PATCH_EVERY:
                if not self._bucket.try_take():
                    break
                series.sent_at = now
                self._enqueue(series)
        while self._series:
            first = next(iter(self._series))
            if now - self._series[first].seen < _SAME_WITHIN:
                break
            del self._series[first]

    def _flush_groups(self) -> None:
        """Queue the oldest groups at a rate; the others wait and gather more.

        Pods of a thousand namespaces are a thousand groups of one.
        """
        while len(self._groups) and self._group_bucket.try_take():
            event = self._groups.take()
            if event is not None:
                self._begin(event)
        while len(self._groups) > _QUEUE:
            self._groups.take()
            self.stats.dropped += 1

    def _begin(self, event: PodEvent, *, once: bool = False) -> None:
        ending = _digest(event.uid, event.reason) if once else secrets.token_hex(_NAME_BYTES)
        name = f"{event.name[:200]}.{ending}"
        series = _Series(event, name, self._clock(), correlation.current())
        self._series[event] = series
        self._series.move_to_end(event)
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
                self._log_failure(error)

    def _forget(self, series: _Series) -> None:
        """Forget an event that does not exist on the server: the next one like it is a new one."""
        if self._series.get(series.event) is series:
            del self._series[series.event]

    async def _send(self, series: _Series) -> None:
        namespace = series.event.namespace or "default"
        count = series.count
        if series.sent:
            body: dict[str, object] = {"count": count, "lastTimestamp": self._stamp()}
            path = paths.events(namespace, series.name)
            await self._client.patch(path, codec.encode(body), timeout=_TIMEOUT, retry_busy=False)
        else:
            body = self._document(series, namespace, count)
            path = paths.events(namespace)
            try:
                await self._client.create(
                    path, codec.encode(body), timeout=_TIMEOUT, retry_busy=False
                )
            except errors.Conflict as error:
                if not error.exists:
                    raise
        series.sent = count
        series.sent_at = self._clock()

    def _document(self, series: _Series, namespace: str, count: int) -> dict[str, object]:
        event, stamp = series.event, self._stamp()
        about = {
            "apiVersion": "v1",
            "kind": event.kind,
            "name": event.name,
            "namespace": event.namespace,
            "uid": event.uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": {key: value for key, value in about.items() if value},
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source["host"],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": count,
        }

    def _log_failure(self, error: errors.KubeError) -> None:
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            _log.warning(
                "cannot send events", extra={"error": str(error), "failed": self.stats.failed}
            )

    def _stamp(self) -> str:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[: 2 * _NAME_BYTES]


def _cut(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MESSAGE_BYTES:
        return encoded.decode()
    return encoded[: _MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
