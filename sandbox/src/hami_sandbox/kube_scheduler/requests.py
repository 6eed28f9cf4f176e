"""How much of everything a pod takes on a node: whole numbers, cpu in thousandths."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from hami.wire import codec, objects, quantity

Amounts = dict[str, int]

CPU, MEMORY, PODS = "cpu", "memory", "pods"


class Port(codec.Object, frozen=True):
    host_port: int | None = None
    protocol: str | None = None


class Container(objects.Container, frozen=True):
    ports: tuple[Port, ...] | None = None


class PodResources(codec.Object, frozen=True):
    """What kube-scheduler looks at: containers, what the runtime class adds, the pod as a whole."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, objects.Amount] | None = None
    resources: objects.Resources | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every resource that a container names."""
        return frozenset(
            name
            for container in self._all()
            if container.resources is not None
            for amounts in (container.resources.requests, container.resources.limits)
            for name in amounts or ()
        )

    @property
    def ports(self) -> frozenset[str]:
        """The ports of the node itself that its containers take."""
        return frozenset(
            f"{port.protocol or 'TCP'}:{port.host_port}"
            for container in self.containers or ()
            for port in container.ports or ()
            if port.host_port
        )

    def _all(self) -> Iterable[Container]:
        yield from self.containers or ()
        yield from self.init_containers or ()

    def requests(self) -> Amounts:
        """Return what a node must have free.

        Containers run together; init containers before, one after the other, but beside the
        sidecars that were started until then.
        """
        together: Amounts = {}
        for container in self.containers or ():
            _add(together, _of(container.resources))
        sidecars: Amounts = {}
        most: Amounts = {}
        for container in self.init_containers or ():
            own = _of(container.resources)
            if container.restart_policy == "Always":
                _add(together, own)
                _add(sidecars, own)
                _raise(most, sidecars)
            else:
                _add(own, sidecars)
                _raise(most, own)
        _raise(together, most)
        together.update(_of(self.resources))
        _add(together, amounts(self.overhead))
        return together


def amounts(given: Mapping[str, objects.Amount | None] | None) -> Amounts:
    return {
        name: _whole(amount, cpu=name == CPU)
        for name, amount in (given or {}).items()
        if amount is not None
    }


def _of(resources: objects.Resources | None) -> Amounts:
    if resources is None:
        return {}
    # A limit without a request is both: the API server writes it so.
    return amounts({**(resources.limits or {}), **(resources.requests or {})})


@functools.lru_cache(4096)
def _whole(amount: objects.Amount, *, cpu: bool) -> int:
    if cpu:
        value = quantity.parse(amount, what="cpu") * 1000
        return -(-value.numerator // value.denominator)
    return quantity.rounded_up(amount, what="amount")


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)
