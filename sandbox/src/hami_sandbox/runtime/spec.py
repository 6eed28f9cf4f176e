"""A container as kubelet orders it, its state, and images by name.

Plain data, kept on disk as JSON. There are no images: every container has the machine's own
programs. But a pod names an image, and may leave the command to it.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """A file or folder of the machine, and where the container has it."""

    host: str
    container: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container as kubelet orders it."""

    #: The runtime's id; becomes the name of a folder.
    id: str
    pod_uid: str
    namespace: str
    pod_name: str
    name: str
    #: How often it was started before in this pod.
    attempt: int = 0
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    #: Made if it is not there; empty: the root.
    working_dir: str = ""
    #: Where its output goes, in CRI's format. kubelet's: it stays when the container is removed.
    log: str
    #: Full names, as in hami.io/vgpu=<allocation id>.
    cdi_devices: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Phase(enum.StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a container."""

    spec: ContainerSpec
    phase: Phase
    #: Pid of its first process on the machine; 0: it has none.
    pid: int = 0
    #: Unix seconds; 0.0: not yet.
    created_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    #: As in a shell: 128 and the signal's number, if a signal ended it.
    exit_code: int = 0
    signal: int = 0
    #: Why it ended, where the exit code is not the program's own: StartError, as containerd says.
    reason: str = ""
    message: str = ""


class Isolation(enum.StrEnum):
    """How a container is isolated."""

    #: A user and mount namespace with a root of its own.
    NAMESPACES = "namespaces"
    #: Nothing but paths in its environment.
    ENVIRONMENT = "environment"


#: Programs by an image's last name, without registry, tag and digest; a pod's `args` follow.
PROGRAMS: Final = {"pause": ("sleep", "infinity"), "probe": ("probe",), "gpu-work": ("gpu-work",)}
#: Default commands by the same name; a pod's `args` replace them.
COMMANDS: Final = {
    "busybox": ("sh",),
    "alpine": ("sh",),
    "debian": ("bash",),
    "ubuntu": ("bash",),
    "python": ("python3",),
}

_TAG = re.compile(r"(?::[\w][\w.-]{0,127})?(?:@[\w.:+-]+)?$", re.ASCII)


def name(image: str) -> str:
    """Return the last name of an image: `registry.example/team/probe:dev` is `probe`."""
    return _TAG.sub("", image.rpartition("/")[2], count=1)


def argv(image: str, command: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a container's argv, by Kubernetes' rules; empty: neither pod nor image has one."""
    program = command or PROGRAMS.get(name(image), ())
    if args:
        return (*program, *args)
    return program or COMMANDS.get(name(image), ())
