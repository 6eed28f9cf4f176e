"""CDI devices by name, from the specs on disk at the time of the call.

As in containerd: a device of a later folder replaces an earlier folder's, a name that two files of
one folder have cannot be resolved, and an unreadable file is skipped with a line in the log. Hooks
are not run: they set up the linker's cache of real images, and the sandbox has no images.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hami_sandbox.runtime import kernel
from hami_sandbox.runtime.states import UnresolvableError

_log = logging.getLogger(__name__)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ATTRIBUTES = {
    "ro": kernel.READ_ONLY,
    "nosuid": kernel.NO_SUID,
    "nodev": kernel.NO_DEV,
    "noexec": kernel.NO_EXEC,
}
_Stamp = tuple[int, int, int]


class _Mount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class _DeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""


class _Edits(msgspec.Struct, frozen=True, rename="camel"):
    env: tuple[str, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    hooks: tuple[Any, ...] = ()


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _Edits = _Edits()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    devices: tuple[_Device, ...] = ()
    container_edits: _Edits = _Edits()


class Edits(msgspec.Struct, frozen=True, kw_only=True):
    """The edits of devices to a container."""

    env: dict[str, str] = {}
    #: The machine's path, the container's, attributes of the mount (`kernel`).
    mounts: tuple[tuple[str, str, int], ...] = ()


class Registry:
    """The specs of some folders; a file that did not change is not read again."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._read: dict[Path, tuple[_Stamp, _Spec | None]] = {}
        self._hooks_logged = False

    def resolve(self, names: Sequence[str]) -> Edits:
        """Return the edits of devices; raises UnresolvableError with all unknown names."""
        if not names:
            return Edits()
        devices = self._devices()
        missing = [name for name in names if name not in devices]
        if missing:
            raise UnresolvableError(missing)
        seen: list[_Spec] = []
        edits: list[_Edits] = []
        for spec, device in (devices[name] for name in dict.fromkeys(names)):
            if not any(spec is each for each in seen):
                seen.append(spec)
                edits.append(spec.container_edits)
            edits.append(device.container_edits)
        if any(edit.hooks for edit in edits) and not self._hooks_logged:
            self._hooks_logged = True
            _log.info("sandbox skips hooks of CDI specs", extra={"devices": names})
        return _merged(edits)

    def _devices(self) -> dict[str, tuple[_Spec, _Device]]:
        found: dict[str, tuple[_Spec, _Device]] = {}
        kept: dict[Path, tuple[_Stamp, _Spec | None]] = {}
        for folder in self._folders:
            own: dict[str, list[tuple[_Spec, _Device]]] = {}
            for path in sorted(folder.glob("[!.]*")) if folder.is_dir() else ():
                if path.suffix not in (".json", ".yaml"):
                    continue
                spec = self._spec(path, kept)
                for device in spec.devices if spec else ():
                    assert spec is not None
                    own.setdefault(f"{spec.kind}={device.name}", []).append((spec, device))
            for name, entries in own.items():
                found.pop(name, None)
                if len(entries) == 1:
                    found[name] = entries[0]
        self._read = kept
        return found

    def _spec(self, path: Path, kept: dict[Path, tuple[_Stamp, _Spec | None]]) -> _Spec | None:
        try:
            facts = path.stat()
            stamp = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            had = self._read.get(path)
            if had is None or had[0] != stamp:
                had = (stamp, _decode(path))
        except OSError:
            return None  # it was removed meanwhile
        kept[path] = had
        return had[1]


def _decode(path: Path) -> _Spec | None:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(content, type=_Spec)
        return msgspec.convert(yaml.load(content, Loader=_LOADER), type=_Spec)  # noqa: S506 - safe
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as error:
        _log.warning(
            "cannot read a CDI spec, skipping it", extra={"file": str(path), "error": str(error)}
        )
        return None


def _merged(edits: Iterable[_Edits]) -> Edits:
    env: dict[str, str] = {}
    mounts: dict[str, tuple[str, str, int]] = {}
    for edit in edits:
        env.update(_variable(text) for text in edit.env)
        for node in edit.device_nodes:
            mounts[node.path] = (node.host_path or node.path, node.path, 0)
        for mount in edit.mounts:
            attributes = sum(_ATTRIBUTES.get(option, 0) for option in set(mount.options))
            place = mount.container_path
            mounts[place] = (mount.host_path, place, attributes)
    return Edits(env=env, mounts=tuple(mounts.values()))


def _variable(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value
