"""Output of Helm, kept by digest of chart, arguments, values and Helm.

Rendering is a pure function of these, and takes most of the time of the chart's tests. The folder
is outside the checkout, so that fresh clones find what was rendered before. A file that cannot be
read counts as missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.e2e.parts import cache

#: Folders of older charts that are kept: those of branches that are worked on in turn.
KEPT = 8


@dataclasses.dataclass(frozen=True)
class Output:
    """What Helm printed, and its exit code."""

    code: int
    output: str
    errors: str


class RenderedCache:
    """Answers of Helm for one state of a chart; `folder` has one folder for each state."""

    def __init__(self, folder: Path, chart: Path) -> None:
        self._place = folder / digest_of_folder(chart)[:24]

    def get(
        self, helm: Path, arguments: Sequence[str], values: str, ask: Callable[[], Output]
    ) -> Output:
        """Return the kept answer, or ask and keep it."""
        path = self._place / f"{_key(helm, arguments, values)}.json.gz"
        try:
            return Output(*json.loads(gzip.decompress(path.read_bytes())))
        except (OSError, EOFError, ValueError, TypeError, zlib.error):
            pass
        printed = ask()
        self._keep(path, printed)
        return printed

    def _keep(self, path: Path, printed: Output) -> None:
        if not self._place.exists():
            self._place.mkdir(parents=True, exist_ok=True)
            _prune(self._place.parent, self._place)
        content = gzip.compress(json.dumps(dataclasses.astuple(printed)).encode(), 1)
        beside = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # another run removed the folder; or a full disk
            beside.write_bytes(content)
            beside.replace(path)


def default_folder() -> Path:
    return cache.default_folder().parent / "charts"


def digest_of_folder(folder: Path) -> str:
    """Digest the names and contents of all files."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return found.hexdigest()


@functools.cache
def _digest_of_helm(helm: Path) -> str:
    """Digest the program: it says more than its version."""
    with helm.open("rb") as program:
        return hashlib.file_digest(program, "sha256").hexdigest()


def _key(helm: Path, arguments: Sequence[str], values: str) -> str:
    material = json.dumps([_digest_of_helm(helm), *arguments, values])
    return hashlib.sha256(material.encode()).hexdigest()


def _prune(folder: Path, own: Path) -> None:
    others = [each for each in folder.iterdir() if each != own]
    newest = sorted(others, key=lambda each: each.stat().st_mtime, reverse=True)
    for old in newest[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
