"""Wait for critical errors (XIDs) of some cards.

NVML's wait blocks, so it needs a thread. A card that is lost makes every wait of its event set fail
at once, for all cards: the caller then waits without it, and adds it again when it answers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.nvml_library import NvmlError, ask

_XID = pynvml.nvmlEventTypeXidCriticalError


@dataclasses.dataclass(frozen=True, slots=True)
class XidEvent:
    """One critical error."""

    #: The card's UUID; empty: the driver named an unknown card.
    uuid: str
    code: int


class XidWatch:
    """An event set. One thread waits; any thread may close it, which takes until the wait ends."""

    def __init__(
        self, handles: Mapping[str, Any], *, closed: Callable[[], None] = lambda: None
    ) -> None:
        #: Cards that report no XIDs, and why.
        self.unsupported: dict[str, str] = {}
        self._uuids: dict[int | None, str] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._on_closed = closed
        self._set = ask("waiting for XIDs", pynvml.nvmlEventSetCreate)
        for uuid, handle in handles.items():
            try:
                self._register(uuid, handle)
            except NvmlError as error:
                self.unsupported[uuid] = f"{error.text}; {error.remedy}"

    @property
    def uuids(self) -> frozenset[str]:
        """Return the cards whose XIDs are reported."""
        return frozenset(self._uuids.values())

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Return the next XID; None after the timeout, or if the watch is closed.

        NvmlError: the wait fails for all cards from now on.
        """
        with self._lock:
            if self._closed:
                return None
            try:
                event = ask("waiting for XIDs", pynvml.nvmlEventSetWait, self._set, timeout_ms)
            except NvmlError as error:
                if error.code == pynvml.NVML_ERROR_TIMEOUT:
                    return None
                raise
            if event.eventType != _XID:
                return None
            return XidEvent(self._uuid(event.device), event.eventData)

    def close(self) -> None:
        already, self._closed = self._closed, True  # before the lock: the next wait sees it
        if already:
            return
        with self._lock:
            try:
                ask("waiting for XIDs", pynvml.nvmlEventSetFree, self._set)
            except NvmlError:
                pass  # NVML was closed already, and the set with it
            finally:
                self._on_closed()

    def _register(self, uuid: str, handle: Any) -> None:
        what = f"XIDs of GPU {uuid}"
        types = ask(what, pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        if not types & _XID:
            raise NvmlError(what, "the card reports none", "nothing to do: the card is only probed")
        ask(what, pynvml.nvmlDeviceRegisterEvents, handle, _XID, self._set)
        self._uuids[_address(handle)] = uuid

    def _uuid(self, device: Any) -> str:
        """Return the UUID of an event's card; one that fell off the bus cannot be asked for it."""
        known = self._uuids.get(_address(device))
        if known is not None:
            return known
        try:
            return str(ask("card of an XID", pynvml.nvmlDeviceGetUUID, device))
        except NvmlError:
            return ""


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
