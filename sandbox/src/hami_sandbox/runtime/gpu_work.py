"""gpu-work: allocate memory of a card, print CUDA's answer, hold it.

    gpu-work --memory 2Gi --seconds 30 --then-ask 8Gi

It does what a training job would. It finds the driver as every CUDA program does, so it sees what
its container sees. Without --seconds it holds the memory until it is stopped. --then-ask tries a
second allocation and prints the answer. Exit codes: 0 it had its memory, 2 the memory was refused
or the arguments are wrong, 3 another answer of CUDA, 4 no driver.

Runs by `python -I -S`: standard library only, and little of it, for demos start it by the dozen.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
REFUSED, FAILED, NO_DRIVER = 2, 3, 4

_USAGE = "usage: gpu-work [--memory 2Gi] [--then-ask 8Gi] [--seconds 30] [--device 0]"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_UNITS |= {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "": 1}


class UsageError(Exception):
    """Wrong arguments."""


class CudaError(Exception):
    """A call was not answered with success."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.code = code
        super().__init__(f"{call}: {name}")


class Cuda:
    """The driver API, as far as it is needed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def call(self, function: str, *arguments: object, label: str = "") -> None:
        """Call a function; an error names `label` instead of it."""
        code = getattr(self._library, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            text = (name.value or b"unknown error").decode()
            raise CudaError(label or function, code, text)

    def open(self, device: int) -> None:
        """Have a context on a card."""
        self.call("cuInit", 0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.call("cuCtxSetCurrent", context)

    def count(self) -> int:
        found = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def memory(self) -> tuple[int, int]:
        """Return free and total memory in bytes, as CUDA reports them to this process."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> bool:
        """Allocate, and print the answer; False: out of memory."""
        pointer = ctypes.c_uint64()
        label = f"cuMemAlloc {size}"
        try:
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size), label=label)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            say(str(error))
            return False
        say(f"{label}: CUDA_SUCCESS")
        return True


def quantity(text: str) -> int:
    """Read a size as Kubernetes writes it: 2Gi, 512Mi, 1.5Gi."""
    unit = next(unit for unit in _UNITS if text.endswith(unit))
    number = text.removesuffix(unit)
    whole, point, part = number.partition(".")
    digits = whole + part
    if not (digits.isascii() and digits.isdecimal() and whole and (part or not point)):
        raise UsageError(f"{text!r} is no size; write 2Gi or 512Mi, for example")
    return int(digits) * _UNITS[unit] // int(10 ** len(part))


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number of seconds; write 30, for example") from None


class Orders:
    """What the command line asks for."""

    def __init__(self, arguments: list[str]) -> None:
        values = _values(arguments)
        self.memory = quantity(values.pop("--memory", "0"))
        self.then_ask = quantity(values.pop("--then-ask", "0"))
        self.device = quantity(values.pop("--device", "0"))
        held = values.pop("--seconds", None)
        #: None: until stopped.
        self.seconds = None if held is None else seconds(held)
        if values:
            raise UsageError(f"{next(iter(values))!r} is not an option of gpu-work")


def _values(arguments: list[str]) -> dict[str, str]:
    """Return options with their values: `--name value` or `--name=value`."""
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            if not rest:
                raise UsageError(f"{name!r} has no value; write --memory 2Gi, for example")
            value = rest.pop(0)
        values[name] = value
    return values


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def work(cuda: Cuda, orders: Orders) -> int:
    """Take the memory, ask the question; return the exit code."""
    cuda.open(orders.device)
    free, total = cuda.memory()
    say(f"cards {cuda.count()}, total {total} bytes, free {free} bytes")
    if orders.memory and not cuda.take(orders.memory):
        return REFUSED
    if orders.then_ask:
        cuda.take(orders.then_ask)
    return 0


def main(arguments: list[str]) -> int:
    try:
        orders = Orders(arguments)
        code = work(Cuda(), orders)
    except UsageError as error:
        sys.stderr.write(f"gpu-work: {error}\n{_USAGE}\n")
        return REFUSED
    except OSError as error:
        say(f"no driver: {error}")
        return NO_DRIVER
    except CudaError as error:
        say(str(error))
        return FAILED
    if not code and orders.seconds is None:
        while True:
            signal.pause()
    if not code and orders.seconds:
        time.sleep(orders.seconds)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # asked to end: that is no failure
    sys.exit(main(sys.argv[1:]))
