"""The user's device-config.yaml, applied to the built-in vendors.

Scheduler and node agent share the file, and its keys are HAMi's. NVIDIA is always served; another
vendor is where its section names the resource of its cards, as in HAMi. An absent key or null
leaves the row's value, an empty resource name switches that resource off. Whatever is wrong, an
unknown key too, is a `ConfigError`: a half-understood configuration hands out the wrong card.
Sections of vendors that no row serves yet are checked all the same.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Literal, cast, get_args

import msgspec

from hami.vendors import config_file, config_sections, table
from hami.vendors.config_file import Section
from hami.wire import errors as wire_errors

ConfigError = config_file.ConfigError

CorePolicy = Literal["default", "force", "disable"]

_START = "write at least\nnvidia:\n  resourceCountName: nvidia.com/gpu"

#: Key in the file by field of `Vendor.resources`, where the row names no other.
_RESOURCE_KEYS: Mapping[str, str] = {
    "count": "resourceCountName",
    "memory": "resourceMemoryName",
    "memory_percentage": "resourceMemoryPercentageName",
    "cores": "resourceCoreName",
    "priority": "resourcePriorityName",
}

_MIG_PROFILE = re.compile(r"[1-9][0-9]?g\.\S+")


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

    #: The rows that are served, with the file's values, in table order.
    vendors: tuple[table.Vendor, ...]
    nvidia: NvidiaSettings
    #: Sections with values whose vendors no row serves yet.
    unserved: tuple[str, ...] = ()
    #: For the log at start-up.
    warnings: tuple[str, ...] = ()

    def log_to(self, log: logging.Logger) -> None:
        """Write what a reader of the file should know, at the start of a program."""
        for warning in self.warnings:
            log.warning("device configuration", extra={"warning": warning})
        if self.unserved:
            log.info(
                "device configuration: this version does not serve the vendors of these sections",
                extra={"sections": ", ".join(self.unserved)},
            )


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
    return DeviceConfig(vendors=table.built_in(), nvidia=NvidiaSettings())


def parse(text: str, *, source: str, rows: tuple[table.Vendor, ...] | None = None) -> DeviceConfig:
    """Check the text of a device-config.yaml; `source` names it in errors and warnings."""
    data = config_file.load(text, source=source)
    if data is None:
        raise ConfigError(source=source, place="", rule="the file is empty", remedy=_START)
    if not isinstance(data, dict):
        raise ConfigError(
            source=source, place="", value=data, rule="is not a mapping of sections", remedy=_START
        )
    rows = table.built_in() if rows is None else rows
    known = tuple(dict.fromkeys([*config_sections.NAMES, *(row.section for row in rows)]))
    config_sections.refuse_unknown(data, known=known, source=source)
    nvidia = Section(data.get("nvidia"), source=source, path="nvidia")
    settings, warnings = _settings(nvidia)
    others = {
        name: config_sections.read(
            name,
            data[name],
            source=source,
            resources=[
                key for row in rows if row.section == name for key in row.config_keys.values()
            ],
        )
        for name in known
        if name in data and name != "nvidia"
    }
    served = list(_served(rows, nvidia, others))
    nvidia.refuse_unknown()
    ours = {row.section for row in rows}
    unserved = {
        name: claims
        for name, parts in others.items()
        if name not in ours and (claims := list(_claims_unserved(name, parts)))
    }
    if nvidia.is_silent() and len(served) == 1 and not unserved:
        raise ConfigError(source=source, place="", rule="no section holds a value", remedy=_START)
    claims = [claim for vendor, given in served for claim in _claims(vendor, given)]
    claims += [claim for found in unserved.values() for claim in found]
    _refuse_doubles(claims, source)
    return DeviceConfig(
        vendors=tuple(vendor for vendor, _ in served),
        nvidia=settings,
        unserved=tuple(unserved),
        warnings=warnings,
    )


def _served(
    rows: tuple[table.Vendor, ...],
    nvidia: Section,
    others: Mapping[str, tuple[Section, ...]],
) -> Iterable[tuple[table.Vendor, Section]]:
    """Return each vendor that is served and its part of the file, in table order."""
    listed: set[str] = set()
    for row in rows:
        if row.section == "nvidia":
            yield _overridden(row, nvidia), nvidia
        elif row.section not in config_sections.LISTS:
            for section in others.get(row.section, ()):
                if section.text(_keys(row)["count"], ""):
                    yield _overridden(row, section), section
        elif row.section not in listed:
            listed.add(row.section)
            for entry in others.get(row.section, ()):
                if entry.text(_keys(row)["count"], ""):
                    yield _overridden(_row_of(entry, row, rows), entry), entry


def _row_of(entry: Section, like: table.Vendor, rows: tuple[table.Vendor, ...]) -> table.Vendor:
    """Return the row of an entry's word; a word without one has a row like the section's first."""
    word = entry.text(config_sections.WORD, "")
    for row in rows:
        if row.name == word and row.section == like.section:
            return row
    made = msgspec.convert(_renamed(msgspec.to_builtins(like), like.name, word), table.Vendor)
    for row in rows:
        shared = {row.annotations.register, row.annotations.allocated} - {""}
        if row.name.lower() == word.lower() or shared & {
            made.annotations.register,
            made.annotations.allocated,
        }:
            raise entry.error(
                config_sections.WORD,
                f"is taken: it would have the name or the annotations of {row.name}",
                "write another word",
            )
    return made


def _renamed(part: object, old: str, new: str) -> object:
    """Return a row's data with another word wherever the old one is."""
    if isinstance(part, dict):
        return {key: _renamed(value, old, new) for key, value in part.items()}
    if isinstance(part, list):
        return [_renamed(value, old, new) for value in part]
    return part.replace(old, new) if isinstance(part, str) else part


def _keys(vendor: table.Vendor) -> Mapping[str, str]:
    """Return the keys of the file by the fields of the row that they override."""
    if vendor.section == "nvidia":
        return _RESOURCE_KEYS
    if vendor.config_keys:
        return vendor.config_keys
    known = config_sections.resource_keys(vendor.section)
    return {field: key for field, key in _RESOURCE_KEYS.items() if key in known}


def _settings(nvidia: Section) -> tuple[NvidiaSettings, tuple[str, ...]]:
    base = NvidiaSettings()
    allowances = [_allowance(entry) for entry in nvidia.sections("migProfileAllowlist")]
    geometries = [_geometry(entry) for entry in nvidia.sections("knownMigGeometries")]
    warnings: tuple[str, ...] = ()
    if allowances and geometries:
        place = nvidia.place("knownMigGeometries")
        warnings = (f"{place}: has no effect beside migProfileAllowlist; remove it",)
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
        runtime_class_name=nvidia.object_name("runtimeClassName"),
        mig_profile_allowlist=tuple(allowances or geometries),
    )
    return settings, warnings


def _allowance(entry: Section) -> MigAllowance:
    allowance = MigAllowance(models=entry.texts("models"), profiles=entry.texts("profiles"))
    entry.refuse_unknown()
    for profile in allowance.profiles:
        _check_profile(entry, "profiles", profile)
    return allowance


def _geometry(entry: Section) -> MigAllowance:
    """Read an entry as HAMi had them until 2.9: ways to cut a card; of these the profiles count."""
    models = entry.texts("models")
    profiles: dict[str, None] = {}
    for part in entry.sections("allowedGeometries", nested=True):
        profile = part.text("name", "")
        _check_profile(part, "name", profile)
        profiles[profile] = None
        for key in ("core", "memory", "count"):
            part.whole(key, 0)
        part.refuse_unknown()
    entry.refuse_unknown()
    if not profiles:
        raise entry.error(
            "allowedGeometries",
            "must be a list of lists of profiles, at least one",
            "write them, or remove the entry",
        )
    return MigAllowance(models=models, profiles=tuple(profiles))


def _check_profile(entry: Section, key: str, profile: str) -> None:
    if not _MIG_PROFILE.fullmatch(profile):
        raise entry.error(
            key,
            f"holds {wire_errors.shorten(profile)}, which is not a MIG profile",
            "write profiles like 1g.10gb, as `nvidia-smi mig -lgip` lists them",
        )


def _overridden(vendor: table.Vendor, given: Section) -> table.Vendor:
    keys = _keys(vendor)
    resources = msgspec.structs.replace(
        vendor.resources,
        **{
            field: given.resource(key, getattr(vendor.resources, field))
            for field, key in keys.items()
        },
    )
    if not resources.count:
        raise given.error(
            keys["count"],
            "must not be empty: no pod could ask for a card",
            f"write {vendor.resources.count}, or remove the key",
        )
    changed = msgspec.structs.replace(
        vendor,
        resources=resources,
        # 0 counts as 1, as in HAMi.
        memory_factor=given.whole("memoryFactor", vendor.memory_factor) or 1,
    )
    if vendor.section != "nvidia":
        return changed
    return msgspec.structs.replace(
        changed,
        default_memory=given.whole("defaultMemory", vendor.default_memory),
        default_cores=given.whole("defaultCores", vendor.default_cores, high=100),
        default_count=given.whole("defaultGPUNum", vendor.default_count),
    )


#: A resource and the key that names it.
Claim = tuple[str, str]


def _claims(vendor: table.Vendor, given: Section) -> Iterable[Claim]:
    for field, key in _keys(vendor).items():
        yield getattr(vendor.resources, field), given.place(key)


def _claims_unserved(name: str, parts: tuple[Section, ...]) -> Iterable[Claim]:
    for part in parts:
        for key in config_sections.resource_keys(name):
            if resource := part.text(key, ""):
                yield resource, part.place(key)


def _refuse_doubles(claims: Iterable[Claim], source: str) -> None:
    places: dict[str, list[str]] = {}
    for name, place in claims:
        places.setdefault(name, []).append(place)
    for name, found in places.items():
        if name and len(found) > 1:
            raise ConfigError(
                source=source,
                place=" and ".join(found),
                value=name,
                rule="names more than one resource",
                remedy="give each resource a name of its own; a key that is absent has its default",
            )
