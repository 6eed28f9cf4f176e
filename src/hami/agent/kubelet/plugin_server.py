"""Serve kubelet's device-plugin calls, and the device list that it watches.

Allocate is answered in the event loop's thread: kubelet admits one pod after the other and waits
for it. What a plugin refuses (an AgentError) is shown by kubelet in an event of the pod; any other
error fails that one call and is logged. An error in GetPreferredAllocation is answered with no
preference, because kubelet would not admit the pod otherwise.

Each list of devices makes kubelet write its checkpoint and the node's status. So changes within a
moment are sent as one list, and a change that was undone by then is not sent at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from hami.agent.errors import AgentError
from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.grpc import Message, StatusCode
from hami.agent.kubelet.kubelet_api import AllocateResponse

_log = logging.getLogger(__name__)

#: Seconds. kubelet waits 30 for PreStartContainer; its own timeout would hide the reason.
PRE_START_LIMIT = 27.0
PREFERRED_LIMIT = 2.0


class ListedDevice(Protocol):
    """A device id as kubelet gets it."""

    @property
    def id(self) -> str: ...

    @property
    def healthy(self) -> bool: ...

    @property
    def numa(self) -> int | None: ...


class Plugin(Protocol):
    """Answers kubelet's calls. `allocate` and `pre_start` may raise an AgentError."""

    @property
    def resource(self) -> str: ...

    @property
    def pre_start_required(self) -> bool: ...

    @property
    def preferred_allocation(self) -> bool: ...

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        """Yield all devices, and again after every change (`DeviceList`)."""

    async def allocate(self, requests: list[tuple[str, ...]]) -> list[AllocateResponse]:
        """Answer every request, in order."""

    async def pre_start(self, device_ids: frozenset[str]) -> None: ...

    async def preferred(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> tuple[str, ...]:
        """Choose among the available; empty: kubelet chooses."""


class Streams:
    """Counts open device lists: one, or for a moment that of an old kubelet too."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.open = 0
        self._changed = changed

    def count(self, change: int) -> None:
        self.open += change
        self._changed()


def plugin_handler(
    plugin: Plugin, streams: Streams | None = None, *, pre_start_limit: float = PRE_START_LIMIT
) -> Any:
    """Return a handler for a grpc.aio server that answers for this plugin."""
    answers = _Answers(plugin, streams or Streams(), pre_start_limit)
    return grpc.handler(
        {
            kubelet_api.OPTIONS: answers.options,
            kubelet_api.LIST_AND_WATCH: answers.list_and_watch,
            kubelet_api.PREFERRED: answers.preferred,
            kubelet_api.ALLOCATE: answers.allocate,
            kubelet_api.PRE_START: answers.pre_start,
        }
    )


class _Answers:
    def __init__(self, plugin: Plugin, streams: Streams, pre_start_limit: float) -> None:
        self._plugin = plugin
        self._streams = streams
        self._pre_start_limit = pre_start_limit

    async def options(self, _request: Message, _context: Any) -> Message:
        return {
            "pre_start_required": self._plugin.pre_start_required,
            "get_preferred_allocation_available": self._plugin.preferred_allocation,
        }

    async def list_and_watch(self, _request: Message, _context: Any) -> AsyncIterator[Message]:
        self._streams.count(+1)
        try:
            async for devices in self._plugin.devices():
                yield {
                    "devices": [
                        kubelet_api.device(one.id, healthy=one.healthy, numa=one.numa)
                        for one in devices
                    ]
                }
        finally:
            self._streams.count(-1)

    async def allocate(self, request: Message, context: Any) -> Message:
        asked = [tuple(one["device_ids"]) for one in request["container_requests"]]

        async def answered() -> Message:
            answers = await self._plugin.allocate(asked)
            if len(answers) != len(asked):
                raise RuntimeError(f"{len(answers)} answers to {len(asked)} requests")
            return {"container_responses": [answer.message() for answer in answers]}

        return await self._or_abort(context, "Allocate", sum(asked, ()), answered)

    async def pre_start(self, request: Message, context: Any) -> Message:
        device_ids = tuple(request["device_ids"])

        async def started() -> Message:
            async with asyncio.timeout(self._pre_start_limit):
                await self._plugin.pre_start(frozenset(device_ids))
            return {}

        return await self._or_abort(context, "PreStartContainer", device_ids, started)

    async def preferred(self, request: Message, _context: Any) -> Message:
        answers = [await self._preferred(one) for one in request["container_requests"]]
        return {"container_responses": [{"device_ids": answer} for answer in answers]}

    async def _preferred(self, request: Message) -> tuple[str, ...]:
        try:
            async with asyncio.timeout(PREFERRED_LIMIT):
                return await self._plugin.preferred(
                    tuple(request["available_device_ids"]),
                    tuple(request["must_include_device_ids"]),
                    request["allocation_size"],
                )
        except Exception:  # noqa: BLE001 - any error: kubelet then chooses by itself
            _log.exception("cannot prefer device ids", extra={"resource": self._plugin.resource})
            return ()

    async def _or_abort(
        self,
        context: Any,
        call: str,
        device_ids: Sequence[str],
        answer: Callable[[], Awaitable[Message]],
    ) -> Message:
        extra = {"resource": self._plugin.resource, "call": call, "devices": sorted(device_ids)}
        try:
            return await answer()
        except AgentError as error:
            _log.warning("refused a call of kubelet", extra={**extra, "error": str(error)})
            await _abort(context, StatusCode.FAILED_PRECONDITION, f"hami: {error}")
        except TimeoutError:
            _log.exception("a call of kubelet took too long", extra=extra)
            await _abort(
                context,
                StatusCode.DEADLINE_EXCEEDED,
                f"hami: {call} took too long; the log of hami's agent on this node has the step",
            )
        except Exception as error:  # noqa: BLE001 - it concerns this call only
            _log.exception("a call of kubelet failed", extra=extra)
            await _abort(
                context,
                StatusCode.INTERNAL,
                f"hami: {call} failed, {type(error).__name__}: {error}; "
                "the log of hami's agent on this node has more",
            )


async def _abort(context: Any, code: StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("unreachable: abort raises")


D = TypeVar("D")

#: Seconds between two lists on one stream.
PAUSE = 0.2


class DeviceList(Generic[D]):
    """The current list of devices. Before the first `set` readers wait: no list is not empty."""

    def __init__(self, *, pause: float = PAUSE) -> None:
        self._pause = pause
        self._devices: tuple[D, ...] | None = None
        self._changed = asyncio.Event()

    @property
    def devices(self) -> tuple[D, ...]:
        return self._devices or ()

    def set(self, devices: Sequence[D]) -> None:
        """Replace the list; devices must be comparable."""
        if self._devices is not None and tuple(devices) == self._devices:
            return
        self._devices = tuple(devices)
        # Readers that wait continue once; later readers wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[tuple[D, ...]]:
        """Yield the list, and again whenever it differs; never ends by itself."""
        sent: tuple[D, ...] | None = None
        while True:
            while self._devices is None or self._devices == sent:
                await self._changed.wait()
            sent = self._devices
            yield sent
            await asyncio.sleep(self._pause)
