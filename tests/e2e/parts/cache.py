"""Finished parts, built once per version and toolchain, checked at each use.

A part appears under its final name only when it is whole: it is made beside it, its manifest (size
and SHA-256 of every file) is written last, and one rename publishes it. What does not agree with
its manifest was half built or damaged, and is made anew. So a run that was killed, a full disk or a
flipped bit costs one rebuild and never a strange test.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]
MANIFEST = ".manifest.json"


class PartError(Exception):
    """A part cannot be made: what was tried, what came of it, and what to do."""


@dataclass(frozen=True)
class Part:
    """Something that is built once. Whatever changes its bytes stands in `made_from`."""

    name: str
    version: str
    made_from: Mapping[str, str]
    make: Callable[[Path, Say], None]
    takes: str = ""

    @property
    def folder_name(self) -> str:
        material = json.dumps([self.name, self.version, dict(self.made_from)], sort_keys=True)
        return f"{self.name}-{self.version}-{hashlib.sha256(material.encode()).hexdigest()[:12]}"


def default_folder() -> Path:
    """Outside the checkout, so that fresh clones (CI's too) find what was built before."""
    if own := os.environ.get("HAMI_PARTS_CACHE"):
        return Path(own).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hami" / "parts"


def packages_folder() -> Path:
    """Give the place of Debian packages and finished image layers, which keep themselves whole."""
    return default_folder() / "debian-and-layers"


def say(line: str) -> None:
    print(f"parts: {line}", flush=True)  # noqa: T201 (progress is for the person who waits)


def provide(part: Part, cache: Path, say: Say = say) -> Path:
    """Give the folder of the part, building it first where it is missing or damaged."""
    folder = cache / part.folder_name
    with _locked(cache, part, say):
        trouble = damage(folder)
        if trouble is None:
            return folder
        if folder.exists():
            say(f"{part.name} {part.version}: {trouble}; making it anew")
            remove(folder)
        _make(part, cache, folder, say)
    return folder


def damage(folder: Path) -> str | None:
    """Say what is wrong with a finished part, or None."""
    try:
        manifest: dict[str, str] = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return "it has no manifest"
    except ValueError:
        return "its manifest is not JSON"
    found = contents(folder)
    for name in sorted(manifest.keys() | found.keys()):
        if manifest.get(name) != found.get(name):
            return f"{name} is not what was built"
    return None


def contents(folder: Path) -> dict[str, str]:
    """Describe each file: kind, permissions and the digest of its bytes or its target."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        mode = path.lstat().st_mode
        if name == MANIFEST or stat.S_ISDIR(mode):
            continue
        if stat.S_ISLNK(mode):
            found[name] = f"link {path.readlink()}"
        elif stat.S_ISREG(mode):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = f"file {stat.S_IMODE(mode):o} {digest}"
        else:
            found[name] = f"other {stat.S_IFMT(mode):o}"
    return found


def prune(keep: set[str], cache: Path, say: Say = say) -> None:
    """Remove what no recipe of this checkout names: older versions, other toolchains."""
    for folder in sorted(cache.iterdir()) if cache.is_dir() else []:
        if folder.is_dir() and folder.name not in keep and (folder / MANIFEST).exists():
            say(f"removing {folder.name}")
            remove(folder)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _make(part: Part, cache: Path, folder: Path, say: Say) -> None:
    started = time.monotonic()
    about = f", about {part.takes}, once" if part.takes else ""
    say(f"building {part.name} {part.version}{about}")
    making = cache / f".making-{part.name}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    part.make(making, say)
    (making / MANIFEST).write_text(json.dumps(contents(making), indent=0))
    making.rename(folder)
    say(f"built {part.name} {part.version} in {(time.monotonic() - started) / 60:.1f} min")


@contextlib.contextmanager
def _locked(cache: Path, part: Part, say: Say) -> Iterator[None]:
    """One builder at a time; the kernel takes the lock back from whoever dies."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".lock-{part.name}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{part.name} {part.version}: another run is at it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
