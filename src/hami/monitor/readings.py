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
        if not container.limited:
            return None
        states = []
        for token in container.tokens:
            with self._unreadable.concerning(
                f"state of {container.namespace}/{container.pod} {container.key.container}"
            ):
                state = state_file.read(self._layout.state(token))
                if state is not None:
                    states.append(state)
        return use.of_states(states) if states else None

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
