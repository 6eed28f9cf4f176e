"""One call to NVML: what it gives, or an error that says what was asked, of what, and what to do.

The only modules that import nvidia-ml-py are this one and those beside it; its exceptions end here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

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
