"""Usage of containers, from their state files.

What a container says that it uses, added up over its living processes. Pure.

A container's state file, as far as it is in use and alive.
Only the beginning that processes have used is read, by offset. A slot counts while its process
holds its lock, which the kernel drops however the process ends; we only ask for locks and never
take one. The file is read until two readings agree, or for a few times: then it is a moment's
picture, whose parts may be an allocation apart.

All containers of the node with what they say of themselves, read anew each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from hami.monitor import hami_containers
from hami.monitor.containers import (
    Container,
    Containers,
    Key,
    Prepared,
    Unreadable,
    UnreadableError,
)
from hami.monitor.hami_containers import Folder
from hami.monitor.pods import Pods
from hami.node import files
from hami.node.layout import NodeLayout
from hami.wire import state_file
from hami.wire.hami_region import Region
from hami.wire.state_file import State


class CardUsage(msgspec.Struct, kw_only=True):
    """Bytes of one card; None: not told apart."""

    used: int = 0
    context: int = 0
    module: int | None = None
    data: int = 0
    offset: int | None = None
    #: Percent, as the library in the container measured it.
    compute: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    #: By UUID; a card that is missing is not in use.
    cards: Mapping[str, CardUsage]
    #: Unix seconds; 0: none seen.
    last_kernel_time: int
    #: Processes that account for what they have, as the container sees them.
    pids: frozenset[int]


def of_states(states: Iterable[State]) -> Usage:
    """Add up states of one container; their slots are those that live."""
    cards: dict[str, CardUsage] = {}
    last, pids = 0, set()
    for state in states:
        # The same card twice is somebody's joke: the first counts.
        indexes = {card.uuid: index for index, card in reversed(list(enumerate(state.cards)))}
        for process in state.processes:
            last = max(last, process.last_kernel_time)
            pids.add(process.pid)
            for uuid, index in indexes.items():
                usage = process.usage[index]
                card = cards.setdefault(uuid, CardUsage())
                total = usage.total
                card.used += total
                card.context += usage.overhead
                card.data += total - usage.overhead
    return Usage(cards=cards, last_kernel_time=last, pids=frozenset(pids))


def of_region(region: Region) -> Usage:
    cards: dict[str, CardUsage] = {}
    for device in region.devices:
        if device.uuid not in cards:
            cards[device.uuid] = CardUsage(
                used=device.used,
                context=device.context,
                module=device.module,
                data=device.data,
                offset=device.offset,
                compute=device.core_used,
            )
    return Usage(cards=cards, last_kernel_time=region.last_kernel_time, pids=region.pids)


_READINGS = 3
#: As the agent makes it: no process has looked for a card yet.
_UNUSED = state_file.State(
    nonce=0,
    boot_id="",
    policy_generation=0,
    unknown_entry_points=0,
    recoveries=0,
    cards=(),
    processes=(),
)


def read(path: Path) -> state_file.State | None:
    """Return the state with its living slots; None where there is no file."""
    try:
        with files.untrusted(path) as (handle, size):
            return _read(handle, size) if size else _UNUSED
    except files.UntrustedFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _read(handle: int, size: int) -> state_file.State:
    if size < state_file.SIZE:
        raise UnreadableError("truncated", f"has {size} bytes of {state_file.SIZE}")
    data = b""
    for _ in range(_READINGS):
        before, data = data, _used_part(handle)
        if data == before:
            break
    return state_file.decode(
        data, file_size=size, alive=lambda index: files.any_held(handle, index, 1)
    )


def _used_part(handle: int) -> bytes:
    head = files.read_at(handle, state_file.HEAD_SIZE, 0)
    if len(head) < state_file.HEAD_SIZE:
        raise UnreadableError("truncated", "was cut off while it was read")
    wanted = state_file.bytes_used(head)
    data = files.read_at(handle, wanted, 0)
    if len(data) < wanted:
        raise UnreadableError("truncated", "was cut off while it was read")
    # More slots may have come into use since: they wait for the next reading.
    return head + data[len(head) :]


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

    def use(self, container: Container) -> Usage | None:
        """Return what its living processes have; None: that is not known."""
        states, _ = self._states(container)
        return of_states(states) if states else None

    def living(self, container: Container) -> frozenset[int] | None:
        """Return the pids in its living slots; None: it has no slots, or none that we can see.

        A tenant can break his state, and has no slots then. He cannot take it away: where it is
        missing, that is not his doing.
        """
        states, broken = self._states(container)
        return of_states(states).pids if states or broken else None

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
                state = read(self._layout.state(token))
                if state is None:
                    absent += 1
                else:
                    states.append(state)
        return states, len(states) + absent < len(tokens)

    def hami(self) -> Iterator[HamiContainer]:
        """Yield the containers of HAMi's plugin that have a region and a pod."""
        for folder in hami_containers.folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                continue
            with self._unreadable.concerning(f"region {folder.path.name}"):
                path = hami_containers.cache_of(folder.path)
                if path is not None:
                    yield HamiContainer(folder, hami_containers.read(path))

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
            shares=tuple(device.share for device in found.region.devices),
            tokens=(),
            limited=True,
        )


def _subject(container: Container) -> str:
    return f"state of {container.namespace}/{container.pod} {container.key.container}"
