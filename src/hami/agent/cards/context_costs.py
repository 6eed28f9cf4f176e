"""Cost of a CUDA context by product and driver, learned from the driver.

libvgpu reserves the cost of a context before it is created. A container's first process does not
know it, guesses 640 MiB, and takes all the room that there is where the guess does not fit. So the
agent writes into the policy file what it has learned: the least memory that the driver counts for
any process on such a card. Each of them has a context, so no context costs more.

Nothing that a tenant writes is read, and the driver's figure cannot be less than a context takes.
A figure counts only if it is the same twice in a row: a context may have been half created. One
above libvgpu's own guess is not learned, and a container whose limit is below that guess is given
none. So a tenant who lets only large processes run makes no other container worse off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hami.node import files
from hami.node.nvml import NvmlError
from hami.node.nvml_cards import Card
from hami.node.nvml_processes import GpuProcess
from hami.wire import codec, errors

_log = logging.getLogger(__name__)

_MIB = 1 << 20
#: No card's context is smaller; helpers of the driver (MPS) are.
LEAST = 100 * _MIB
#: libvgpu's guess, USUAL_CONTEXT in native/libvgpu/contexts.c.
MOST = 640 * _MIB
#: Products times drivers that a node may have had.
_KEPT = 64


class Driver(Protocol):
    """The calls of `hami.node.nvml.Nvml` that are needed here."""

    def driver_version(self) -> str: ...
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]: ...


class ContextCosts:
    """The learned costs, kept in a file that survives a reboot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._learned = _read(path)
        #: By UUID of a card, the product and driver to look up.
        self._keys: dict[str, str] = {}
        #: By UUID of a card, each process's bytes when it was last asked.
        self._before: dict[str, Mapping[int, int | None]] = {}

    def cost(self, uuid: str, limit: int) -> int:
        """Return the bytes to write into a policy file for a card; 0: not known."""
        return self._learned.get(self._keys.get(uuid, ""), 0) if limit >= MOST else 0

    def observe(self, driver: Driver, cards: Sequence[Card]) -> None:
        """Ask the driver for the processes on whole cards, and learn from them."""
        try:
            version = driver.driver_version()
        except NvmlError:
            return  # listing the cards reports it
        learned = dict(self._learned)
        for card in cards:
            if card.mig_enabled:
                continue
            key = self._keys[card.uuid] = f"{card.name}|{version}"
            try:
                now = {process.pid: process.memory for process in driver.processes(card.uuid)}
            except NvmlError:
                continue
            before = self._before.get(card.uuid, {})
            self._before[card.uuid] = now
            steady = (memory for pid, memory in now.items() if memory == before.get(pid, -1))
            for memory in steady:
                if memory is not None and LEAST <= memory <= learned.get(key, MOST):
                    learned[key] = memory
        if learned != self._learned:
            self._learned = dict(list(learned.items())[-_KEPT:])
            self._write()

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(self._path, codec.encode(self._learned))
        except OSError as error:
            _log.warning(
                "cannot keep what a context costs; it is learned again after a restart",
                extra={"path": str(self._path), "error": str(error)},
            )


def _read(path: Path) -> dict[str, int]:
    try:
        found = codec.decode(path.read_bytes(), dict[str, int], what=str(path))
    except (OSError, errors.WireError):
        return {}  # learned again
    return {key: cost for key, cost in found.items() if LEAST <= cost <= MOST}
