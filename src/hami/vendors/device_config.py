"""The user's device-config.yaml, applied to the built-in vendors.

Scheduler and node agent share the file, and its keys are HAMi's. An absent key or null leaves the
row's value, an empty resource name switches that resource off. Sections of vendors that are not
supported yet are kept as they are. An unknown key is ignored, as HAMi does, but never in silence:
it becomes a warning. Everything else that is wrong is a `ConfigError`, because a half-understood
configuration hands out the wrong GPU.
"""

from __future__ import annotations

import os
import re
from typing import Literal, cast, get_args

import msgspec

from hami.vendors import config_file, table
from hami.wire import errors as wire_errors
from hami.wire import quantity

ConfigError = config_file.ConfigError

CorePolicy = Literal["default", "force", "disable"]

#: Sections that HAMi knows. Ours are those of the vendor table; the rest is kept for later.
KNOWN_SECTIONS = (
    "nvidia",
    "cambricon",
    "hygon",
    "metax",
    "enflame",
    "mthreads",
    "kunlun",
    "awsneuron",
    "amd",
    "vastai",
    "biren",
    "iluvatars",
    "vnpus",
)

_START = "write at least\nnvidia:\n  resourceCountName: nvidia.com/gpu"

#: Key in the file by field of the vendor's row.
_RESOURCE_KEYS = {
    "count": "resourceCountName",
    "memory": "resourceMemoryName",
    "memory_percentage": "resourceMemoryPercentageName",
    "cores": "resourceCoreName",
    "priority": "resourcePriorityName",
}

_MIG_PROFILE = re.compile(r"[1-9][0-9]?g\.\S+")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class MigAllowance(msgspec.Struct, frozen=True):
    """The MIG profiles into which cards of some models may be cut."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


class NvidiaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The NVIDIA section, without the values that belong to the vendor's row."""

    #: Hide all GPUs from containers that ask for none.
    overwrite_env: bool = False
    #: Into how many shares a card may be cut.
    device_split_count: int = 10
    #: Memory a card is registered with, as a multiple of what it has; above 1 overcommits.
    device_memory_scaling: float = 1.0
    #: Compute a card is registered with, as a multiple of 100 percent.
    device_core_scaling: float = 1.0
    #: MiB a card is registered with where the driver does not know; 0: ask the driver.
    pre_configured_device_memory: int = 0
    #: What the limiter in the container prints: 0 errors only, up to 4 everything.
    lib_cuda_log_level: int = 1
    #: Tell kubelet the NUMA node of each card.
    enable_numa_topology: bool = False
    #: Hand out compute shares without enforcing them.
    disable_core_limit: bool = False
    #: Whether compute limits hold always, never, or (default) only while the card is shared.
    gpu_core_policy: CorePolicy = "default"
    #: RuntimeClass for pods with a GPU that name none; empty: leave them as they are.
    runtime_class_name: str = ""
    #: Empty: no card is cut by MIG.
    mig_profile_allowlist: tuple[MigAllowance, ...] = ()


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A checked device-config.yaml."""

    #: The built-in rows with the file's values, in table order.
    vendors: tuple[table.Vendor, ...]
    nvidia: NvidiaSettings
    #: Sections that are not read yet, as they are in the file.
    other_sections: dict[str, object]
    #: For the log at start-up: what was ignored, and what was probably meant.
    warnings: tuple[str, ...] = ()


def load(path: str | os.PathLike[str]) -> DeviceConfig:
    """Read and check the file at `path`."""
    text = config_file.read(
        path, remedy="check the path, the mount of the ConfigMap and the file's permissions"
    )
    return parse(text, source=os.fspath(path))


def load_or_built_in(path: str) -> DeviceConfig:
    """Read the file; an empty path means the built-in vendors as they are."""
    if path:
        return load(path)
    return DeviceConfig(vendors=table.built_in(), nvidia=NvidiaSettings(), other_sections={})


def parse(text: str, *, source: str) -> DeviceConfig:
    """Check the text of a device-config.yaml; `source` names it in errors and warnings."""
    data = config_file.load(text, source=source)
    if data is None:
        raise ConfigError(source=source, place="", rule="the file is empty", remedy=_START)
    if not isinstance(data, dict):
        raise ConfigError(
            source=source, place="", value=data, rule="is not a mapping of sections", remedy=_START
        )
    warnings = _unknown_sections(data, source)
    nvidia = config_file.Section(data.get("nvidia"), source=source, path="nvidia")
    settings, more_warnings = _settings(nvidia)
    vendors = tuple(
        _overridden(vendor, nvidia) if vendor.section == "nvidia" else vendor
        for vendor in table.built_in()
    )
    _refuse_doubles(vendors, source)
    warnings += nvidia.unknown() + more_warnings
    others = {name: value for name, value in data.items() if name != "nvidia"}
    if nvidia.is_silent() and not any(
        _says_something(value) for name, value in others.items() if name in KNOWN_SECTIONS
    ):
        raise ConfigError(
            source=source,
            place="",
            rule=" ".join(["no section that we know holds a value", *_in_brackets(warnings)]),
            remedy=_START,
        )
    return DeviceConfig(
        vendors=vendors, nvidia=settings, other_sections=others, warnings=tuple(warnings)
    )


def _settings(nvidia: config_file.Section) -> tuple[NvidiaSettings, list[str]]:
    base = NvidiaSettings()
    allowances = nvidia.sections("migProfileAllowlist")
    settings = NvidiaSettings(
        overwrite_env=nvidia.switch("overwriteEnv", default=base.overwrite_env),
        device_split_count=nvidia.whole("deviceSplitCount", base.device_split_count, low=1),
        device_memory_scaling=nvidia.factor("deviceMemoryScaling", base.device_memory_scaling),
        device_core_scaling=nvidia.factor("deviceCoreScaling", base.device_core_scaling),
        pre_configured_device_memory=nvidia.whole(
            "preConfiguredDeviceMemory", base.pre_configured_device_memory
        ),
        lib_cuda_log_level=nvidia.whole("libCudaLogLevel", base.lib_cuda_log_level, high=4),
        enable_numa_topology=nvidia.switch("enableNumaTopology", default=base.enable_numa_topology),
        disable_core_limit=nvidia.switch("disableCoreLimit", default=base.disable_core_limit),
        gpu_core_policy=cast(
            "CorePolicy",
            nvidia.word("gpuCorePolicy", base.gpu_core_policy, among=get_args(CorePolicy)),
        ),
        runtime_class_name=_object_name(nvidia, "runtimeClassName"),
        mig_profile_allowlist=tuple(_allowance(entry) for entry in allowances),
    )
    return settings, [warning for entry in allowances for warning in entry.unknown()]


def _allowance(entry: config_file.Section) -> MigAllowance:
    allowance = MigAllowance(models=entry.texts("models"), profiles=entry.texts("profiles"))
    for profile in allowance.profiles:
        if not _MIG_PROFILE.fullmatch(profile):
            raise entry.error(
                "profiles",
                f"holds {wire_errors.shorten(profile)}, which is not a MIG profile",
                "write profiles like 1g.10gb, as `nvidia-smi mig -lgip` lists them",
            )
    return allowance


def _object_name(nvidia: config_file.Section, key: str) -> str:
    name = nvidia.text(key, "")
    if name and not _OBJECT_NAME.fullmatch(name):
        raise nvidia.error(
            key,
            "is not a name of a Kubernetes object",
            "write small letters, digits, - and . only, or leave it empty",
        )
    return name


def _overridden(vendor: table.Vendor, given: config_file.Section) -> table.Vendor:
    names = {
        field: _resource(given, key, getattr(vendor.resources, field))
        for field, key in _RESOURCE_KEYS.items()
    }
    if not names["count"]:
        raise given.error(
            _RESOURCE_KEYS["count"],
            "must not be empty: no pod could ask for a card",
            f"write {vendor.resources.count}, or remove the key",
        )
    return msgspec.structs.replace(
        vendor,
        resources=table.ResourceNames(**names),
        # 0 counts as 1, as in HAMi.
        memory_factor=given.whole("memoryFactor", vendor.memory_factor) or 1,
        default_memory=given.whole("defaultMemory", vendor.default_memory),
        default_cores=given.whole("defaultCores", vendor.default_cores, high=100),
        default_count=given.whole("defaultGPUNum", vendor.default_count),
    )


def _resource(given: config_file.Section, key: str, default: str) -> str:
    name = given.text(key, default)
    if not name:
        return ""
    try:
        return quantity.check_resource_name(name, what=key)
    except wire_errors.WireError as error:
        raise given.error(
            key, error.rule, error.remedy or f"write a name like {default}"
        ) from error


def _refuse_doubles(vendors: tuple[table.Vendor, ...], source: str) -> None:
    places: dict[str, list[str]] = {}
    for vendor in vendors:
        for field, key in _RESOURCE_KEYS.items():
            places.setdefault(getattr(vendor.resources, field), []).append(
                f"{vendor.section}.{key}"
            )
    for name, keys in places.items():
        if name and len(keys) > 1:
            raise ConfigError(
                source=source,
                place=" and ".join(keys),
                value=name,
                rule="names more than one resource",
                remedy="give each resource a name of its own; a key that is absent has its default",
            )


def _unknown_sections(data: dict[object, object], source: str) -> list[str]:
    for name in data:
        if not isinstance(name, str):
            raise ConfigError(
                source=source,
                place="",
                value=name,
                rule="is not a section's name",
                remedy=f"sections are {', '.join(KNOWN_SECTIONS)}",
            )
    return [
        f"{source}: {name}: no such section, kept unread{config_file.nearest(name, KNOWN_SECTIONS)}"
        for name in data
        if name not in KNOWN_SECTIONS
    ]


def _in_brackets(warnings: list[str]) -> list[str]:
    """Return the first few: one misspelling is the usual case, a wrong file the other."""
    return [f"({warning})" for warning in warnings[:3]]


def _says_something(value: object) -> bool:
    if isinstance(value, dict):
        return any(_says_something(item) for item in value.values())
    if isinstance(value, list):
        return any(_says_something(item) for item in value)
    return value not in (None, "")
