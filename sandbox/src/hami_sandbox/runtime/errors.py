"""What can go wrong with a container, in containerd's words: kubelet passes them on."""

from __future__ import annotations

from collections.abc import Iterable

from hami_sandbox.runtime import records


class ContainerError(Exception):
    """The runtime cannot do what was asked of it."""


class UnknownContainerError(ContainerError):
    """There is no container of this id."""

    def __init__(self, container: str) -> None:
        super().__init__(f'container "{container}": not found')


class UnresolvableError(ContainerError):
    """CDI devices that no spec describes now."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"failed to inject CDI devices: unresolvable CDI devices {', '.join(self.names)}"
        )


class StartError(ContainerError):
    """The container was made, but its first process could not be started."""

    #: What its state then says.
    REASON = records.START_ERROR
