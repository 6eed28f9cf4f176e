"""The NVML library: find, load, call with clear errors.

nvidia-ml-py asks the linker for `libnvidia-ml.so.1` and nothing else. In our container the driver
is elsewhere, below a driver root. But the linker uses a library that the process has loaded
already for any other request of the same soname: loading it once by its path is enough.

Only this module and those beside it import nvidia-ml-py; its exceptions end here.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from hami.serving.lifetime import MustRestartError

NAME = "libnvidia-ml.so.1"

#: Names of architectures in distributions' folders.
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_MOST_LINKS = 16


class LibraryNotFoundError(Exception):
    """The library is missing or does not load; the message names the folders."""


def folders(machine: str = "") -> tuple[str, ...]:
    """Return the folders below a driver root where drivers are installed, likely ones first.

    Those of other architectures come last: a root may have unexpected folder names, and the linker
    refuses a library that does not fit.
    """
    machine = machine or platform.machine()
    own = _TRIPLETS.get(machine, f"{machine}-linux-gnu")
    others = [triplet for triplet in _TRIPLETS.values() if triplet != own]
    return (
        f"usr/lib/{own}",
        "usr/lib64",
        "usr/lib",
        f"lib/{own}",
        "lib64",
        "lib",
        f"usr/lib/{own}/nvidia/current",
        "usr/local/nvidia/lib64",
        "home/kubernetes/bin/nvidia/lib64",
        "opt/nvidia/lib64",
        "",
        *(f"usr/lib/{triplet}" for triplet in others),
    )


def candidates(driver_root: str, machine: str = "") -> Iterator[Path]:
    """Yield the library's files below a root, with links resolved, each once."""
    seen: set[Path] = set()
    root = Path(driver_root)
    for folder in folders(machine):
        found = _inside(root, PurePosixPath(folder) / NAME)
        if found is not None and found not in seen:
            seen.add(found)
            yield found


def load(driver_root: str = "") -> str:
    """Load the library; return its path, or its name where the linker found it."""
    if not driver_root or driver_root == "/":
        return _load_by_name()
    refused: list[str] = []
    for path in candidates(driver_root):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            refused.append(f"{path} does not load ({error})")
        else:
            return str(path)
    if refused:
        raise LibraryNotFoundError("; ".join(refused))
    places = ", ".join(folder or "." for folder in folders())
    raise LibraryNotFoundError(f"there is no {NAME} below {driver_root} (tried {places})")


def _load_by_name() -> str:
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        raise LibraryNotFoundError(f"the linker does not find {NAME} ({error})") from error
    return NAME


def _inside(root: Path, path: PurePosixPath) -> Path | None:
    """Follow symbolic links as a process with that root would; None: there is no such file.

    Distributions have links with absolute targets (/etc/alternatives/...), which are broken or
    wrong from our own root.
    """
    pending = list(reversed(path.parts))
    at = root
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            at = at.parent if at != root else root
            continue
        step = at / part
        try:
            if not step.is_symlink():
                at = step
                continue
            target = PurePosixPath(step.readlink())
        except OSError:
            return None
        links += 1
        if links > _MOST_LINKS:
            return None
        if target.is_absolute():
            at = root
            target = target.relative_to("/")
        pending += reversed(target.parts)
    try:
        return at if at.is_file() else None
    except OSError:
        return None


_T = TypeVar("_T")

#: Seconds between two tries of a process that never opened the driver whether a new one could.
MISMATCH_PATIENCE = 30.0
#: Seconds that such a try has.
_TRY_WITHIN = 20.0
_TRY = "import sys; from hami.node.nvml import Nvml; Nvml.open(sys.argv[1]).close()"

_CHECK_NODE = "check `nvidia-smi` and the kernel log on the node"
_REMEDIES = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "load the NVIDIA driver on the node (`lsmod` lists nvidia) and let the agent see its "
        "device nodes"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated while loaded: reboot the node, or unload its old kernel modules"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "run the agent privileged, as the chart does",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the agent's container lacks the GPUs' device nodes: run it privileged, as the chart does"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "it has left the PCIe bus: drain the node and reboot it; if it recurs check seating, power "
        "and the card"
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: "stop what runs on it, then `nvidia-smi --gpu-reset -i` it",
    pynvml.NVML_ERROR_IRQ_ISSUE: "its interrupts do not arrive: check the kernel log, reboot",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "plug in the card's external power",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "its configuration memory is damaged: replace the card",
    pynvml.NVML_ERROR_NOT_FOUND: (
        "it is not among the GPUs that the driver has now: compare with `nvidia-smi -L`"
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: "nothing to do: this card or driver does not report it",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "a newer NVIDIA driver has it",
}
#: The card or the driver does not support the call: no fault of the card.
UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)


class NvmlError(Exception):
    """A call of NVML failed: for what, NVML's error, and what to do about it."""

    def __init__(self, what: str, text: str, remedy: str, *, code: int = 0) -> None:
        self.what = what
        self.text = text
        self.remedy = remedy
        #: NVML's error code; 0: the error is not NVML's.
        self.code = code
        super().__init__(f"{what}: {text}; {remedy}")

    @property
    def wants_new_library(self) -> bool:
        """Whether the loaded library is not that of the loaded driver."""
        return bool(self.code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    @property
    def is_unsupported(self) -> bool:
        """Whether the card or the driver has no such call: no fault of the card."""
        return self.code in UNSUPPORTED


class DriverReplacedError(MustRestartError):
    """The driver was replaced, and this process has the library of the old one loaded."""


def opens_in_new_process(driver_root: str) -> bool:
    """Return whether a new process, which has no library loaded yet, can open the driver."""
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", _TRY, driver_root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return child.wait(_TRY_WITHIN) == 0
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: the driver may keep it
        return False


class Replacement:
    """Finds out that the driver was replaced while this process ran.

    A loaded library cannot be exchanged, so only a new process can talk to the new driver. A
    process that never opened the driver ends only once a new one would find a library that fits:
    kubelet starts a process that ends again and again ever more slowly, and containers that were
    prepared before could not start meanwhile.
    """

    def __init__(
        self, clock: Callable[[], float], driver_root: str, opens: Callable[[str], bool]
    ) -> None:
        self._clock = clock
        self._driver_root = driver_root
        self._opens = opens
        self._opened = False
        self._tried_at: float | None = None

    def opened(self) -> None:
        """Take note that library and driver belong together."""
        self._opened, self._tried_at = True, None

    def check(self, error: NvmlError) -> None:
        """Raise DriverReplacedError if this error of the driver needs a new process.

        Takes seconds where that has to be tried: call it in a thread.
        """
        if not error.wants_new_library:
            self._tried_at = None
            return
        if self._opened or self._would_open():
            raise DriverReplacedError(
                f"{error}. The driver was replaced, and this process has the old driver's library "
                "loaded: it ends, and kubelet starts it again"
            ) from error

    def _would_open(self) -> bool:
        now = self._clock()
        if self._tried_at is None:
            self._tried_at = now
        if now - self._tried_at < MISMATCH_PATIENCE:
            return False
        self._tried_at = now
        return self._opens(self._driver_root)


def ask(what: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function of nvidia-ml-py; `what` names the object in errors."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise error_of(what, error.value) from None
    except pynvml.NVMLLibraryMismatchError:
        raise error_of(what, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None


def ask_optional(what: str, function: Callable[..., _T], *arguments: Any) -> _T | None:
    """Call as `ask` does; None: card or driver do not support the call."""
    try:
        return ask(what, function, *arguments)
    except NvmlError as error:
        if error.is_unsupported:
            return None
        raise


def error_of(what: str, code: int) -> NvmlError:
    text = str(pynvml.NVMLError(code))
    return NvmlError(what, f"NVML reports {text!r} ({code})", remedy_of(code), code=code)


def remedy_of(code: int) -> str:
    return _REMEDIES.get(code, _CHECK_NODE)
