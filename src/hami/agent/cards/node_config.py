"""HAMi's config.json of one node: read, applied, watched.

The file has one entry per node, found by the node's name; keys ignore case, as in HAMi. Unlike
there, a value that is written counts whatever it is: false, zero and empty too. Only an absent key
or null keeps the setting of all nodes. An error in our own entry is a `ConfigError`, because a node
that silently runs with other limits than were written hands out the wrong memory; an error in
another node's entry affects that node only.

No change is applied while we run: when our entry changes, the process ends in order and kubelet
restarts it; changes for other nodes end no process here. While the entry holds a mistake no card is
offered: a misspelt filter would offer cards that must not be offered. Containers that were prepared
before start nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Literal, NoReturn, cast, get_args

import msgspec

from hami.agent.cards import node_config_file
from hami.agent.settings import Settings
from hami.vendors import config_file
from hami.vendors.config_file import ConfigError
from hami.vendors.device_config import NvidiaSettings

MigStrategy = Literal["none", "single", "mixed"]
OperatingMode = Literal["hami-core", "mps"]

KEYS = (
    "name",
    "operatingmode",
    "devicesplitcount",
    "devicememoryscaling",
    "devicecorescaling",
    "preconfigureddevicememory",
    "libcudaloglevel",
    "enablenumatopology",
    "migstrategy",
    "filterdevices",
    "enablegetpreferredallocation",
)
_FILTER_KEYS = ("uuid", "index")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of our node."""

    #: The settings of all nodes with this node's in their place. A split count of 0 offers nothing.
    nvidia: NvidiaSettings = NvidiaSettings()
    #: The mode that cards are registered with; `mps` is a label for pods to choose by, no more.
    operating_mode: OperatingMode = "hami-core"
    #: How existing MIG devices are offered.
    mig_strategy: MigStrategy = "none"
    #: Cards that are not offered, by UUID and by the driver's index.
    filter_uuids: frozenset[str] = frozenset()
    filter_indexes: frozenset[int] = frozenset()
    #: Whether kubelet gets preferred device ids for the next pod.
    preferred_allocation: bool = True
    #: For the log at start-up: what in the file was ignored.
    warnings: tuple[str, ...] = ()


def load(
    path: str | os.PathLike[str], *, node: str, defaults: NvidiaSettings, mig_strategy: str
) -> NodeConfig:
    """Read the file; without one (no path, or no such file) every node has the defaults."""
    if mig_strategy not in get_args(MigStrategy):
        raise ConfigError(
            source="--mig-strategy",
            place="",
            value=mig_strategy,
            rule="is not known",
            remedy=f"write one of {', '.join(get_args(MigStrategy))}",
        )
    base = NodeConfig(nvidia=defaults, mig_strategy=cast("MigStrategy", mig_strategy))
    source = os.fspath(path)
    if not source or not os.path.lexists(source):
        return base
    text = config_file.read(
        path,
        remedy="check the mount of the ConfigMap and the file's permissions",
        longest=node_config_file.LONGEST,
    )
    return parse(text, source=source, node=node, base=base)


def parse(text: str, *, source: str, node: str, base: NodeConfig) -> NodeConfig:
    """Apply the entry of `node` to `base`; `source` names the text in errors and warnings."""
    found = node_config_file.find(text, source=source, node=node)
    if found.entry is None:
        return msgspec.structs.replace(base, warnings=tuple(found.warnings))
    data = node_config_file.keys(found.entry, source=source, path=found.path, known=KEYS)
    applied = _applied(base, data, source=source, path=found.path)
    return msgspec.structs.replace(applied, warnings=tuple(found.warnings))


def _applied(base: NodeConfig, data: dict[str, object], *, source: str, path: str) -> NodeConfig:
    entry = config_file.Section(data, source=source, path=path)
    nvidia = base.nvidia
    uuids, indexes = _filter(base, data.get("filterdevices"), source=source, path=path)
    return NodeConfig(
        nvidia=msgspec.structs.replace(
            nvidia,
            device_split_count=entry.whole("devicesplitcount", nvidia.device_split_count),
            device_memory_scaling=entry.factor("devicememoryscaling", nvidia.device_memory_scaling),
            device_core_scaling=entry.factor("devicecorescaling", nvidia.device_core_scaling),
            pre_configured_device_memory=entry.whole(
                "preconfigureddevicememory", nvidia.pre_configured_device_memory
            ),
            lib_cuda_log_level=entry.whole("libcudaloglevel", nvidia.lib_cuda_log_level, high=4),
            enable_numa_topology=entry.switch(
                "enablenumatopology", default=nvidia.enable_numa_topology
            ),
        ),
        operating_mode=_operating_mode(entry, base),
        mig_strategy=cast(
            "MigStrategy",
            entry.word("migstrategy", base.mig_strategy, among=get_args(MigStrategy)),
        ),
        filter_uuids=uuids,
        filter_indexes=indexes,
        preferred_allocation=entry.switch(
            "enablegetpreferredallocation", default=base.preferred_allocation
        ),
    )


def _operating_mode(entry: config_file.Section, base: NodeConfig) -> OperatingMode:
    if entry.text("operatingmode", "") == "mig":
        raise entry.error(
            "operatingmode",
            "means that MIG instances are created on demand, which hami does not do yet",
            "write hami-core, and offer existing MIG instances with migstrategy single or mixed",
        )
    word = entry.word("operatingmode", base.operating_mode, among=get_args(OperatingMode))
    return cast("OperatingMode", word)


def _filter(
    base: NodeConfig, value: object, *, source: str, path: str
) -> tuple[frozenset[str], frozenset[int]]:
    if value is None:
        return base.filter_uuids, base.filter_indexes
    path = f"{path}.filterdevices"
    data = node_config_file.keys(value, source=source, path=path, known=_FILTER_KEYS)
    entry = config_file.Section(data, source=source, path=path)
    uuids = _items(data, "uuid", entry)
    if not all(isinstance(item, str) and item.strip() for item in uuids):
        raise entry.error("uuid", "must be a list of texts", 'write ["GPU-…"], as nvidia-smi -L')
    indexes = _items(data, "index", entry)
    if not all(type(item) is int and item >= 0 for item in indexes):
        raise entry.error("index", "must be a list of whole numbers from 0", "write [0, 1]")
    return (
        frozenset(str(item).strip() for item in uuids),
        frozenset(item for item in indexes if isinstance(item, int)),
    )


def _items(data: dict[str, object], key: str, entry: config_file.Section) -> list[object]:
    value = data.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise entry.error(key, "must be a list", "write it in square brackets")
    return value


_log = logging.getLogger(__name__)

#: Seconds between two reads; kubelet needs a minute to deliver a changed ConfigMap.
_READ_EVERY = 5.0


class NodeConfigFile:
    """The file as it was at the start, and a watch for changes of our entry."""

    def __init__(self, settings: Settings, defaults: NvidiaSettings) -> None:
        self._settings = settings
        self._defaults = defaults
        self._path = Path(settings.node_config_file)
        self._content = self._read()
        #: The configuration of this node, and the mistake in it; empty: none.
        self.config, self.mistake = self._load()
        for warning in self.config.warnings:
            _log.warning("node configuration", extra={"warning": warning})

    async def watch(self, stop: asyncio.Event) -> NoReturn:
        """Set `stop` when the file changes for this node."""
        while True:
            await asyncio.sleep(_READ_EVERY)
            if (content := self._read()) == self._content:
                continue
            self._content = content
            if self._has_changed():
                _log.info("the node configuration changed, restarting")
                stop.set()
                await asyncio.Event().wait()
            _log.info("the node configuration changed, but not for this node")

    def _has_changed(self) -> bool:
        config, mistake = self._load()
        # Warnings are about other nodes' entries.
        config = msgspec.structs.replace(config, warnings=self.config.warnings)
        return (config, mistake) != (self.config, self.mistake)

    def _load(self) -> tuple[NodeConfig, str]:
        try:
            config = load(
                self._settings.node_config_file,
                node=self._settings.node_name,
                defaults=self._defaults,
                mig_strategy=self._settings.mig_strategy,
            )
        except ConfigError as error:
            return NodeConfig(nvidia=self._defaults), str(error)
        return config, ""

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes() if self._settings.node_config_file else None
        except OSError:
            return None
