"""NVIDIA's own CDI specs on the node, merged for a container's cards.

`nvidia-ctk cdi generate` and NVIDIA's device plugin write them. A container of ours gets the edits
of exactly its cards, and those that the spec makes for every container (driver libraries, control
nodes, hooks). They are copied as they are: what the node's toolkit writes fits the node's driver.

A card is found by its UUID, and by its index only in a spec that names no UUIDs: in one that does,
a card without its UUID was added later, and its index may be another card's. A MIG device has no
index of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hami.agent.errors import AgentError
from hami.node import layout
from hami.wire import codec, errors

_log = logging.getLogger(__name__)

#: In order of preference. Specs for management containers have all cards in one device.
_KINDS = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")
_SUFFIXES = (".json", ".yaml")
#: Our own specs are skipped: there may be hundreds in the same folder.
_OURS = f"{layout.CDI_KIND.replace('/', '-')}-"
_MIG = "MIG-"
_BY_UUID = ("GPU-", _MIG)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Edit = dict[str, Any]
_Stamp = tuple[int, int, int]
"""Identifies a version of a file: inode, time, size."""


class _Device(msgspec.Struct, frozen=True):
    name: str
    edits: dict[str, Any] | None = msgspec.field(name="containerEdits", default=None)


class _Spec(msgspec.Struct, frozen=True):
    version: str = msgspec.field(name="cdiVersion")
    kind: str
    devices: list[_Device]
    edits: dict[str, Any] | None = msgspec.field(name="containerEdits", default=None)

    def find(self, uuid: str, index: int | None) -> _Device | None:
        names = {device.name: device for device in self.devices}
        if uuid in names:
            return names[uuid]
        if index is None or uuid.startswith(_MIG):
            return None
        if any(name.startswith(_BY_UUID) for name in names):
            return None
        return names.get(str(index)) or names.get(f"gpu{index}")


class NvidiaCdiError(AgentError):
    """NVIDIA's specs lack a card that a container needs; says which and what to do."""


class DriverEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Edits that bring cards and driver into a container, as NVIDIA's specs have them."""

    cdi_version: str
    env: dict[str, str]
    #: The variables that the cards' own edits set, beside those for every container.
    card_env: frozenset[str] = frozenset()
    device_nodes: tuple[Edit, ...] = ()
    hooks: tuple[Edit, ...] = ()
    mounts: tuple[Edit, ...] = ()
    #: Lists under other names, as additionalGids.
    more: dict[str, tuple[Any, ...]] = {}


class NvidiaSpecs:
    """The specs in some folders, read again when a file changes."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._seen: dict[Path, _Stamp] = {}
        self._specs: tuple[_Spec, ...] = ()
        #: What is wrong with files that cannot be used.
        self.problems: tuple[str, ...] = ()

    def merged(self, cards: Sequence[tuple[str, int | None]]) -> DriverEdits:
        """Return the edits for a container with these cards (UUID, index)."""
        self._refresh()
        # From one spec if it has all cards: edits of several specs for every container may clash.
        for spec in self._specs:
            devices = [device for card in cards if (device := spec.find(*card)) is not None]
            if len(devices) == len(cards):
                return _merge([(spec, device) for device in devices])
        found = [self._find(*card) for card in cards]
        missing = [uuid for (uuid, _), each in zip(cards, found, strict=True) if each is None]
        if missing:
            raise self._missing(missing)
        return _merge([each for each in found if each is not None])

    def qualified_name(self, uuid: str) -> str:
        """Return the full name of the device with this UUID; empty: there is none."""
        self._refresh()
        found = self._find(uuid, None)
        return f"{found[0].kind}={found[1].name}" if found else ""

    def _find(self, uuid: str, index: int | None) -> tuple[_Spec, _Device] | None:
        for spec in self._specs:
            if device := spec.find(uuid, index):
                return spec, device
        return None

    def _missing(self, uuids: list[str]) -> NvidiaCdiError:
        folders = ", ".join(map(str, self._folders))
        wrong = f" ({'; '.join(self.problems)})" if self.problems else ""
        return NvidiaCdiError(
            f"NVIDIA's CDI specs in {folders}",
            f"have no {' and no '.join(uuids)}{wrong}",
            "write them again: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )

    def _refresh(self) -> None:
        """Read the files again if one of them changed."""
        files = self._files()
        if files == self._seen:
            return
        specs: list[_Spec] = []
        problems: list[str] = []
        for path in files:
            try:
                specs.append(_read(path))
            except errors.WireError as error:
                problems.append(str(error))
                _log.warning("cannot read a CDI spec", extra={"error": str(error)})
        ours = [spec for spec in specs if spec.kind in _KINDS]
        self._specs = tuple(sorted(ours, key=lambda spec: _KINDS.index(spec.kind)))
        self.problems = tuple(problems)
        self._seen = files

    def _files(self) -> dict[Path, _Stamp]:
        """List the specs, those of the last folder first: as in CDI it has precedence."""
        found: dict[Path, _Stamp] = {}
        for folder in reversed(self._folders):
            try:
                with os.scandir(folder) as entries:
                    names = sorted(entry.name for entry in entries if _is_foreign(entry.name))
            except OSError:
                continue  # most nodes have only one of the folders
            for name in names:
                with contextlib.suppress(OSError):  # deleted meanwhile, or a broken link
                    real = (folder / name).resolve(strict=True)
                    status = real.stat()
                    found[real] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return found


def _is_foreign(name: str) -> bool:
    """Return whether a file is a spec of another component, by its name."""
    return name.endswith(_SUFFIXES) and not name.startswith((".", _OURS))


def _read(path: Path) -> _Spec:
    """Read a file; WireError names it."""
    what = f"CDI spec {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise errors.WireError(
            what, error.strerror or str(error), "is why it cannot be read"
        ) from error
    if path.suffix == ".json":
        return codec.decode(content, _Spec, what=what)
    try:
        return msgspec.convert(yaml.load(content, Loader=_LOADER), _Spec)  # noqa: S506 - a safe one
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise errors.WireError(what, content, f"does not decode: {error}") from error


def _merge(found: Sequence[tuple[_Spec, _Device]]) -> DriverEdits:
    """Merge edits as CDI does: for each device those of its spec, once, and its own."""
    env: dict[str, str] = {}
    card_env: set[str] = set()
    lists: dict[str, list[Any]] = {}
    seen: list[_Spec] = []
    for spec, device in found:
        if not any(spec is each for each in seen):
            seen.append(spec)
            env.update(_add(lists, spec.edits))
        own = _add(lists, device.edits)
        env.update(own)
        card_env.update(own)
    return DriverEdits(
        cdi_version=max((spec.version for spec in seen), key=version_key),
        env=env,
        card_env=frozenset(card_env),
        device_nodes=tuple(lists.pop("deviceNodes", ())),
        hooks=tuple(lists.pop("hooks", ())),
        mounts=tuple(lists.pop("mounts", ())),
        more={name: tuple(values) for name, values in lists.items()},
    )


def _add(lists: dict[str, list[Any]], edits: Mapping[str, Any] | None) -> dict[str, str]:
    """Add to the lists what they do not have yet; return the variables."""
    env: dict[str, str] = {}
    for key, values in (edits or {}).items():
        if not isinstance(values, list):
            continue  # intelRdt: a class for all cards does not fit a container with some of them
        if key == "env":
            env.update(_variable(value) for value in values)
            continue
        known = lists.setdefault(key, [])
        known.extend(value for value in values if value not in known)
    return env


def _variable(text: object) -> tuple[str, str]:
    name, _, value = str(text).partition("=")
    return name, value


def version_key(version: str) -> tuple[int, ...]:
    """Return the key that versions are compared by; an invalid version comes first."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        return ()
