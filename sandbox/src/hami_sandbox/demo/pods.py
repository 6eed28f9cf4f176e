"""A pod as the demo looks at it: how far it is, and which cards it was given."""

from __future__ import annotations

from collections.abc import Iterator

from hami.wire import annotation_keys, codec, objects, shares


class Condition(codec.Object, frozen=True):
    type: str | None = None
    status: str | None = None
    message: str | None = None


class Waiting(codec.Object, frozen=True):
    reason: str | None = None
    message: str | None = None


class SeenState(objects.ContainerState, frozen=True):
    waiting: Waiting | None = None


class SeenContainer(objects.ContainerStatus, frozen=True):
    state: SeenState | None = None


class SeenStatus(objects.PodStatus, frozen=True):
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition | None] | None = None
    container_statuses: list[SeenContainer | None] | None = None


class SeenPod(objects.Pod, frozen=True):
    status: SeenStatus | None = None

    @property
    def leaving(self) -> bool:
        return bool(self.metadata and self.metadata.deletion_timestamp)

    @property
    def grants(self) -> tuple[shares.Share, ...]:
        """The cards of all its containers, one after the other."""
        slots, _ = shares.salvage(self.annotation(annotation_keys.SIGNED_DEVICES))
        return tuple(grant for slot in slots for grant in slot)

    @property
    def holds(self) -> bool:
        """Whether its cards are taken: it is on a node and has not ended."""
        return bool(self.node_name) and not self.finished

    def troubles(self) -> str:
        """Say what keeps it from running, in the words of those who wrote it; else nothing."""
        return "; ".join(dict.fromkeys(_troubles(self.status or SeenStatus())))

    def variables(self) -> dict[str, str]:
        """Return the environment that its containers are given, later ones over earlier."""
        found: dict[str, str] = {}
        for _, container in self.containers():
            for variable in container.env or ():
                if variable is not None and variable.name:
                    found[variable.name] = variable.value or ""
        return found


def _troubles(status: SeenStatus) -> Iterator[str]:
    if status.reason or status.message:
        yield ": ".join(part for part in (status.reason, status.message) if part)
    for condition in status.conditions or ():
        if condition and condition.type == "PodScheduled" and condition.status == "False":
            yield condition.message or "no node was found"
    for container in status.container_statuses or ():
        waiting = container and container.state and container.state.waiting
        if waiting and (waiting.message or waiting.reason not in (None, "ContainerCreating")):
            yield ": ".join(part for part in (waiting.reason, waiting.message) if part)
        ended = container and container.state and container.state.terminated
        if ended and ended.exit_code:
            yield f"a container ended with code {ended.exit_code}"
