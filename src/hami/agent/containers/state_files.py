"""State files of containers, on a small tmpfs.

Small file systems in memory: mount(2) and umount2(2), which Python does not have.

The state files of containers: made by the agent, written by every process of the container.
Each lies on a small tmpfs of its own, so whoever fills it harms only himself, and is mounted into
the container as one file. A reboot takes all of them; `ensure` makes them again. Where the agent
may not mount, or where the node would not see it, they lie in plain folders: everything works, but
a container can fill the node's /run.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import stat
from pathlib import Path

from hami.node import files
from hami.node.layout import NodeLayout

_MS_NOSUID = 2
_MS_NODEV = 4
_MNT_DETACH = 2

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount(folder: Path, *, size: int, inodes: int) -> None:
    """Mount an empty tmpfs; OSError says why not.

    Programs may be started from it, as far as its flags go: the bind mount in a container takes
    the flags over, and a container with a user namespace may not change them.
    """
    options = f"size={size},nr_inodes={inodes},mode=0755"
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hami", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise _last_error(folder)


def unmount(folder: Path) -> None:
    """Take it out of the tree at once; it ends when its last user does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(folder), _MNT_DETACH):
        raise _last_error(folder)


def is_shown(folder: Path, mountinfo: str | None = None) -> bool:
    """Tell whether what is mounted below the folder is seen by the node as well.

    In a container the folder is a part of the node's tree, mounted into ours. Unless that mount is
    shared (`mountPropagation: Bidirectional`), a mount below it stays with us.
    """
    text = _MOUNTINFO.read_text() if mountinfo is None else mountinfo
    root, shared = "/", False
    longest = -1
    real = folder.resolve()
    for line in text.splitlines():
        fields = line.split(" ")
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # Of mounts on one place the last lies on top.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            root = fields[3]
            shared = any(field.startswith("shared:") for field in fields[6 : fields.index("-", 6)])
    return shared or root == "/"


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))


_log = logging.getLogger(__name__)

#: The file's 1.6 MiB in whole pages, and a little.
_SIZE = 2 << 20
#: The folder, the file, and some.
_INODES = 8
_MODE = 0o666  # containers have processes of any user

#: As often as a mount can lie on another one by accident, and more.
_MOST_MOUNTS = 8


class StateFiles:
    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._warned = False
        #: Whether the node sees what we mount; unknown before the first.
        self._shown: bool | None = None

    def ensure(self, token: str) -> Path:
        """Have the state file of a token; one that is there is left alone, whatever is in it."""
        path = self._layout.state(token)
        if not _is_file(path):
            folder = path.parent
            folder.mkdir(parents=True, exist_ok=True)
            if not folder.is_mount():
                self._mount(folder)
            _make(path)
        return path

    def remove(self, token: str) -> None:
        """Take it away; a container that still runs keeps what it has open."""
        path = self._layout.state(token)
        for _ in range(_MOST_MOUNTS):
            if not path.parent.is_mount():
                break
            unmount(path.parent)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.parent.rmdir()

    def busy(self, token: str) -> bool:
        """Tell whether a process of the container lives: the kernel knows who holds a slot."""
        try:
            with files.untrusted(self._layout.state(token)) as (handle, _size):
                return files.any_held(handle)
        except files.UntrustedFileError:
            return False  # without its file no process of the container holds anything

    def tokens(self) -> list[str]:
        """Return the names of all that is there."""
        try:
            return [path.name for path in self._layout.states.iterdir()]
        except FileNotFoundError:
            return []

    def _mount(self, folder: Path) -> None:
        why = "the node would not see it: mount --run-dir with mountPropagation: Bidirectional"
        if self._shown is None:
            self._shown = is_shown(self._layout.states)
        if self._shown:
            try:
                mount(folder, size=_SIZE, inodes=_INODES)
            except PermissionError as error:
                why = f"{error.strerror}: it takes CAP_SYS_ADMIN"
            else:
                return
        if not self._warned:
            self._warned = True
            _log.warning(
                "state files lie in plain folders, where a container can fill the node's memory",
                extra={"folder": str(self._layout.states), "error": why},
            )


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _make(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, _MODE)  # whatever the umask says
    finally:
        os.close(handle)
