"""Write an image archive that containerd, Docker and registry tools all read.

It is an OCI image layout in a tar (`oci-layout`, `index.json`, `blobs/`) that also carries Docker's
`manifest.json` over the same blobs: `ctr images import`, `docker load` and `skopeo`/`crane` each
find the one that they read. The index names the image twice: by its full name, as containerd needs,
and by its tag, as the OCI specification needs. Same inputs, same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hami.image.errors import ImageError
from hami.image.layers import Layer, epoch

LAYOUT = {"imageLayoutVersion": "1.0.0"}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
FULL_NAME = "io.containerd.image.name"
TAG = "org.opencontainers.image.ref.name"

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    r"(?:(?P<host>(?:[\w-]+\.[\w.-]+|localhost|[\w.-]+(?=:))(?::\d+)?)/)?"
    rf"(?P<path>{_PART}(?:/{_PART})*):(?P<tag>\w[\w.-]{{0,127}})",
    re.ASCII,
)


@dataclass(frozen=True)
class Settings:
    """Defaults of a container of the image, unless its pod overrides them."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)


def architecture() -> str:
    """Return this machine's architecture as images name it."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise ImageError(
            f"machine {machine!r}",
            f"is none of {', '.join(_ARCHITECTURES)}",
            "build on one of them",
        )
    return _ARCHITECTURES[machine]


def full_name(name: str) -> str:
    """Return `name` as kubelet and Docker look it up: with default host and folder added."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ImageError(
            f"image name {name!r}",
            "is not [host/]path:tag in small letters",
            "write for example hami:0.1.0",
        )
    if found["host"]:
        return name
    return f"docker.io/{name}" if "/" in found["path"] else f"docker.io/library/{name}"


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def write(out: Path, *, names: Sequence[str], layers: Sequence[Layer], settings: Settings) -> str:
    """Write the image of `layers`, lowest first, to `out`; return its manifest's digest."""
    if not names or not layers:
        raise ImageError(f"image {out.name}", "needs at least one name and one layer")
    full = [full_name(name) for name in names]
    config = canonical(_config(layers, settings))
    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [
                {"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers
            ],
        }
    )
    described = {
        **_descriptor(MANIFEST, manifest),
        "platform": {"architecture": architecture(), "os": "linux"},
    }
    entries = [
        {**described, "annotations": {FULL_NAME: name, TAG: name.rpartition(":")[2]}}
        for name in full
    ]
    docker = {
        "Config": blob_path(digest_of(config)),
        "Layers": [blob_path(layer.digest) for layer in layers],
        "RepoTags": full,
    }
    small = {
        "oci-layout": canonical(LAYOUT),
        "index.json": canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}),
        "manifest.json": canonical([docker]),
        blob_path(digest_of(manifest)): manifest,
        blob_path(digest_of(config)): config,
    }
    _archive(out, small, {blob_path(layer.digest): layer for layer in layers})
    return digest_of(manifest)


def _config(layers: Sequence[Layer], settings: Settings) -> dict[str, object]:
    created = datetime.fromtimestamp(epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    container: dict[str, object] = {
        "Entrypoint": list(settings.entrypoint),
        "Cmd": list(settings.command),
        "Env": [f"{name}={value}" for name, value in sorted(settings.env.items())],
        "User": settings.user,
        "WorkingDir": settings.workdir,
        "Labels": dict(settings.labels),
    }
    return {
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": {name: value for name, value in container.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": layer.made_by} for layer in layers],
    }


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


def _archive(out: Path, small: Mapping[str, bytes], layers: Mapping[str, Layer]) -> None:
    partial = out.with_name(f"{out.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("blobs", "blobs/sha256"):
            tar.addfile(_member(name, folder=True))
        for name, content in small.items():
            tar.addfile(_member(name, len(content)), io.BytesIO(content))
        for name, layer in sorted(layers.items()):
            with layer.path.open("rb") as blob:
                tar.addfile(_member(name, layer.size), blob)
    partial.replace(out)


def _member(name: str, size: int = 0, *, folder: bool = False) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, epoch(), 0o755 if folder else 0o644
    member.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
    return member
