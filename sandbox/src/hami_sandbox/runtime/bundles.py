"""Build the shim's orders: kubelet's spec and CDI's edits as one bundle.

Without namespaces the container's mounts are links in a folder. Programs expect files at the
machine's paths, so every word that names a mounted path is replaced by the path in that folder: in
variables (also lists with colons), in arguments and in the list of preloaded libraries; and
LD_LIBRARY_PATH gets the folders in which libraries are mounted. A path that is compiled into a
program stays the machine's. libvgpu has such paths: its place is taken by the build that finds the
agent's files beside itself.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami.agent.containers import library
from hami.node import layout
from hami_sandbox.runtime import kernel, launch, programs
from hami_sandbox.runtime.cdi import Edits
from hami_sandbox.runtime.records import MARK, Bundle
from hami_sandbox.runtime.spec import ContainerSpec

PRELOAD_FILE = "/etc/ld.so.preload"
_PRELOAD, _LIBRARIES = "LD_PRELOAD", "LD_LIBRARY_PATH"
_PATH = "PATH"
#: The name under which the stand-in driver records allocations.
_OWNER = "FAKEGPU_OWNER"

#: The machine's path, the container's, attributes of the mount.
Mounts = Sequence[tuple[str, str, int]]


def make(
    spec: ContainerSpec, edits: Edits, *, namespaces: bool, root: str, bin_folder: Path
) -> Bundle:
    """Return the shim's orders; without namespaces the container's root is a folder of links."""
    mounts = _mounts(spec, edits)
    env = {
        _PATH: launch.DEFAULT_PATH,
        "HOSTNAME": spec.pod_name,
        "HOME": "/root" if namespaces else root,
        _OWNER: f"{spec.pod_uid}/{spec.name}",
        **spec.env,
        **edits.env,
        MARK: spec.id,
    }
    argv, working_dir = list(spec.argv), spec.working_dir
    if not namespaces:
        mounts, moved = with_own_library(mounts)
        paths = Paths(root, mounts, moved)
        env, argv = paths.env(env), paths.argv(argv)
        env[_PATH] = f"{bin_folder}:{env[_PATH]}"
        working_dir = paths.folder(working_dir)
    return Bundle(
        namespaces=namespaces,
        argv=argv,
        env=env,
        mounts=mounts,
        working_dir=working_dir,
        log=spec.log,
        hostname=spec.pod_name,
        needed=programs.needed(),
        programs=str(bin_folder),
    )


def _mounts(spec: ContainerSpec, edits: Edits) -> list[tuple[str, str, int]]:
    """Return the mounts in the order in which they are made: those below others after them."""
    asked = [
        (mount.host, mount.container, kernel.READ_ONLY if mount.read_only else 0)
        for mount in spec.mounts
    ]
    by_place = {
        posixpath.normpath(place): (host, posixpath.normpath(place), attributes)
        for host, place, attributes in (*asked, *edits.mounts)
    }
    return sorted(by_place.values(), key=lambda mount: mount[1].count("/"))


def with_own_library(mounts: Mounts) -> tuple[list[tuple[str, str, int]], dict[str, str]]:
    """Return the mounts with our build of libvgpu beside the agent's files, and its old places."""
    found, moved = [], {}
    for host, place, attributes in mounts:
        if posixpath.basename(host) == library.NAME:
            moved[place] = f"{layout.SHARE}/{library.NAME}"
            found.append((str(programs.library_beside()), moved[place], attributes))
        else:
            found.append((host, place, attributes))
    return found, moved


class Paths:
    """Where the container's paths really are: `root` is the folder of links."""

    def __init__(self, root: str, mounts: Mounts, moved: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._mounts = mounts
        self._moved = moved or {}
        self._places = {posixpath.normpath(place) for _, place, _ in mounts}

    def mapped(self, word: str) -> str:
        """Return a path's place in the folder; another word stays."""
        if not word.startswith("/"):
            return word
        path = posixpath.normpath(word)
        path = self._moved.get(path, path)
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
