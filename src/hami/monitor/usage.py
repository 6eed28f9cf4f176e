"""Usage of containers by card, from their state files.

`hami.node.state_reading` reads the files; here they are added up by container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.monitor.containers import Container, Unreadable
from hami.node.layout import NodeLayout
from hami.node.state_reading import read_state
from hami.wire.state_file import State


class CardUsage(msgspec.Struct, kw_only=True):
    """One container's usage of one card, in bytes; None: the library does not report it."""

    used: int = 0
    context: int = 0
    module: int | None = None
    data: int = 0
    offset: int | None = None
    #: Percent, as the library in the container measured it.
    compute: int | None = None
    #: The limit that the library enforces, which need not be whole MiB as in the share; 0 is none.
    limit: int | None = None


class ContainerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One container's usage, added up over its living processes."""

    #: By UUID; a card that is missing is not in use.
    cards: Mapping[str, CardUsage]
    #: Unix seconds; 0: none seen.
    last_kernel_time: int
    #: Living processes, as the container sees them.
    pids: frozenset[int]


class UsageReader:
    """Reads the state files of containers."""

    def __init__(self, layout: NodeLayout, unreadable: Unreadable) -> None:
        self._layout = layout
        self._unreadable = unreadable

    def usage(self, container: Container) -> ContainerUsage | None:
        """Return the usage of a container; None: it is not known."""
        states, _ = self._states(container)
        return sum_of(states) if states else None

    def living_pids(self, container: Container) -> frozenset[int] | None:
        """Return the pids of living processes in its state files; None: not known.

        A container can break its state file: then none of its processes counts as managed. It
        cannot delete the file: where that is missing, the node is at fault.
        """
        states, broken = self._states(container)
        return sum_of(states).pids if states or broken else None

    def report_missing(self, container: Container) -> None:
        """Report that a container runs whose state file the monitor does not see."""
        self._unreadable.report(
            _subject(container),
            "missing",
            f"no file below {self._layout.states}; mount --run-dir into the monitor with "
            "mountPropagation: HostToContainer, as the chart does",
        )

    def _states(self, container: Container) -> tuple[list[State], bool]:
        """Return the states of a container, and True if one of them cannot be read."""
        states: list[State] = []
        ids = container.allocation_ids if container.limited else ()
        absent = 0
        for allocation_id in ids:
            with self._unreadable.concerning(_subject(container)):
                state = read_state(self._layout.state(allocation_id))
                if state is None:
                    absent += 1
                else:
                    states.append(state)
        return states, len(states) + absent < len(ids)


def sum_of(states: Iterable[State]) -> ContainerUsage:
    """Add up the states of one container; their processes are those that live."""
    cards: dict[str, CardUsage] = {}
    last, pids = 0, set()
    for state in states:
        # A tenant may repeat a card: the first counts.
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
    return ContainerUsage(cards=cards, last_kernel_time=last, pids=frozenset(pids))


def _subject(container: Container) -> str:
    return f"state of {container.namespace}/{container.pod} {container.key.container}"
