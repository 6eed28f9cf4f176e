"""HAMi's flags that have no effect here: accepted, so that its manifests work, and answered.

Each gets a warning that says why it does nothing and what to write instead. Flags of vendors that
we do not handle yet will leave this table with the vendor.
"""

from __future__ import annotations

import msgspec

_NAMES = (
    "names of resources come from the device-config file, here as in HAMi; write them there "
    "(--device-config-file) and remove the flag"
)
_LOGS = "logs always go to stderr, one JSON object a line; remove the flag"
_DEFAULTS = "it stands in the device-config file as nvidia.{key}; write it there"

_VENDORS = (
    "amd",
    "ascend",
    "ascend310p",
    "biren",
    "cambricon-mlu",
    "dcu",
    "enflame",
    "iluvatar",
    "kunlun",
    "metax",
    "mthreads",
    "vastai",
)
_NVIDIA_NAMES = ("name", "mem", "mem-percentage", "cores", "priority")
_NVIDIA_DEFAULTS = {
    "default-mem": "defaultMemory",
    "default-cores": "defaultCores",
    "default-gpu": "defaultGPUNum",
    "overwrite-env": "overwriteEnv",
}
_KLOG_SWITCHES = (
    "add-dir-header",
    "alsologtostderr",
    "logtostderr",
    "one-output",
    "skip-headers",
    "skip-log-headers",
)
_KLOG = (
    *_KLOG_SWITCHES,
    "legacy-stderr-threshold-behavior",
    "log-backtrace-at",
    "log-dir",
    "log-file",
    "log-file-max-size",
    "stderrthreshold",
    "vmodule",
)
_NOT_YET = ("enable-ascend", "enable-iluvatar", "sgpu-topology-aware")

VERBOSITY = "v"
"""klog's level: the only one of its flags that does something."""

DEBUG_LEVEL = 4


class Ignored(msgspec.Struct, frozen=True):
    """A flag that does nothing, and why."""

    why: str
    is_switch: bool = False

    def warning(self, spelling: str) -> str:
        return f"{spelling} has no effect: {self.why}"


def find(key: str) -> Ignored | None:
    """Return what is known of a flag (with `-` throughout) that does nothing; None: unknown."""
    if key in _NOT_YET:
        return Ignored("cards of this vendor are not handled yet; remove the flag", is_switch=True)
    if key in _NVIDIA_DEFAULTS:
        why = _DEFAULTS.format(key=_NVIDIA_DEFAULTS[key])
        return Ignored(why, is_switch=key == "overwrite-env")
    if key in _KLOG:
        return Ignored(_LOGS, is_switch=key in _KLOG_SWITCHES or key.startswith("legacy"))
    if key in {f"resource-{name}" for name in _NVIDIA_NAMES}:
        return Ignored(_NAMES)
    if any(key.startswith(f"{vendor}-") for vendor in _VENDORS):
        return Ignored(_NAMES)
    return None
