"""The NVML library: find, load, call with good errors.

Finds the driver's NVML library and loads it, so that nvidia-ml-py finds it too.
nvidia-ml-py asks the linker for `libnvidia-ml.so.1` and nothing else. In our container the driver
lies elsewhere, below a driver root. But the linker takes a library that the process has already
for any other of the same soname: loading it once by its path is all that is needed.

One call to NVML: what it gives, or an error that says what was asked, of what, and what to do.
The only modules that import nvidia-ml-py are this one and those beside it; its exceptions end here.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

NAME = "libnvidia-ml.so.1"

#: What distributions call the architectures in their folders' names.
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_MOST_LINKS = 16


class LibraryNotFoundError(Exception):
    """The library is not there or does not load; the message says where it was looked for."""


def folders(machine: str = "") -> tuple[str, ...]:
    """Name the folders below a driver root that drivers are installed in, likely ones first.

    Those of other architectures come last: a root may name its folders otherwise than we expect,
    and a library that does not fit is refused by the linker.
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
    """Give the library's files below a root, as they really lie, each once."""
    seen: set[Path] = set()
    root = Path(driver_root)
    for folder in folders(machine):
        found = _inside(root, PurePosixPath(folder) / NAME)
        if found is not None and found not in seen:
            seen.add(found)
            yield found


def load(driver_root: str = "") -> str:
    """Load the library; give its path, or its name where the linker found it."""
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
    raise LibraryNotFoundError(f"there is no {NAME} below {driver_root} (looked in {places})")


def _load_by_name() -> str:
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        raise LibraryNotFoundError(f"the linker does not find {NAME} ({error})") from error
    return NAME


def _inside(root: Path, path: PurePosixPath) -> Path | None:
    """Follow symbolic links as a process with that root would; None: there is no such file.

    Distributions have links with absolute targets (/etc/alternatives/...), which seen from our own
    root lead nowhere, or to something else.
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

_CHECK_NODE = "look at `nvidia-smi` and the kernel log on the node"
_REMEDIES = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "load the NVIDIA driver on the node (`lsmod` lists nvidia) and let the agent see its "
        "device nodes"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated under way: reboot the node, or unload its old kernel modules"
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
    pynvml.NVML_ERROR_IRQ_ISSUE: "its interrupts do not arrive: look at the kernel log, reboot",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "plug in the card's external power",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "its configuration memory is damaged: replace the card",
    pynvml.NVML_ERROR_NOT_FOUND: (
        "it is not among the GPUs that the driver has now: compare with `nvidia-smi -L`"
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: "nothing to do: this card or driver does not tell it",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "a newer NVIDIA driver has it",
}
#: The card or the driver is too old, too new or too small for the question: no fault of a card.
NOT_TOLD = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)


class NvmlError(Exception):
    """NVML refused something: what, NVML's words, and what to do about it."""

    def __init__(self, what: str, text: str, remedy: str, *, code: int = 0) -> None:
        self.what = what
        self.text = text
        self.remedy = remedy
        #: NVML's number; 0: it was not NVML that refused.
        self.code = code
        super().__init__(f"{what}: {text}; {remedy}")


def ask(what: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function of nvidia-ml-py on behalf of `what`."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise error_of(what, error.value) from None
    except pynvml.NVMLLibraryMismatchError:
        raise error_of(what, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None


def told(what: str, function: Callable[..., _T], *arguments: Any) -> _T | None:
    """Call as `ask` does; None where card or driver do not know the question."""
    try:
        return ask(what, function, *arguments)
    except NvmlError as error:
        if error.code in NOT_TOLD:
            return None
        raise


def error_of(what: str, code: int) -> NvmlError:
    text = str(pynvml.NVMLError(code))
    return NvmlError(what, f"NVML says {text!r} ({code})", remedy_of(code), code=code)


def remedy_of(code: int) -> str:
    return _REMEDIES.get(code, _CHECK_NODE)
