"""Read a card's processes from NVML: their memory and utilization.

Pids are those of the caller's pid namespace: agent and monitor share the host's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.nvml_library import UNSUPPORTED, NvmlError, ask

_TRIES = 3
_PERCENT = 100
#: Instance numbers of processes that are on no MIG device.
_NONE = 0xFFFFFFFF

#: By purpose, newest version first: an older driver has only older ones.
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


#: Microseconds by which a sample may be newer than the question for it.
CLOCK_SLACK_US = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    #: Bytes on the card; None: not reported.
    memory: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    pid: int
    #: Microseconds since 1970, by the driver's clock: the next call's `since_us`.
    at_us: int
    #: Percent of the card's compute and of its memory's bandwidth.
    compute: int
    memory: int


def read_processes(
    what: str, handle: Any, parts: Sequence[tuple[Any, int, int]]
) -> tuple[GpuProcess, ...]:
    """List a card's processes, also those on its MIG devices (handle and instances).

    A process that computes and draws is in two lists with the same memory, and a driver may list
    processes of a MIG device with the whole card as well: for one device the larger number counts.
    On several devices a process holds the sum.
    """
    by_device: dict[tuple[int, int, int], int | None] = {}
    for each, gpu, compute in ((handle, _NONE, _NONE), *parts):
        for entry in _entries(what, each):
            on = entry.gpuInstanceId
            device = (
                entry.pid,
                gpu if on == _NONE else on,
                compute if on == _NONE else entry.computeInstanceId,
            )
            by_device[device] = _larger(by_device.get(device), entry.usedGpuMemory)
    held: dict[int, int | None] = {}
    for (pid, _, _), memory in by_device.items():
        known = held.get(pid)
        held[pid] = known if memory is None else memory + (known or 0)
    return tuple(GpuProcess(pid=pid, memory=memory) for pid, memory in sorted(held.items()))


def read_utilization(
    what: str, handle: Any, since_us: int, now_us: int
) -> tuple[ProcessUtilization, ...] | None:
    """Return each process's newest sample after that time; None: not supported.

    Samples with a time well after `now_us` were taken before the clock was set back.
    """
    try:
        samples = ask(what, pynvml.nvmlDeviceGetProcessUtilization, handle, since_us)
    except NvmlError as error:
        # NVML reports "no sample" as an error; nvidia-ml-py does so for an empty answer too.
        if error.code in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return ()
        if error.code in UNSUPPORTED:
            return None
        raise
    newest: dict[int, ProcessUtilization] = {}
    for sample in samples:
        # Drivers fill entries without a sample with zeros or with garbage.
        if not sample.pid or sample.smUtil > _PERCENT:
            continue
        if not since_us < sample.timeStamp <= now_us + CLOCK_SLACK_US:
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
            if error.code not in UNSUPPORTED:
                raise
    return []


def _grown(what: str, handle: Any, form: Callable[..., Any]) -> list[Any]:
    """Call again if more processes appeared meanwhile than there was room for."""
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
