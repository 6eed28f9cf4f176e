"""Whether this node can bind late (D4), decided from what kubelet and the runtime say.

Late binding names a CDI device whose spec does not exist yet at Allocate. kubelet must hand such
names to the runtime (since 1.29), the runtime must look for specs where we write them, and we must
be able to read kubelet's checkpoint, because it says whose a start is. All of that is proven, not
hoped: where it is not, the node binds under HAMi's lock, and an administrator reads why.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re

from hami.agent.kubelet.checkpoint import CheckpointError, Kind
from hami.agent.kubelet.runtime_status import RuntimeStatus, RuntimeStatusError

AUTO, LATE, LOCK = "auto", "late", "lock"

_FIRST = (1, 29)
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    late: bool
    #: Why not late, or what speaks against it where late is as told; sentences for people.
    reason: str = ""


def decide(
    binding: str,
    *,
    kubelet_version: str,
    runtime: RuntimeStatus | RuntimeStatusError,
    cdi_dir: str,
    checkpoint_error: CheckpointError | None = None,
) -> Mode:
    """Return how containers get their cards; `binding` is the setting."""
    if binding == LOCK:
        return Mode(late=False, reason="--binding=lock says so; set auto to bind late if possible.")
    doubts = [
        doubt
        for doubt in (
            _kubelet(kubelet_version),
            _runtime(runtime, cdi_dir),
            checkpoint_doubt(checkpoint_error),
        )
        if doubt
    ]
    return Mode(late=binding == LATE or not doubts, reason=" ".join(doubts))


def _kubelet(version: str) -> str:
    found = _VERSION.match(version)
    if found is None:
        return (
            f"kubelet's version {version!r} on the node object cannot be read, and only v1.29 and "
            "newer hand CDI names to the runtime; set --binding=late if yours does."
        )
    if (int(found[1]), int(found[2])) < _FIRST:
        return (
            f"kubelet {version} is older than v1.29, which is the first to hand CDI names to the "
            "runtime; update kubelet."
        )
    return ""


def _runtime(runtime: RuntimeStatus | RuntimeStatusError, cdi_dir: str) -> str:
    if isinstance(runtime, RuntimeStatusError):
        return f"It is not known whether the container runtime supports CDI: {runtime}."
    if runtime.cdi_disabled:
        return (
            f"{runtime} says that CDI is off (enableCDI: false); set enable_cdi = true in the CRI "
            "plugin's part of its configuration and restart it."
        )
    if not runtime.cdi_dirs:
        remedy = (
            "containerd has CDI since 1.7; update it."
            if runtime.name == "containerd"
            else f"if you know that it reads {cdi_dir}, set --binding=late."
        )
        return (
            f"{runtime} does not say where it looks for CDI specs (no cdiSpecDirs in its status); "
            f"{remedy}"
        )
    if _plain(cdi_dir) not in {_plain(folder) for folder in runtime.cdi_dirs}:
        return (
            f"{runtime} looks for CDI specs in {', '.join(runtime.cdi_dirs)}, but we write ours to "
            f"{cdi_dir}; set --cdi-dir to one of those, or add ours to its cdi_spec_dirs."
        )
    return ""


def checkpoint_doubt(error: CheckpointError | None) -> str:
    """Tell what an unreadable checkpoint means for late binding; empty: nothing."""
    # kubelet writes its first when a plugin has registered; no file yet is no doubt.
    if error is None or error.kind not in (Kind.UNREADABLE, Kind.SHAPE):
        return ""
    return f"Nothing says whose a start is: {error}."


def _plain(folder: str) -> str:
    """Write a folder in one way: /var/run is a link to /run wherever CDI is at home."""
    folder = posixpath.normpath(folder)
    if folder == "/var/run" or folder.startswith("/var/run/"):
        return folder.removeprefix("/var")
    return folder
