"""The counting rules as a Python model: one process in file and on card.

The rules are those measured on a real card. Linear memory is the number of 2 MiB pages under live
allocations, so the model needs the addresses; everything else follows from the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.native.container import CONTEXT
from tests.native.probing import MIB

PAGE = 2 * MIB


def pages(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass
class Handle:
    """Physical memory of cuMemCreate: there until neither handles nor mappings are left."""

    size: int
    handles: int = 1
    mappings: int = 0


@dataclass
class Process:
    linear: dict[str, tuple[int, int]] = field(default_factory=dict)
    managed: dict[str, int] = field(default_factory=dict)
    physical: dict[str, Handle] = field(default_factory=dict)
    arrays: dict[str, int] = field(default_factory=dict)
    #: What the driver says that the pools have.
    pool: int = 0
    contexts: int = 1

    @property
    def linear_bytes(self) -> int:
        touched: set[int] = set()
        for address, size in self.linear.values():
            touched.update(range(address // PAGE, (address + size - 1) // PAGE + 1))
        return len(touched) * PAGE

    @property
    def managed_bytes(self) -> int:
        return sum(map(pages, self.managed.values()))

    @property
    def vmm_bytes(self) -> int:
        living = (memory for memory in self.physical.values() if memory.handles or memory.mappings)
        return sum(pages(memory.size) for memory in living)

    @property
    def overhead(self) -> int:
        return self.contexts * CONTEXT

    @property
    def total(self) -> int:
        parts = (self.overhead, self.linear_bytes, self.managed_bytes, self.vmm_bytes, self.pool)
        return sum(parts) + sum(self.arrays.values())
