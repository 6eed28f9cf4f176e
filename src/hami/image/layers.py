"""Pack a folder into a layer: one gzipped tar, the same bytes each time.

Members are sorted, belong to root, and carry one fixed time (SOURCE_DATE_EPOCH, else 1970); modes,
symbolic and hard links are kept. The gzip has neither name nor time. (Another version of zlib may
pack differently; `diff_id`, the digest of the tar, is the same then too.)

`Store` keeps finished layers under a key of their inputs, so that a layer whose inputs did not
change is neither built nor packed again. Each is checked by digest before it is used; one that was
not used for two weeks is deleted when another is made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import time as now
from typing import BinaryIO, cast

from hami.image import tree
from hami.image.errors import ImageError

_LEVEL = 6  # 9 costs three times the time for one percent
_KEPT = 14 * 24 * 3600.0  # seconds without use
_WHITEOUT = ".wh."  # such a name would delete a file of a lower layer


@dataclass(frozen=True)
class Layer:
    """A finished layer: `path` is the gzipped tar, `made_by` its line in the image's history."""

    path: Path
    digest: str
    size: int
    diff_id: str
    made_by: str


def epoch() -> int:
    """Return the time of all files that we write, in Unix seconds."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 33:
        raise ImageError(
            f"SOURCE_DATE_EPOCH={text!r}",
            "is no number of seconds since 1970",
            "unset it, or give what `git log -1 --format=%ct` prints",
        )
    return int(text)


class _Hashed:
    """A file for writing that computes digest and length of its content."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._sum = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._sum.update(data)
        self.size += len(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


def pack(folder: Path, out: Path, *, made_by: str, time: int | None = None) -> Layer:
    """Write the content of `folder` to `out` as a layer."""
    with out.open("wb") as file:
        packed = _Hashed(file)
        with gzip.GzipFile("", "wb", _LEVEL, cast("BinaryIO", packed), mtime=0) as zipped:
            plain = _Hashed(cast("BinaryIO", zipped))
            with tarfile.open(
                fileobj=cast("BinaryIO", plain), mode="w|", format=tarfile.PAX_FORMAT
            ) as tar:
                _add(tar, folder, epoch() if time is None else time)
    return Layer(out, packed.digest, packed.size, plain.digest, made_by)


def _add(tar: tarfile.TarFile, folder: Path, time: int) -> None:
    first: dict[tuple[int, int], str] = {}
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.name.startswith(_WHITEOUT):
            raise ImageError(
                f"file {name!r}",
                f"begins with {_WHITEOUT!r}: it would delete, not add",
                "rename it",
            )
        found = path.lstat()
        entry = tarfile.TarInfo(name)
        entry.mtime = time
        entry.mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, str(path.readlink())
        elif not stat.S_ISREG(found.st_mode):
            raise ImageError(f"file {name!r}", "is a device, pipe or socket; layers hold none")
        elif earlier := first.get((found.st_dev, found.st_ino)):
            entry.type, entry.linkname = tarfile.LNKTYPE, earlier
        else:
            if found.st_nlink > 1:
                first[found.st_dev, found.st_ino] = name
            entry.size = found.st_size
            with path.open("rb") as content:
                tar.addfile(entry, content)
            continue
        tar.addfile(entry)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all below `folder`, a folder before its content, in an order that no locale changes."""
    for path in sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name)):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def unpack(layer: Layer, root: Path) -> None:
    """Write the files of `layer` below `root`."""
    with tarfile.open(layer.path, "r:gz") as tar:
        tree.extract(tar, root, what=f"layer {layer.made_by}", skip=lambda _: False)


class Store:
    """Finished layers in a folder, by their inputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def layer(self, made_by: str, inputs: object, write: Callable[[Path], None]) -> Layer:
        """Return the layer of `inputs` (any JSON); `write` fills a folder if it must be made.

        The builder's own code and the time stamped on files are inputs of every layer.
        """
        everything = [made_by, inputs, epoch(), _own_code()]
        key = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:32]
        return self._kept(key, made_by) or self._made(key, made_by, write)

    def _kept(self, key: str, made_by: str) -> Layer | None:
        blob = self._folder / f"{key}.tar.gz"
        try:
            digest, size, diff_id, check = (self._folder / key).read_text().split()
            with blob.open("rb") as file:
                real = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != f"sha256:{real}" or check != _check(digest, size, diff_id):
                return None
            for used in (blob, self._folder / key):
                os.utime(used)
            return Layer(blob, digest, int(size), diff_id, made_by)
        except (OSError, ValueError):
            return None  # not made yet, or damaged: made again

    def _made(self, key: str, made_by: str, write: Callable[[Path], None]) -> Layer:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="making-") as name:
            root = Path(name, "root")
            tree.folder(root)
            write(root)
            layer = pack(root, Path(name, "layer"), made_by=made_by)
            numbers = (layer.digest, str(layer.size), layer.diff_id)
            Path(name, "facts").write_text(" ".join((*numbers, _check(*numbers))))
            blob = self._folder / f"{key}.tar.gz"
            layer.path.replace(blob)
            Path(name, "facts").replace(self._folder / key)
        self._forget()
        return replace(layer, path=blob)

    def _forget(self) -> None:
        """Delete layers that were not used for long, and folders of killed builds."""
        oldest = now() - _KEPT
        for path in self._folder.iterdir():
            if path.lstat().st_mtime < oldest:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _check(*numbers: str) -> str:
    return hashlib.sha256(" ".join(numbers).encode()).hexdigest()


def _own_code() -> str:
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()
