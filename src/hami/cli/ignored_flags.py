"""HAMi's flags without effect here: accepted with a warning.

They are accepted so that HAMi's manifests work. Each warning gives the reason and the remedy. Flags
of vendors that are not handled yet leave this table with the vendor.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_NAMES = (
    "names of resources come from the device-config file, here as in HAMi; write them there "
    "(--device-config-file) and remove the flag"
)
_LOGS = "logs always go to stderr, one JSON object a line; remove the flag"
_DEFAULTS = "it is nvidia.{key} in the device-config file; write it there and remove the flag"

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
#: Of HAMi's device plugin, which also reads them from its configuration.
_PLUGIN_DEFAULTS = {
    "device-split-count": "deviceSplitCount",
    "device-memory-scaling": "deviceMemoryScaling",
    "device-cores-scaling": "deviceCoreScaling",
    "disable-core-limit": "disableCoreLimit",
}
_INJECTION = "how cards get into containers is detected; remove the flag, or set --driver-injection"
_PLUGIN_SWITCHES = ("pass-device-specs", "gdrcopy-enabled", "gds-enabled", "mofed-enabled")
_PLUGIN_INJECTION = (
    *_PLUGIN_SWITCHES,
    "device-list-strategy",
    "device-id-strategy",
    "cdi-annotation-prefix",
    "nvidia-cdi-hook-path",
    "device-discovery-strategy",
)
_FAILING = (
    "without a driver the agent keeps running, offers no card and logs the reason; remove the flag"
)
_NOT_YET = ("enable-ascend", "sgpu-topology-aware")

VERBOSITY = "v"
"""klog's level: the only one of its flags that does something."""

DEBUG_LEVEL = 4


class Ignored(msgspec.Struct, frozen=True):
    """A flag without effect, and the reason."""

    why: str
    is_switch: bool = False

    def warning(self, spelling: str) -> str:
        return f"{spelling} has no effect: {self.why}"


def find(key: str) -> Ignored | None:
    """Return an ignored flag by its name (with `-` throughout); None: unknown."""
    named = {f"resource-{name}" for name in _NVIDIA_NAMES}
    if key in named or any(key.startswith(f"{vendor}-") for vendor in _VENDORS):
        return Ignored(_NAMES)
    return _TABLE.get(key)


def _defaults(keys: Mapping[str, str], switch: str) -> dict[str, Ignored]:
    return {
        flag: Ignored(_DEFAULTS.format(key=key), is_switch=flag == switch)
        for flag, key in keys.items()
    }


_TABLE = {
    **{
        flag: Ignored("cards of this vendor are not handled yet; remove the flag", is_switch=True)
        for flag in _NOT_YET
    },
    **_defaults(_NVIDIA_DEFAULTS, "overwrite-env"),
    **_defaults(_PLUGIN_DEFAULTS, "disable-core-limit"),
    **{flag: Ignored(_INJECTION, flag in _PLUGIN_SWITCHES) for flag in _PLUGIN_INJECTION},
    "fail-on-init-error": Ignored(_FAILING, is_switch=True),
    **{flag: Ignored(_LOGS, flag in _KLOG_SWITCHES or flag.startswith("legacy")) for flag in _KLOG},
}
