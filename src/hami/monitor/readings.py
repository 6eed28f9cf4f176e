"""All containers of the node with what they say of themselves, read anew each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from hami.monitor import hami_files, state_file, use
from hami.monitor.containers import Container, Containers, Key, Share
from hami.monitor.hami_files import Folder
from hami.monitor.hami_region import Region
from hami.monitor.pods import Pods
from hami.monitor.prepared import Prepared
from hami.monitor.unreadable import Unreadable
from hami.monitor.use import Use
from hami.node.layout import NodeLayout
from hami.wire.region import State


class HamiContainer(msgspec.Struct, frozen=True):
    """A container that HAMi's library runs in."""

    folder: Folder
    region: Region


class Readings:
    def __init__(
        self,
        layout: NodeLayout,
        pods: Pods,
        unreadable: Unreadable,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._pods = pods
        self._unreadable = unreadable
        self._prepared = Prepared(layout, unreadable)
        self._now = now

    def prepared(self) -> Containers:
        return self._prepared.look()

    def use(self, container: Container) -> Use | None:
        """Return what its living processes have; None: that is not known."""
        states, _ = self._states(container)
        return use.of_states(states) if states else None

    def living(self, container: Container) -> frozenset[int] | None:
        """Return the pids in its living slots; None: it has no slots, or none that we can see.

        A tenant can break his state, and has no slots then. He cannot take it away: where it is
        missing, that is not his doing.
        """
        states, broken = self._states(container)
        return use.of_states(states).pids if states or broken else None

    def missing(self, container: Container) -> None:
        """Take note that a container runs whose state is not there."""
        self._unreadable.tell(
            _subject(container),
            "missing",
            f"no file below {self._layout.states}; mount --run-dir into the monitor with "
            "mountPropagation: HostToContainer, as the chart does",
        )

    def _states(self, container: Container) -> tuple[list[State], bool]:
        """Read the states of a container, and tell whether there is one that is broken."""
        states: list[State] = []
        tokens = container.tokens if container.limited else ()
        absent = 0
        for token in tokens:
            with self._unreadable.concerning(_subject(container)):
                state = state_file.read(self._layout.state(token))
                if state is None:
                    absent += 1
                else:
                    states.append(state)
        return states, len(states) + absent < len(tokens)

    def hami(self) -> Iterator[HamiContainer]:
        """Yield the containers of HAMi's plugin that have a region and a pod."""
        for folder in hami_files.folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                continue
            with self._unreadable.concerning(f"region {folder.path.name}"):
                path = hami_files.cache_of(folder.path)
                if path is not None:
                    yield HamiContainer(folder, hami_files.read(path))

    def over(self, container: Container) -> bool:
        """Tell whether its series have ended though the ledger still knows it."""
        return self._pods.over(container.key, age=self._now() - container.since / 1e9)

    def named(self, found: HamiContainer) -> Container | None:
        """Give a container of HAMi's the form of ours; None: it has ended."""
        key: Key = found.folder.key
        pod = self._pods.get(key.uid)
        if pod is None or self._pods.over(key, age=0):
            return None
        return Container(
            key=key,
            namespace=pod.namespace,
            pod=pod.name,
            shares=tuple(
                Share(device.uuid, device.limit, device.core_limit)
                for device in found.region.devices
            ),
            tokens=(),
            limited=True,
        )


def _subject(container: Container) -> str:
    return f"state of {container.namespace}/{container.pod} {container.key.container}"
