"""Ways to a card, each as one call.

None of them may succeed on a card that was not granted. Those that need a context make none of
their own: without one the driver itself refuses, which is a closed door too.
"""

from __future__ import annotations

import ctypes

from tests.gpu.driver import (
    MANAGED,
    MIB,
    ON_DEVICE,
    PINNED,
    Cuda,
    Location,
    MulticastProperties,
)

SIZE = 64 * MIB
#: Whose refusal must be libvgpu's own: they need no context.
OURS = (
    *("primary_context", "context_v2", "context_v4", "green_context"),
    *("pool", "managed_pool", "default_pool", "pool_of_location", "vmm"),
)
NAMES = (*OURS, "multicast", "linear", "managed", "async_", "graph")


class Doors:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.here = Location(ON_DEVICE, cuda.device.value)

    def primary_context(self) -> None:
        self.cuda.handle("cuDevicePrimaryCtxRetain", self.cuda.device)

    def context_v2(self) -> None:
        self.cuda.handle("cuCtxCreate_v2", 0, self.cuda.device)

    def context_v4(self) -> None:
        self.cuda.handle("cuCtxCreate_v4", None, 0, self.cuda.device)

    def green_context(self) -> None:
        self.cuda.green()

    def pool(self) -> None:
        self.cuda.alloc_from(self.cuda.make_pool(), SIZE)

    def managed_pool(self) -> None:
        self.cuda.alloc_from(self.cuda.make_pool(MANAGED), SIZE)

    def default_pool(self) -> None:
        self.cuda.alloc_from(self.cuda.default_pool(), SIZE)

    def pool_of_location(self) -> None:
        place = ctypes.byref(self.here)
        self.cuda.alloc_from(self.cuda.handle("cuMemGetMemPool", place, PINNED), SIZE)

    def vmm(self) -> None:
        self.cuda.create(SIZE)

    def multicast(self) -> None:
        properties = MulticastProperties(devices=1, size=SIZE, handle_types=1)
        made = self.cuda.handle("cuMulticastCreate", ctypes.byref(properties))
        self.cuda.call("cuMulticastAddDevice", made, self.cuda.device)

    def linear(self) -> None:
        self.cuda.alloc(SIZE)

    def managed(self) -> None:
        self.cuda.prefetch(self.cuda.managed(SIZE), SIZE)

    def async_(self) -> None:
        self.cuda.alloc_async(SIZE)

    def graph(self) -> None:
        self.cuda.instantiate(self.cuda.graph([SIZE], freed=False)[0])
