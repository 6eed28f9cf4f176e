"""gpu-work: take memory of a card, say what CUDA answers, hold it. As a training job would.

    gpu-work --memory 2Gi --seconds 30 --then-ask 8Gi

It finds the driver as every CUDA program does, so it sees what its container sees. Without
--seconds it holds until it is stopped. What it asks for then is a question only: the answer is
printed. Exit codes: 0 it had its memory, 2 the memory was refused or the arguments are wrong, 3
another answer of CUDA, 4 no driver. Runs by `python -I -S`: standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import signal
import sys
import time

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
REFUSED, FAILED, NO_DRIVER = 2, 3, 4

_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_UNITS |= {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)", re.ASCII)


class CudaError(Exception):
    """A call was not answered with success."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.code = code
        super().__init__(f"{call}: {name}")


class Cuda:
    """The driver API, as far as it is needed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def call(self, function: str, *arguments: object, said: str = "") -> None:
        """Call a function; `said` is what an error names instead of it."""
        code = getattr(self._library, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            text = (name.value or b"unknown error").decode()
            raise CudaError(said or function, code, text)

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
        """Return what is free and what there is, as this process is told."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, size: int) -> bool:
        """Allocate, and say what was answered; False: out of memory."""
        pointer = ctypes.c_uint64()
        said = f"cuMemAlloc {size}"
        try:
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size), said=said)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            say(str(error))
            return False
        say(f"{said}: CUDA_SUCCESS")
        return True


def quantity(text: str) -> int:
    """Read a size as Kubernetes writes it: 2Gi, 512Mi, 1.5Gi."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 2Gi or 512Mi, for example")
    return int(float(found[1]) * _UNITS[found[2]])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def work(cuda: Cuda, memory: int, then_ask: int, device: int) -> int:
    """Take the memory, ask the question; return the exit code."""
    cuda.open(device)
    free, total = cuda.memory()
    say(f"cards {cuda.count()}, total {total} bytes, free {free} bytes")
    if memory and not cuda.take(memory):
        return REFUSED
    if then_ask:
        cuda.take(then_ask)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-work", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--memory", type=quantity, default=0, help="how much to take, as in 2Gi")
    parser.add_argument("--then-ask", type=quantity, default=0, help="how much to ask for after it")
    parser.add_argument("--seconds", type=float, help="how long to hold it; else until stopped")
    parser.add_argument("--device", type=int, default=0, help="which of the visible cards")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # asked to end: that is no failure
    try:
        code = work(Cuda(), asked.memory, asked.then_ask, asked.device)
    except OSError as error:
        say(f"no driver: {error}")
        return NO_DRIVER
    except CudaError as error:
        say(str(error))
        return FAILED
    if code:
        return code
    if asked.seconds is None:
        while True:
            signal.pause()
    time.sleep(asked.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
