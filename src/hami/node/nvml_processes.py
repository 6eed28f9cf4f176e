"""Reads from NVML which processes are on a card, what they hold and how busy they keep it.

The pids are those of the caller's own pid namespace: agent and monitor share the host's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.nvml_library import NOT_TOLD, NvmlError, ask

_TRIES = 3
_PERCENT = 100
#: Instance numbers of what is on no MIG device.
_NONE = 0xFFFFFFFF

#: By purpose, newest form first: an older driver has only an older one.
_LISTS: tuple[tuple[Callable[..., Any], ...], ...] = (
    (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
    ),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    #: Bytes on the card; None: the driver does not tell.
    memory: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    pid: int
    #: Microseconds since 1970, by the driver's clock: the next question's `since_us`.
    at_us: int
    #: Percent of the card's compute and of its memory's bandwidth.
    compute: int
    memory: int


def read_processes(
    what: str, handle: Any, parts: Sequence[tuple[Any, int, int]]
) -> tuple[GpuProcess, ...]:
    """List a card's processes, those on its MIG devices (handle and instances) too.

    A process that computes and draws is in two lists with the same memory, and a driver may list
    what is on a part with the whole card as well: of one place the larger number counts. On
    several parts a process holds the sum.
    """
    places: dict[tuple[int, int, int], int | None] = {}
    for each, gpu, compute in ((handle, _NONE, _NONE), *parts):
        for entry in _entries(what, each):
            on = entry.gpuInstanceId
            place = (
                entry.pid,
                gpu if on == _NONE else on,
                compute if on == _NONE else entry.computeInstanceId,
            )
            places[place] = _larger(places.get(place), entry.usedGpuMemory)
    held: dict[int, int | None] = {}
    for (pid, _, _), memory in places.items():
        known = held.get(pid)
        held[pid] = known if memory is None else memory + (known or 0)
    return tuple(GpuProcess(pid=pid, memory=memory) for pid, memory in sorted(held.items()))


def read_utilization(
    what: str, handle: Any, since_us: int
) -> tuple[ProcessUtilization, ...] | None:
    """Give each process's newest sample after that time; None where the driver takes none."""
    try:
        samples = ask(what, pynvml.nvmlDeviceGetProcessUtilization, handle, since_us)
    except NvmlError as error:
        # No sample is an error there, and nvidia-ml-py takes an empty answer for one as well.
        if error.code in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return ()
        if error.code in NOT_TOLD:
            return None
        raise
    newest: dict[int, ProcessUtilization] = {}
    for sample in samples:
        # Drivers fill what they have no sample for with zeros or with what lay there.
        if not sample.pid or sample.smUtil > _PERCENT or sample.timeStamp <= since_us:
            continue
        found = ProcessUtilization(
            pid=sample.pid,
            at_us=sample.timeStamp,
            compute=sample.smUtil,
            memory=min(sample.memUtil, _PERCENT),
        )
        if sample.pid not in newest or newest[sample.pid].at_us < found.at_us:
            newest[sample.pid] = found
    return tuple(newest[pid] for pid in sorted(newest))


def _entries(what: str, handle: Any) -> list[Any]:
    return [entry for forms in _LISTS for entry in _list(what, handle, forms)]


def _list(what: str, handle: Any, forms: Sequence[Callable[..., Any]]) -> list[Any]:
    for form in forms:
        try:
            return _grown(what, handle, form)
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                return []
            if error.code not in NOT_TOLD:
                raise
    return []


def _grown(what: str, handle: Any, form: Callable[..., Any]) -> list[Any]:
    """Ask again if more processes came in between than there was room for."""
    tries = _TRIES
    while True:
        tries -= 1
        try:
            return list(ask(what, form, handle))
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not tries:
                raise


def _larger(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)
