"""A node's files seen from outside, through a folder such as /proc/<pid>/root.

A link with an absolute target (/var/run -> /run) would lead from there into our own root, so links
are followed by hand, within the node.
"""

from __future__ import annotations

import pathlib

MOST_LINKS = 40


def inside(root: pathlib.Path, seen: str) -> pathlib.Path:
    """Return where the path that a node calls `seen` is for us; it need not exist."""
    todo = [part for part in pathlib.PurePosixPath(seen).parts if part != "/"]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            done = done[:-1]
            continue
        here = root.joinpath(*done, part)
        if not here.is_symlink():
            done.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(f"{seen} under {root} has more than {MOST_LINKS} links in a row")
        target = here.readlink()
        if target.is_absolute():
            done = []
        todo = [one for one in target.parts if one != "/"] + todo
    return root.joinpath(*done)
