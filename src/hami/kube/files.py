"""Small files that somebody replaces while we run: tokens, certificates, authorities.

kubelet swaps a projected volume by a symbolic link, cert-manager by a rename; either way the file
behind the path is another one. So each use looks at the file's identity, which costs microseconds,
and reads it when that has changed. As some file systems tell changes late, it is read again now
and then in any case. A file that cannot be read for a moment keeps its last content.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from hami.kube import errors

_MOST = 1024 * 1024
_AT_LATEST = 60.0


class File:
    """A file that is read when it changes."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._text: str | None = None
        self._identity: tuple[int, int, int, int] | None = None
        self._read_at = 0.0

    def forget(self) -> None:
        """Read it anew at the next use, whatever it looks like."""
        self._identity = None

    def text(self) -> str:
        try:
            return self._current()
        except (OSError, UnicodeError) as error:
            if self._text is not None:
                return self._text
            raise unreadable(self.path, error) from error

    def _current(self) -> str:
        found = pathlib.Path(self.path).stat()
        identity = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        old = self._clock() - self._read_at > _AT_LATEST
        if self._text is None or old or identity != self._identity:
            if found.st_size > _MOST:
                raise OSError(f"it has {found.st_size} bytes, more than {_MOST}")
            self._text = pathlib.Path(self.path).read_text(encoding="utf-8")
            self._identity = identity
            self._read_at = self._clock()
        return self._text


class Text:
    """A text that never changes, used like a file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def forget(self) -> None:
        """Do nothing: there is no newer one."""

    def text(self) -> str:
        return self._text


Source = File | Text


def unreadable(path: str, error: Exception) -> errors.AccessError:
    told = getattr(error, "strerror", None) or str(error)
    return errors.AccessError(
        path, f"cannot be read: {told}", "check that it exists and that this user may read it"
    )
