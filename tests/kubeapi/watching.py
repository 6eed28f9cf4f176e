"""One watch: a thread of its own reads the stream, so no waiting test hangs."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]
_END = object()


class WatchBroken(Exception):  # noqa: N818 - it names what happened to the watch
    """The stream ended in the middle of an event, or with something that is no event."""


class Watch:
    """An open watch. Iterating yields its events until the server or `close` ends it.

    `next` waits a bounded time for one event. `close` may be called from any thread.
    """

    def __init__(self, sock: socket.socket, response: http.client.HTTPResponse) -> None:
        self.headers = response.headers
        self._sock = sock
        self._response = response
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="watch", daemon=True)
        self._thread.start()

    def next(self, timeout: float = 60.0) -> Event | None:
        """Return the next event, None once the watch has ended; TimeoutError if neither comes."""
        try:
            return self._take(timeout)
        except queue.Empty:
            raise TimeoutError(f"the watch sent nothing for {timeout:g} s") from None

    def until(self, kind: str, name: str | None = None, timeout: float = 60.0) -> list[Event]:
        """Return the events up to the first of this kind (and object name), that one included."""
        seen: list[Event] = []
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(queue.Empty):
                event = self._take(max(0.0, deadline - time.monotonic()))
                if event is not None:
                    seen.append(event)
                    named = event["object"].get("metadata", {}).get("name")
                    if event["type"] == kind and name in (None, named):
                        return seen
                    continue
            ended = "ended" if self._closed.is_set() else "is open"
            short = [(e["type"], e["object"].get("metadata", {}).get("name")) for e in seen]
            raise TimeoutError(
                f"waited {timeout:g} s for {kind} of {name or 'anything'}; the watch {ended}; "
                f"seen: {short}"
            )

    def close(self) -> None:
        """End the watch; what had already arrived can still be read."""
        self._closed.set()
        # The plain socket's shutdown wakes the reader; TLS's own would pull the rug from under it.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self._take(None)
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, timeout: float | None) -> Event | None:
        item = self._events.get(timeout=timeout)
        if item is _END or isinstance(item, Exception):
            self._events.put(item)  # whoever asks again gets the same answer
            if isinstance(item, Exception):
                raise item
            return None
        assert isinstance(item, dict)
        return item

    def _pump(self) -> None:
        last: object = _END
        try:
            self._read_lines()
        except (OSError, ValueError, http.client.HTTPException, WatchBroken) as error:
            if not self._closed.is_set():
                last = error
        finally:
            self._closed.set()
            self._response.close()
            self._sock.close()
            self._events.put(last)

    def _read_lines(self) -> None:
        rest = b""
        while chunk := self._response.read1(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    self._put(line)
        if rest.strip():
            raise WatchBroken(f"the watch ended inside an event: {rest[:200]!r}")

    def _put(self, line: bytes) -> None:
        event = json.loads(line)
        if not isinstance(event, dict) or "type" not in event or "object" not in event:
            raise WatchBroken(f"the watch sent something that is no event: {line[:200]!r}")
        self._events.put(event)
