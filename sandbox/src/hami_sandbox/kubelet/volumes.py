"""A pod's volumes as folders of the machine, and a container's mounts.

Known are emptyDir, hostPath, configMap, secret, downwardAPI and projected ones of these; a service
account's token in a projected volume is left out. Files are written when the pod starts, and stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from hami_sandbox.kubelet import environment
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.environment import NodeFacts, Reference, References
from hami_sandbox.kubelet.pod import Object

Files = Mapping[str, bytes]


class VolumeError(ValueError):
    """A volume cannot be made; the text is kubelet's."""


class MountPlan(msgspec.Struct, frozen=True):
    """A folder or file of the machine that a container sees."""

    host: str
    container: str
    read_only: bool


class Volumes:
    """The volumes of all pods of a node."""

    def __init__(self, folder: Path, references: References, node: Callable[[], NodeFacts]) -> None:
        self._folder = folder
        self._references = references
        self._node = node

    async def prepare(self, pod: Object) -> dict[str, Path]:
        """Create the volumes of a pod, or reuse them; return the folder of each."""
        made: dict[str, Path] = {}
        for volume in pods.spec(pod).get("volumes") or ():
            name = volume["name"]
            try:
                made[name] = await self._one(pod, volume)
            except (VolumeError, OSError, environment.FieldError) as error:
                message = f'MountVolume.SetUp failed for volume "{name}" : {error}'
                raise VolumeError(message) from error
        return made

    def remove(self, uid: str) -> None:
        shutil.rmtree(self._folder / uid, ignore_errors=True)

    def remove_others(self, uids: frozenset[str]) -> None:
        """Remove volumes of pods that were deleted while no kubelet ran."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if folder.name not in uids:
                    self.remove(folder.name)

    async def _one(self, pod: Object, volume: Object) -> Path:
        if host := volume.get("hostPath"):
            return _host_path(host)
        place: Path = self._folder / pods.uid(pod) / "volumes" / str(volume["name"])
        if _is_there(place, volume):
            return place
        sources = [volume]
        if projected := volume.get("projected"):
            sources = projected.get("sources") or []
        files: dict[str, bytes] = {}
        for source in sources:
            files |= await self._files(pod, source)
        _write(place, files)
        return place

    async def _files(self, pod: Object, source: Object) -> Files:
        for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
            if (named := source.get(field)) is not None:
                return await self._of_reference(pod, kind, named)
        if (downward := source.get("downwardAPI")) is not None:
            return dict(self._of_pod(pod, downward))
        if "serviceAccountToken" in source or "clusterTrustBundle" in source:
            return {}
        kinds = ", ".join(sorted(key for key in source if key != "name"))
        raise VolumeError(f"volumes of this kind are not known here: {kinds or 'none'}")

    async def _of_reference(self, pod: Object, kind: str, named: Object) -> Files:
        reference = Reference(kind, named.get("name") or named.get("secretName") or "")
        found = await self._references.find(pods.namespace(pod), [reference])
        if reference not in found:
            if named.get("optional"):
                return {}
            raise VolumeError(reference.missing)
        held = found[reference]
        items = named.get("items")
        if not items:
            return held
        missing = [item["key"] for item in items if item["key"] not in held]
        if missing and not named.get("optional"):
            raise VolumeError(f"references non-existent {kind.lower()} key: {missing[0]}")
        return {item["path"]: held[item["key"]] for item in items if item["key"] in held}

    def _of_pod(self, pod: Object, downward: Object) -> Iterator[tuple[str, bytes]]:
        for item in downward.get("items") or ():
            if field := item.get("fieldRef"):
                value = environment.downward_field(pod, field.get("fieldPath", ""), self._node())
            else:
                amount = item.get("resourceFieldRef") or {}
                value = environment.resource(pod, {}, amount, self._node())
            yield item["path"], value.encode()


def mounts(container: Object, volumes: Mapping[str, Path]) -> list[MountPlan]:
    """Return a container's mounts of the volumes."""
    made: list[MountPlan] = []
    for mount in container.get("volumeMounts") or ():
        host = volumes.get(mount["name"])
        if host is None:
            raise VolumeError(f'the pod has no volume "{mount["name"]}"')
        if below := mount.get("subPath"):
            host = host / _inside(below)
            if not host.exists():
                host.mkdir(parents=True)
        made.append(MountPlan(str(host), mount["mountPath"], bool(mount.get("readOnly"))))
    return made


def _is_there(place: Path, volume: Object) -> bool:
    """Return whether a volume exists; an empty one is created here."""
    if "emptyDir" in volume or volume.keys() == {"name"}:
        place.mkdir(parents=True, exist_ok=True)
    return place.exists()


def _host_path(host: Object) -> Path:
    path = Path(host.get("path") or "/")
    match host.get("type") or "":
        case "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        case "FileOrCreate":
            path.touch()
        case "Directory" if not path.is_dir():
            raise VolumeError(f"hostPath type check failed: {path} is not a directory")
        case "File" if not path.is_file():
            raise VolumeError(f"hostPath type check failed: {path} is not a file")
        case _ if not path.exists():
            raise VolumeError(f"hostPath: {path} does not exist on this machine")
    return path


def _write(place: Path, files: Files) -> None:
    """Write all files atomically."""
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, held in files.items():
        path = part / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held)
    part.replace(place)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise VolumeError(f"{name!r} leads out of its volume")
    return path
