"""The connection to the driver, through NVML.

Every call may block for milliseconds, or for ever where the driver hangs: never call it on the
event loop. An error of one card affects that card only: it is named in a `Problem` or a
`NvmlError`, and the others are read.

Cards are found by index first. NVML's search by UUID visits all cards, and a dead one before the
wanted one can make it fail. It also opens all that it visits. So while a card is released for a
reset or another driver (`hami.node.released_cards`), the others are found by their bus addresses,
and nothing is searched by UUID.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import pynvml  # type: ignore[import-untyped]

from hami.node import nvml_cards, nvml_library, nvml_processes
from hami.node.nvml_cards import Card, CardLinks, Problem
from hami.node.nvml_events import XidEvent, XidWatch
from hami.node.nvml_library import (
    NvmlError,
    Replacement,
    ask,
    ask_optional,
    opens_in_new_process,
)
from hami.node.nvml_processes import GpuProcess, ProcessUtilization

__all__ = [
    "GpuProcess",
    "Nvml",
    "NvmlError",
    "ProcessUtilization",
    "Replacement",
    "XidEvent",
    "XidWatch",
    "opens_in_new_process",
]

_WHAT = "NVML"
_REOPEN_WAITS = 5.0


class Nvml:
    """An open connection to the driver. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._gate = _Gate()
        self._open = False
        self._handles: dict[str, Any] = {}
        #: UUID by index, as last seen: a lost card does not report its UUID.
        self._seen: dict[int, str] = {}
        #: The cards that may be opened; None: all.
        self._only: tuple[Card, ...] | None = None
        self._watches = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, driver_root: str = "", only: Sequence[Card] | None = None) -> Self:
        """Load the driver's library below that root, or from the linker's folders, and connect.

        `only`: the cards that may be opened; None is all of them.
        """
        try:
            nvml_library.load(driver_root)
        except nvml_library.LibraryNotFoundError as error:
            raise NvmlError(
                _WHAT,
                str(error),
                "install the NVIDIA driver on the node, or set --driver-root to the folder that it "
                "is installed below",
            ) from error
        nvml = cls()
        nvml._only = None if only is None else tuple(only)
        ask(_WHAT, pynvml.nvmlInit)
        nvml._open = True
        return nvml

    def close(self) -> None:
        """Disconnect; not while a watch is open or a call hangs: then the process's end does."""
        with self._gate.alone(_REOPEN_WAITS) as alone:
            if alone and not self._watches:
                self._end()

    def reopen(self) -> None:
        """Connect again: only then are cards seen that came back or were changed.

        No XID watch may be open. If the driver is missing, every call fails until a later reopen
        finds it.
        """
        if self._watches:
            raise NvmlError(_WHAT, "an XID watch is open", "close it before")
        with self._gate.alone(_REOPEN_WAITS) as alone:
            if not alone:
                raise NvmlError(_WHAT, "a call does not return", "reboot the node")
            self._end()
            ask(_WHAT, pynvml.nvmlInit)
            self._open = True

    def driver_version(self) -> str:
        with self._gate.together():
            return str(ask("driver version", pynvml.nvmlSystemGetDriverVersion))

    def cards(self) -> tuple[tuple[Card, ...], tuple[Problem, ...]]:
        """List the cards that answer, by index, and what is wrong with the others.

        NvmlError: the driver as a whole does not answer.
        """
        with self._gate.together():
            cards: list[Card] = []
            problems: list[Problem] = []
            for index, find in self._places():
                try:
                    handle = find()
                    card, of_parts = nvml_cards.read_card(handle, index)
                except NvmlError as error:
                    problems.append(self._problem(index, error))
                else:
                    cards.append(card)
                    problems += of_parts
                    self._handles[card.uuid] = handle
                    self._seen[index] = card.uuid
            return tuple(cards), tuple(problems)

    def links(self, cards: Sequence[Card]) -> tuple[tuple[CardLinks, ...], tuple[Problem, ...]]:
        """Return the links of these cards; a card that does not answer has none."""
        with self._gate.together():
            problems: list[Problem] = []
            handles: list[tuple[Card, Any]] = []
            for card in cards:
                try:
                    handles.append((card, self._handle(card.uuid)))
                except NvmlError as error:
                    problems.append(nvml_cards.problem_of(error))
            links: list[CardLinks] = []
            for card, handle in handles:
                others = [pair for pair in handles if pair[0] is not card]
                found, failed = nvml_cards.read_links(card, handle, others)
                links.append(found)
                problems += failed
            return tuple(links), tuple(problems)

    def probe(self, uuid: str) -> str:
        """Return why a card does not answer; empty: it answers."""
        what = f"GPU {uuid}"
        with self._gate.together():
            try:
                handle = self._handle(uuid)
                ask_optional(what, pynvml.nvmlDeviceGetMemoryInfo, handle)
                ask_optional(what, pynvml.nvmlDeviceGetUtilizationRates, handle)
            except NvmlError as error:
                return f"{error.text}; {error.remedy}"
            return ""

    def recovery_action(self, uuid: str) -> int | None:
        """Return NVML's number of the recovery that the card needs.

        0: none. None: this driver or card does not report it.
        """
        what = f"recovery action of GPU {uuid}"
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        with self._gate.together():
            try:
                values = ask(what, pynvml.nvmlDeviceGetFieldValues, self._handle(uuid), [field])
            except NvmlError:
                return None  # `probe` finds out whether the card answers at all
            if values[0].nvmlReturn != pynvml.NVML_SUCCESS:
                return None
            return int(values[0].value.uiVal)

    def memory_used(self, uuid: str) -> int:
        """Return the used bytes, without those that the driver reserves."""
        what = f"memory of GPU {uuid}"
        with self._gate.together():
            handle = self._handle(uuid)
            memory = ask_optional(
                what, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2
            )
            if memory is None:
                memory = ask(what, pynvml.nvmlDeviceGetMemoryInfo, handle)
            return int(memory.used)

    def utilization(self, uuid: str) -> tuple[int, int]:
        """Return the utilization of compute and memory in percent; NvmlError: not reported."""
        with self._gate.together():
            rates = ask(
                f"utilization of GPU {uuid}",
                pynvml.nvmlDeviceGetUtilizationRates,
                self._handle(uuid),
            )
            return int(rates.gpu), int(rates.memory)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes on a card and on its MIG devices, by pid."""
        what = f"processes of GPU {uuid}"
        with self._gate.together():
            handle = self._handle(uuid)
            return nvml_processes.read_processes(what, handle, list(_parts(what, handle)))

    def process_utilization(
        self, uuid: str, since_us: int, now_us: int
    ) -> tuple[ProcessUtilization, ...] | None:
        """Return each process's newest sample between the two (microseconds since 1970).

        Empty: no process ran. None: driver or card (with MIG enabled) do not report it.
        """
        with self._gate.together():
            return nvml_processes.read_utilization(
                f"processes of GPU {uuid}", self._handle(uuid), since_us, now_us
            )

    def watch_xids(self, uuids: Iterable[str]) -> XidWatch:
        """Start collecting XIDs of these cards; the watch names those that report none."""
        with self._gate.together():
            handles: dict[str, Any] = {}
            failed: dict[str, str] = {}
            for uuid in uuids:
                try:
                    handles[uuid] = self._handle(uuid)
                except NvmlError as error:
                    failed[uuid] = f"{error.text}; {error.remedy}"
            watch = XidWatch(handles, closed=self._watch_closed)
            watch.unsupported.update(failed)
            with self._lock:
                self._watches += 1
            return watch

    def _watch_closed(self) -> None:
        with self._lock:
            self._watches -= 1

    def _end(self) -> None:
        self._handles.clear()
        if self._open:
            self._open = False
            with contextlib.suppress(NvmlError):
                ask(_WHAT, pynvml.nvmlShutdown)

    def _problem(self, index: int, error: NvmlError) -> Problem:
        uuid = self._seen.get(index)
        subject = error.what if uuid is None or uuid in error.what else f"{error.what} ({uuid})"
        return Problem(subject=subject, rule=error.text, remedy=error.remedy)

    def _handle(self, uuid: str) -> Any:
        """Find a card, by index before by UUID; the handle is valid until `reopen`."""
        if (known := self._handles.get(uuid)) is not None:
            return known
        for index, find in self._places():
            try:
                handle = find()
                found = ask(f"UUID of GPU {index}", pynvml.nvmlDeviceGetUUID, handle)
            except NvmlError as error:
                if self._seen.get(index) == uuid:
                    raise NvmlError(
                        f"GPU {uuid}", error.text, error.remedy, code=error.code
                    ) from None
                continue
            self._handles.setdefault(found, handle)
            self._seen.setdefault(index, found)
        if (known := self._handles.get(uuid)) is not None:
            return known
        if self._only is not None:
            return self._mig_handle(uuid)
        return ask(f"GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)

    def _mig_handle(self, uuid: str) -> Any:
        """Find a MIG device of the cards that may be opened."""
        for card in self._only or ():
            handle = self._handles.get(card.uuid)
            if handle is None or not card.mig_enabled:
                continue
            for part in nvml_cards.part_handles(handle, f"GPU {card.uuid}")[0]:
                if ask(f"MIG device of GPU {card.uuid}", pynvml.nvmlDeviceGetUUID, part) == uuid:
                    return part
        raise nvml_library.error_of(f"GPU {uuid}", pynvml.NVML_ERROR_NOT_FOUND)

    def _places(self) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Yield the index of each card that may be opened, and how to find it."""
        if self._only is None:
            for index in range(ask("number of GPUs", pynvml.nvmlDeviceGetCount)):
                yield index, functools.partial(nvml_cards.handle_at, index)
        for card in self._only or ():
            yield card.index, functools.partial(nvml_cards.handle_on_bus, card.bus_id)


def _parts(what: str, handle: Any) -> Iterator[tuple[Any, int, int]]:
    try:
        mode = ask_optional(what, pynvml.nvmlDeviceGetMigMode, handle)
    except NvmlError:
        return  # a MIG device has no MIG devices, and a lost card reports none
    if not (mode and mode[0]):
        return
    for part in nvml_cards.part_handles(handle, what)[0]:
        with contextlib.suppress(NvmlError):
            gpu = ask(what, pynvml.nvmlDeviceGetGpuInstanceId, part)
            yield part, gpu, ask(what, pynvml.nvmlDeviceGetComputeInstanceId, part)


class _Gate:
    """Lets calls run side by side, but none while NVML is closed and opened."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, timeout: float) -> Iterator[bool]:
        """Yield whether all running calls have ended; if not, new calls are let in again."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            ended = self._changed.wait_for(lambda: not self._running, timeout)
        try:
            yield ended
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
