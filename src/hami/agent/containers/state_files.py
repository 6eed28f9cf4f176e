"""The state files of containers: made by the agent, written by every process of the container.

Each lies on a small tmpfs of its own, so whoever fills it harms only himself, and is mounted into
the container as one file. A reboot takes all of them; `ensure` makes them again. Where the agent
may not mount, or where the node would not see it, they lie in plain folders: everything works, but
a container can fill the node's /run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

from hami.agent.containers import tmpfs
from hami.node import files, slot_locks
from hami.node.layout import NodeLayout

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
            tmpfs.unmount(path.parent)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.parent.rmdir()

    def busy(self, token: str) -> bool:
        """Tell whether a process of the container lives: the kernel knows who holds a slot."""
        try:
            with files.untrusted(self._layout.state(token)) as (handle, _size):
                return slot_locks.any_held(handle)
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
            self._shown = tmpfs.is_shown(self._layout.states)
        if self._shown:
            try:
                tmpfs.mount(folder, size=_SIZE, inodes=_INODES)
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
