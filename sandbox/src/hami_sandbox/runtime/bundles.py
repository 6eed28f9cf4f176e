"""What a shim is told: kubelet's order and what CDI adds, made into one list of things to do."""

from __future__ import annotations

import posixpath
from pathlib import Path

from hami_sandbox.runtime import kernel, launch, programs
from hami_sandbox.runtime.cdi import Edits
from hami_sandbox.runtime.environment import Paths
from hami_sandbox.runtime.records import MARK, Bundle
from hami_sandbox.runtime.spec import ContainerSpec

_PATH = "PATH"
#: Under whose name the stand-in driver records what is allocated.
_OWNER = "FAKEGPU_OWNER"


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
        paths = Paths(root, mounts)
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
