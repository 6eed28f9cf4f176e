"""A container as kubelet orders it, and as it is now: plain data, kept on disk as JSON."""

from __future__ import annotations

import enum

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """A file or folder of the machine, and where the container has it."""

    host: str
    container: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What kubelet asks for."""

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
    #: Full names, as in hami.io/vgpu=<token>.
    cdi_devices: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Phase(enum.StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """What the disk and the kernel say of a container."""

    spec: ContainerSpec
    phase: Phase
    #: Of its first process, as everybody on the machine sees it; 0: it has none.
    pid: int = 0
    #: Unix seconds; 0.0: not yet.
    created_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    #: As a shell tells it: 128 and the signal's number, if a signal ended it.
    exit_code: int = 0
    signal: int = 0
    #: Why it ended, where the exit code is not the program's own: StartError, as containerd says.
    reason: str = ""
    message: str = ""


class Isolation(enum.StrEnum):
    """What holds a container in its own world."""

    #: A user and mount namespace with a root of its own.
    NAMESPACES = "namespaces"
    #: Nothing but paths in its environment.
    ENVIRONMENT = "environment"
