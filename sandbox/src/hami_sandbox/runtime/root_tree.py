"""A container's root as a tree: own folders, and the machine's between them.

A mount point may be where the machine has no folder, for example below /usr/lib. The folders on
the way to it are opened: the container has a folder of its own there, with everything that the
machine has in it, and one more entry.

Pure but for reading the machine's folders. Standard library only: every shim loads this.
"""

# ruff: noqa: PTH115, PTH116 - pathlib costs 10 ms of every start

from __future__ import annotations

import errno
import os
import posixpath
import stat

_MOST_LINKS = 40


class Folder:
    """A folder of the container's own."""

    __slots__ = ("entries", "mode")

    def __init__(self, mode: int = 0o755) -> None:
        self.entries: dict[str, Node] = {}
        self.mode = mode


class Link:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class File:
    __slots__ = ("content", "mode")

    def __init__(self, content: str, mode: int = 0o644) -> None:
        self.content = content
        self.mode = mode


class Machine:
    """A file or folder of the machine as it is, read-only; `base` is what was laid out of it."""

    __slots__ = ("base", "path")

    def __init__(self, path: str, base: str = "") -> None:
        self.path = path
        self.base = base or path


class Shadow:
    """A file of the machine, in a folder that was opened."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


class Bound:
    """A file or folder that was asked for, with the attributes of its mount."""

    __slots__ = ("attributes", "path")

    def __init__(self, path: str, attributes: int = 0) -> None:
        self.path = path
        self.attributes = attributes


Node = Folder | Link | File | Machine | Shadow | Bound


class Tree:
    """Without `mounting` nothing can be put into a folder that was asked for: it is opened too."""

    def __init__(self, *, mounting: bool = True) -> None:
        self.root = Folder()
        self._mounting = mounting
        #: The bases of folders that were opened.
        self.opened: set[str] = set()
        #: What goes into folders that were asked for themselves: place, and what it is.
        self.nested: list[tuple[str, Bound]] = []

    def lay(self, path: str, node: Node) -> None:
        """Put a node at an absolute path; OSError says why that cannot be."""
        walk = _Walk(path)
        folder = self.root
        while True:
            name = walk.next()
            found = folder.entries.get(name)
            if isinstance(found, Link):
                walk.follow(found.text)
                folder = self.root
            elif walk.at_end:
                folder.entries[name] = node
                return
            elif found is None:
                opened = folder.entries[name] = Folder()
                folder = opened
            elif isinstance(found, Folder):
                folder = found
            elif _is_folder(found) and isinstance(found, Machine):
                opened = folder.entries[name] = self._open(found)
                folder = opened
            elif _is_folder(found) and isinstance(found, Bound) and not self._mounting:
                opened = folder.entries[name] = self._open(Machine(found.path))
                folder = opened
            elif _is_folder(found) and isinstance(node, Bound):
                self.nested.append((walk.path, node))
                return
            else:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def shows(self, path: str) -> bool:
        """Tell whether the machine's own file or folder of this path is seen at it."""
        walk = _Walk(path)
        folder = self.root
        while True:
            found = folder.entries.get(walk.next())
            if isinstance(found, Link):
                walk.follow(found.text)
                folder = self.root
            elif isinstance(found, Machine):
                return True
            elif walk.at_end or not isinstance(found, Folder):
                return isinstance(found, Shadow)
            else:
                folder = found

    def _open(self, folder: Machine) -> Folder:
        """Return a folder of our own with all that the machine's has."""
        opened = Folder()
        self.opened.add(folder.base)
        with os.scandir(folder.path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    node: Node = Link(os.readlink(entry.path))
                elif entry.is_dir():
                    node = Machine(entry.path, folder.base)
                else:
                    node = Shadow(entry.path)
                opened.entries[entry.name] = node
        return opened


def _is_folder(node: Node) -> bool:
    return isinstance(node, Bound | Machine) and stat.S_ISDIR(os.stat(node.path).st_mode)


class _Walk:
    """The names of a path one after the other, with links put in where they are met."""

    def __init__(self, path: str) -> None:
        if not path.startswith("/"):
            raise OSError(errno.EINVAL, "the path is not absolute", path)
        self._asked = path
        self._links = 0
        self._set(path)

    def _set(self, path: str) -> None:
        self.path = posixpath.normpath(path)
        if self.path.startswith("//"):
            self.path = self.path[1:]
        self._names = self.path[1:].split("/")
        self._at = 0
        if self.path == "/":
            raise OSError(errno.EBUSY, "the root itself is no place for a mount", self._asked)

    def next(self) -> str:
        self._at += 1
        return self._names[self._at - 1]

    @property
    def at_end(self) -> bool:
        return self._at == len(self._names)

    def follow(self, text: str) -> None:
        """Go on from the root, with a link's text in the place of its name."""
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._asked)
        before = "/" + "/".join(self._names[: self._at - 1])
        rest = self._names[self._at :]
        self._set(posixpath.join(before, text, *rest))
