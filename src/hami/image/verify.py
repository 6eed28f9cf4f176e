"""Read an image archive and check all of it.

Every digest, size and diff_id is computed again, and the OCI manifest and Docker's must describe
the same image under the same names. `ImageError` names the place of a fault; an archive that
passes loads the same image whichever of the two manifests a tool reads.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn, cast

from hami.image import oci
from hami.image.errors import ImageError

_SMALL = 4 << 20  # no JSON of an image is near this
_FIXED = {"oci-layout", "index.json", "manifest.json"}
_FOLDERS = {"blobs", "blobs/sha256"}


@dataclass(frozen=True)
class Image:
    """The image in an archive; `config` is the whole image configuration as it was read."""

    names: tuple[str, ...]
    digest: str
    layers: tuple[str, ...]
    size: int
    config: dict[str, Any]


def archive(path: Path) -> Image:
    """Check the archive at `path` from end to end, and return its image."""
    try:
        with tarfile.open(path, "r:") as tar:
            return _Archive(path, tar).image()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ImageError(
            f"image archive {path.name}", f"cannot be read ({error})", "build it again"
        ) from error


class _Archive:
    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self._path = path
        self._tar = tar
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in tar:
            name = member.name
            if name in self._members:
                self._refuse(f"{name!r} is there twice")
            if not (member.isdir() if name in _FOLDERS else member.isreg()):
                self._refuse(f"{name!r} is neither blob nor manifest")
            self._members[name] = member

    def image(self) -> Image:
        if self._json("oci-layout") != oci.LAYOUT:
            self._refuse(f"oci-layout is not {oci.LAYOUT}")
        entries = self._get(self._json("index.json"), "index.json", "manifests", list)
        digests = {self._blob(entry, "index.json", oci.MANIFEST) for entry in entries}
        if len(digests) != 1:
            self._refuse(f"index.json names {len(digests)} manifests, not one")
        digest = digests.pop()
        where = f"manifest {digest}"
        manifest = self._json(oci.blob_path(digest))
        described = self._get(manifest, where, "config", dict)
        config_digest = self._blob(described, where, oci.CONFIG)
        layers = [
            self._blob(layer, where, oci.LAYER)
            for layer in self._get(manifest, where, "layers", list)
        ]
        config = self._json(oci.blob_path(config_digest))
        self._layers(layers, config, f"config {config_digest}")
        self._platforms(entries, config)
        names = self._names(entries)
        self._docker(names, config_digest, layers)
        self._nothing_else({digest, config_digest, *layers})
        return Image(tuple(names), digest, tuple(layers), self._path.stat().st_size, config)

    def _blob(self, described: object, where: str, media_type: str) -> str:
        """Check a blob against the entry that describes it; return its digest."""
        found = self._get(described, where, "mediaType", str)
        if found != media_type:
            self._refuse(f"{where} describes a {found!r}, not a {media_type}")
        digest: str = self._get(described, where, "digest", str)
        size: int = self._get(described, where, "size", int)
        member = self._member(oci.blob_path(digest))
        if member.size != size:
            self._refuse(f"{where} says {digest} has {size} bytes, it has {member.size}")
        with self._open(member) as content:
            real = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
        if real != digest:
            self._refuse(f"{digest} has the content of {real}")
        return digest

    def _layers(self, layers: list[str], config: object, where: str) -> None:
        rootfs = self._get(config, where, "rootfs", dict)
        diff_ids = self._get(rootfs, where, "diff_ids", list)
        if rootfs.get("type") != "layers" or len(diff_ids) != len(layers):
            self._refuse(f"{where} lists {len(diff_ids)} layers, the manifest {len(layers)}")
        for digest, diff_id in zip(layers, diff_ids, strict=True):
            member = self._member(oci.blob_path(digest))
            try:
                with self._open(member) as packed, gzip.open(packed) as plain:
                    real = f"sha256:{hashlib.file_digest(plain, 'sha256').hexdigest()}"
            except (OSError, EOFError, zlib.error) as error:
                self._refuse(f"layer {digest} does not unzip ({error})")
            if real != diff_id:
                self._refuse(f"layer {digest} unzips to {real}, {where} says {diff_id}")

    def _platforms(self, entries: list[object], config: object) -> None:
        real = {key: self._get(config, "config", key, str) for key in ("architecture", "os")}
        for entry in entries:
            found = self._get(entry, "index.json", "platform", dict)
            if found != real:
                self._refuse(f"index.json says the platform is {found}, the config {real}")

    def _names(self, entries: list[object]) -> list[str]:
        names: list[str] = []
        for entry in entries:
            notes = self._get(entry, "index.json", "annotations", dict)
            name = self._get(notes, "index.json", oci.FULL_NAME, str)
            tag = self._get(notes, "index.json", oci.TAG, str)
            if oci.full_name(name) != name or name.rpartition(":")[2] != tag:
                self._refuse(f"index.json calls the image {name!r} and its tag {tag!r}")
            names.append(name)
        return names

    def _docker(self, names: list[str], config: str, layers: list[str]) -> None:
        expected = {
            "Config": oci.blob_path(config),
            "Layers": [oci.blob_path(layer) for layer in layers],
            "RepoTags": names,
        }
        found = self._json("manifest.json")
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
            self._refuse("manifest.json is not a list of one image")
        for key, value in expected.items():
            if found[0].get(key) != value:
                self._refuse(
                    f"manifest.json says {key} is {found[0].get(key)!r}, the OCI manifest {value!r}"
                )

    def _nothing_else(self, digests: set[str]) -> None:
        known = _FIXED | _FOLDERS | {oci.blob_path(digest) for digest in digests}
        for name in sorted(self._members.keys() - known):
            self._refuse(f"{name!r} belongs to no manifest")

    def _json(self, name: str) -> Any:
        member = self._member(name)
        if member.size > _SMALL:
            self._refuse(f"{name!r} has {member.size} bytes, too many for JSON of an image")
        with self._open(member) as content:
            try:
                return json.loads(content.read())
            except (ValueError, RecursionError) as error:
                self._refuse(f"{name!r} is no JSON ({error})")

    def _get(self, document: object, where: str, key: str, kind: type) -> Any:
        value = document.get(key) if isinstance(document, dict) else None
        if type(value) is not kind:
            self._refuse(f"{where} has no {key} that is a {kind.__name__}")
        return value

    def _member(self, name: str) -> tarfile.TarInfo:
        if name not in self._members:
            self._refuse(f"{name!r} is missing")
        return self._members[name]

    def _open(self, member: tarfile.TarInfo) -> BufferedReader:
        return cast("BufferedReader", self._tar.extractfile(member))  # a regular file: checked

    def _refuse(self, rule: str) -> NoReturn:
        raise ImageError(f"image archive {self._path.name}", rule, "build it again")
