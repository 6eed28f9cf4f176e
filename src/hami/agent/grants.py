"""A pod's grant, as far as it can be believed (D14).

Whoever may patch pods can rewrite annotations, so a grant counts only with the scheduler's code
over pod, node and devices. What is read here is frozen in the ledger at first sight; later only a
signed resize changes it, within the same cards.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from hami.agent.errors import RefusalError
from hami.cluster.ledger import align
from hami.node.record import ContainerRecord, Record
from hami.vendors.row import ResourceNames
from hami.wire import annotation_keys, errors, go_values, grant, pod_devices, quantity
from hami.wire.objects import Container, Pod
from hami.wire.pod_devices import Slots

_SWITCH = "CUDA_DISABLE_CONTROL"
_LOW = 1


class Keys(Protocol):
    def keys(self) -> grant.GrantKeys: ...


class Grants:
    """Reads grants off pods of one node."""

    def __init__(
        self,
        node: str,
        *,
        resources: ResourceNames,
        keys: Keys | None,
        allow_unsigned: bool,
        uncontrolled: Collection[str],
    ) -> None:
        self._node = node
        self._resources = resources
        self._keys = keys
        #: Whether HAMi's scheduler may have placed a pod. It signs nothing, and resizes nothing.
        self.allow_unsigned = allow_unsigned
        self._uncontrolled = uncontrolled

    def record_of(self, pod: Pod, *, now: float) -> Record:
        """Return what the ledger is to know of a pod; a RefusalError if it has no good grant."""
        what = f"pod {pod.namespace}/{pod.name}"
        if pod.node_name != self._node:
            raise RefusalError(what, f"is on node {pod.node_name!r}, not on {self._node!r}")
        devices = pod.annotation(annotation_keys.SIGNED_DEVICES)
        if not devices:
            raise RefusalError(
                what,
                f"has no {annotation_keys.SIGNED_DEVICES}: no scheduler of ours gave it a card",
                "let it be scheduled by hami (schedulerName), not past it (nodeName)",
            )
        mac = pod.annotation(annotation_keys.GRANT_MAC)
        self._verify(what, annotation_keys.GRANT_MAC, mac, uid=pod.uid, devices=devices)
        try:
            slots = pod_devices.decode(devices, what=f"{what}, {annotation_keys.SIGNED_DEVICES}")
        except errors.WireError as error:
            raise RefusalError(what, str(error), "delete the pod to have it placed anew") from error
        if not mac:
            # HAMi's scheduler leaves out the slots of containers without a card.
            slots = align(slots, [self._count(container) for _, container in pod.containers()])
            devices = pod_devices.encode(slots)
        containers = tuple(
            ContainerRecord(
                name=container.name or "",
                kind=kind,
                priority=self._priority(container),
                exempt=pod.namespace in self._uncontrolled and _asks_for_no_control(container),
            )
            for kind, container in pod.containers()
        )
        if len(slots) > len(containers):
            raise RefusalError(
                what, f"was granted cards for {len(slots)} containers, but has {len(containers)}"
            )
        return Record(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            devices=devices,
            mac=mac,
            containers=containers,
            created=now,
        )

    def resize_of(self, pod: Pod, record: Record) -> str:
        """Return the pod's new share if it asks for one, else an empty text."""
        devices = pod.annotation(annotation_keys.RESIZE)
        if not devices or devices == record.resize:
            return ""
        what = f"pod {pod.namespace}/{pod.name}, {annotation_keys.RESIZE}"
        mac = pod.annotation(annotation_keys.RESIZE_MAC)
        about = grant.resize(devices)
        self._verify(what, annotation_keys.RESIZE_MAC, mac, uid=pod.uid, devices=about)
        try:
            new = pod_devices.decode(devices, what=what)
        except errors.WireError as error:
            raise RefusalError(what, str(error)) from error
        if _cards(new) != _cards(record.slots):
            raise RefusalError(
                what,
                "names other cards than the pod has; a running container keeps its cards",
                "change memory and cores only",
            )
        return devices

    def _verify(self, what: str, key: str, mac: str, *, uid: str, devices: str) -> None:
        unsigned = self.allow_unsigned and key == annotation_keys.GRANT_MAC and not mac
        if self._keys is None or unsigned:
            return
        if not mac:
            raise RefusalError(
                what,
                f"has no {key}: its grant is not signed",
                "let hami's scheduler place it; while HAMi's still does, "
                "run the agents with --allow-unsigned-grants",
            )
        if not grant.verify(self._keys.keys(), mac, uid=uid, node=self._node, devices=devices):
            raise RefusalError(
                what,
                f"its {key} was not made for this pod, node and share by a key that we have",
                "somebody changed the pod's annotations, or scheduler and agent have different "
                "keys (Secret <release>-grant-key); delete the pod to have it placed anew",
            )

    def _priority(self, container: Container) -> int:
        # Admission refuses a pod with a wrong one; what came past it gets nothing for that.
        return _amount(container, self._resources.priority, otherwise=_LOW)

    def _count(self, container: Container) -> int:
        return _amount(container, self._resources.count, otherwise=0)


def _cards(slots: Slots) -> list[list[str]]:
    cards = [[grant.uuid for grant in slot] for slot in slots]
    while cards and not cards[-1]:
        cards.pop()
    return cards


def _amount(container: Container, resource: str, *, otherwise: int) -> int:
    amount = container.amount(resource) if resource else None
    if amount is None:
        return otherwise
    try:
        return quantity.exact_integer(amount, what=resource)
    except errors.WireError:
        return otherwise


def _asks_for_no_control(container: Container) -> bool:
    for variable in container.env or ():
        if variable is not None and variable.name == _SWITCH:
            try:
                return go_values.parse_bool(variable.value or "", what=_SWITCH)
            except errors.WireError:
                return False
    return False
