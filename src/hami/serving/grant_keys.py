"""The keys that sign grants, from a mounted Secret that may change at any time.

`current` signs; readers also accept `previous`, during a rotation. The folder is read again when a
file in it has changed. If it cannot be read while it is being swapped, the known keys stay in use.
At start that is an error, because agents start no container without a signed grant.
"""

from __future__ import annotations

import logging
import pathlib

from hami.wire import errors, signature

_log = logging.getLogger(__name__)

CURRENT, PREVIOUS = "current", "previous"


class GrantKeyError(Exception):
    """The keys cannot be read; names the file, the reason and the remedy."""


class KeyFolder:
    """The keys of a folder, read again after each change."""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)
        self._stamp = self._current_stamp()
        self._keys = self._read()

    def keys(self) -> signature.GrantKeys:
        """Return the keys as they are now."""
        stamp = self._current_stamp()
        if stamp != self._stamp:
            try:
                self._keys = self._read()
            except GrantKeyError as error:
                _log.warning(
                    "changed grant keys cannot be read, the previous ones stay in use",
                    extra={"error": str(error)},
                )
            else:
                self._stamp = stamp
        return self._keys

    def _current_stamp(self) -> tuple[object, ...]:
        return tuple(self._stamp_of(self._folder / name) for name in (CURRENT, PREVIOUS))

    @staticmethod
    def _stamp_of(path: pathlib.Path) -> object:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> signature.GrantKeys:
        current = self._read_file(CURRENT)
        if current is None:
            raise GrantKeyError(
                f"grant keys: {self._folder / CURRENT} does not exist; mount the Secret with the "
                "keys there (32 random bytes each), name its folder with --grant-key-dir, or "
                "turn signing off with --grant-key-dir= if your agents do not require it"
            )
        try:
            return signature.GrantKeys(current, self._read_file(PREVIOUS) or None)
        except errors.WireError as error:
            raise GrantKeyError(f"{self._folder}: {error}") from error

    def _read_file(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise GrantKeyError(
                f"grant keys: {self._folder / name} cannot be read: {error.strerror}; "
                "check the mount and its permissions"
            ) from error
