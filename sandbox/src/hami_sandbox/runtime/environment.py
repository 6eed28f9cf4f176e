"""A container without namespaces: its mounts are links in a folder, its environment points there.

Programs look where the machine has things, so every word that names a mounted path is turned into
the path in that folder: variables (also lists with colons), arguments, the preloaded library, and
the linker is told of the folders in which libraries were mounted. What a program knows by heart
stays where the machine has it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOAD_FILE = "/etc/ld.so.preload"
_PRELOAD, _LIBRARIES = "LD_PRELOAD", "LD_LIBRARY_PATH"

#: The machine's path, the container's, attributes of the mount.
Mounts = Sequence[tuple[str, str, int]]


class Paths:
    """Where the container's paths really are: `root` is the folder of links."""

    def __init__(self, root: str, mounts: Mounts) -> None:
        self._root = root
        self._mounts = mounts
        self._places = {posixpath.normpath(place) for _, place, _ in mounts}

    def mapped(self, word: str) -> str:
        """Return a path's place in the folder; a word that is no mounted path stays."""
        if not word.startswith("/"):
            return word
        path = posixpath.normpath(word)
        at = path
        while at != "/":
            if at in self._places:
                return self._root + path
            at = posixpath.dirname(at)
        return word

    def folder(self, path: str) -> str:
        """Return a folder to start in: the machine's, if it has one of this name."""
        if not path:
            return self._root
        mapped = self.mapped(path)
        if mapped != path or Path(path).is_dir():
            return mapped
        return self._root + posixpath.normpath(path)

    def argv(self, argv: Sequence[str]) -> list[str]:
        return [self.mapped(word) for word in argv]

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with their paths mapped, and the linker's."""
        found = {
            name: ":".join(self.mapped(part) for part in value.split(":"))
            for name, value in env.items()
        }
        for name, more in ((_PRELOAD, self._preloaded()), (_LIBRARIES, self._library_folders())):
            parts = [*more, *filter(None, found.get(name, "").split(":"))]
            if parts:
                found[name] = ":".join(dict.fromkeys(parts))
        return found

    def _preloaded(self) -> list[str]:
        hosts = [host for host, place, _ in self._mounts if place == PRELOAD_FILE]
        return [self.mapped(word) for host in hosts for word in Path(host).read_text().split()]

    def _library_folders(self) -> list[str]:
        places = (place for _, place, _ in self._mounts if place != PRELOAD_FILE)
        files = (posixpath.split(place) for place in places)
        return [self._root + folder for folder, name in files if ".so" in name]
