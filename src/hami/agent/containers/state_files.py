"""State files of containers, each on a small tmpfs of its own.

The agent creates them, and every process of the container writes to its file. On a tmpfs of its own
a container that fills the file harms only itself. A reboot removes all of them; `ensure` creates
them again. Where the agent may not mount, or where the node would not see the mount, they are in
plain folders: everything works, but a container can fill the node's /run.
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

_log = logging.getLogger(__name__)

_MS_NOSUID = 2
_MS_NODEV = 4
_MNT_DETACH = 2

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")

#: The file's 1.6 MiB in whole pages, and a little.
_SIZE = 2 << 20
#: The folder, the file, and some.
_INODES = 8
_MODE = 0o666  # containers have processes of any user

#: More mounts than can be on top of each other by accident.
_MOST_MOUNTS = 8


class StateFiles:
    """Creates, checks and removes state files by allocation id."""

    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._warned = False
        #: Whether the node sees our mounts; None before the first.
        self._shown: bool | None = None

    def ensure(self, allocation_id: str) -> Path:
        """Create the state file of an allocation id; an existing one is not touched."""
        path = self._layout.state(allocation_id)
        if not _is_file(path):
            folder = path.parent
            folder.mkdir(parents=True, exist_ok=True)
            if not folder.is_mount():
                self._mount(folder)
            _make(path)
        files.label_for_containers(path.parent, path)
        return path

    def remove(self, allocation_id: str) -> None:
        """Remove the file; a container that still runs keeps what it has open."""
        path = self._layout.state(allocation_id)
        for _ in range(_MOST_MOUNTS):
            if not path.parent.is_mount():
                break
            unmount(path.parent)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.parent.rmdir()

    def busy(self, allocation_id: str) -> bool:
        """Return whether a process of the container runs, by its lock on the file."""
        try:
            with files.untrusted(self._layout.state(allocation_id)) as (handle, _size):
                return files.any_held(handle)
        except files.UntrustedFileError:
            return False  # without the file no process of the container can hold a card

    def allocation_ids(self) -> list[str]:
        """Return the names of all folders, without checking them."""
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
                "state files are in plain folders, where a container can fill the node's memory",
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
        os.fchmod(handle, _MODE)  # independent of the umask
    finally:
        os.close(handle)


def mount(folder: Path, *, size: int, inodes: int) -> None:
    """Mount an empty tmpfs; OSError says why not.

    Not `noexec`: the bind mount in a container inherits the flags, and a container with a user
    namespace may not change them.
    """
    options = f"size={size},nr_inodes={inodes},mode=0755"
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hami", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise _last_error(folder)


def unmount(folder: Path) -> None:
    """Detach the file system at once; the kernel frees it when its last user ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(folder), _MNT_DETACH):
        raise _last_error(folder)


def is_shown(folder: Path, mountinfo: str | None = None) -> bool:
    """Return whether the node sees what is mounted below the folder.

    In a container the folder is a part of the node's tree, mounted into ours. Unless that mount is
    shared (`mountPropagation: Bidirectional`), a mount below it is visible only here.
    """
    text = _MOUNTINFO.read_text() if mountinfo is None else mountinfo
    root, shared = "/", False
    longest = -1
    real = folder.resolve()
    for line in text.splitlines():
        fields = line.split(" ")
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # Of several mounts on one path the last is on top.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            root = fields[3]
            shared = any(field.startswith("shared:") for field in fields[6 : fields.index("-", 6)])
    return shared or root == "/"


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))
