"""Write the members of a tar stream into a root folder, and never outside it.

Paths are resolved as a process inside the root would resolve them: a link to `/etc` is the root's
own `etc`, not the host's. Debian packages need that (they have absolute links, and after the merge
of /usr their `bin/` is a link), and Python's own extraction filters refuse it.

Names that are absolute or climb with `..` are refused rather than corrected, as are device files:
no package that we unpack needs them. Owners are not kept: all files belong to the user that runs
the build. So a set-uid or set-gid bit stays only where the owner in the archive is root.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from hami.image.errors import ImageError

_LINKS = 40  # as Linux counts before ELOOP
_SETUID, _SETGID, _MODE = 0o4000, 0o2000, 0o7777


def inside(root: Path, name: str, *, follow: bool = False) -> Path:
    """Return the path of `name` for a process in `root`; follow=False: the last link is kept."""
    parts = list(PurePosixPath("/", name).parts[1:])
    here, links = root, 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            here = here if here == root else here.parent
            continue
        here /= part
        if not here.is_symlink() or not (parts or follow):
            continue
        links += 1
        if links > _LINKS:
            raise ImageError(f"path {name!r}", f"goes through more than {_LINKS} links")
        target = PurePosixPath(here.readlink())
        here = root if target.is_absolute() else here.parent
        parts[:0] = target.parts[target.is_absolute() :]
    return here


def folder(path: Path) -> None:
    """Make `path` and missing folders above it, readable by all whatever the umask."""
    if not path.is_dir():
        folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


def copy(source: Path, path: Path, mode: int = 0o644) -> None:
    """Copy the file `source` to `path`, whatever the umask."""
    folder(path.parent)
    shutil.copyfile(source, path)
    path.chmod(mode)


def write(path: Path, text: str) -> None:
    """Write the small file `path`, whatever the umask."""
    folder(path.parent)
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def extract(stream: tarfile.TarFile, root: Path, *, what: str, skip: Callable[[str], bool]) -> None:
    """Write every member of `stream` for whose name `skip` is false below `root`."""
    modes: list[tuple[Path, int]] = []
    for member in stream:
        name = _checked(member.name, what)
        if name == "." or skip(name):
            continue
        path = inside(root, name)
        folder(path.parent)
        if member.isdir():
            if not inside(root, name, follow=True).is_dir():
                _clear(path, what)
                path.mkdir()
                modes.append((path, _mode(member)))
            continue
        _clear(path, what)
        if member.issym():
            path.symlink_to(member.linkname)
        elif member.islnk():
            _link(root, path, _checked(member.linkname, what), what)
        elif member.isreg():
            _write(stream, member, path)
        else:
            raise ImageError(f"{what}: {member.name!r}", "is a device, pipe or other special file")
    for path, mode in reversed(modes):  # last, because a folder may be read-only
        path.chmod(mode)


def _checked(name: str, what: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ImageError(
            f"{what}: {name!r}",
            "is absolute or climbs out of the root",
            "do not use this package: no archive of Debian carries such a name",
        )
    return str(path)


def _mode(member: tarfile.TarInfo) -> int:
    kept = _MODE
    if member.uid:
        kept &= ~_SETUID
    if member.gid:
        kept &= ~_SETGID
    return member.mode & kept


def _clear(path: Path, what: str) -> None:
    if path.is_dir() and not path.is_symlink():
        raise ImageError(f"{what}: {path.name!r}", "would replace a folder by something else")
    path.unlink(missing_ok=True)


def _link(root: Path, path: Path, name: str, what: str) -> None:
    target = inside(root, name)
    if target.is_symlink() or not target.is_file():
        raise ImageError(f"{what}: {name!r}", "is linked to, but is no file extracted before")
    os.link(target, path)


def _write(stream: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = stream.extractfile(member)
    assert source is not None  # it is a regular file
    with path.open("xb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    path.chmod(_mode(member))
    os.utime(path, (member.mtime, member.mtime))
