"""Verify a pod's grant and a resize of it.

A user who may patch pods can rewrite annotations, so a grant counts only with the scheduler's
signature over pod, node and devices. What is read here is frozen in the ledger when the pod's first
container starts; later only a signed resize changes it, within the same cards. See
docs/designs/002-grants.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from hami.agent.errors import RefusalError
from hami.node.ledger_record import ContainerRecord, LedgerRecord
from hami.serving.grant_keys import Keyring
from hami.vendors.table import ResourceNames
from hami.wire import annotation_keys, errors, grant, quantity, shares, text_values
from hami.wire.objects import Container, Pod
from hami.wire.shares import align

_OURS = annotation_keys.SIGNED_DEVICES
_SWITCH = "CUDA_DISABLE_CONTROL"
_LOW = 1


class Keys(Protocol):
    def keys(self) -> Keyring: ...


class Grants:
    """Reads and verifies the grants of one node's pods."""

    def __init__(
        self,
        node: str,
        *,
        resources: ResourceNames,
        keys: Keys | None,
        allow_unsigned: bool,
        uncontrolled: Collection[str],
        signed: Collection[str] = (annotation_keys.SIGNED_DEVICES,),
    ) -> None:
        self._node = node
        self._resources = resources
        self._keys = keys
        #: Whether HAMi's scheduler may have placed a pod. It signs nothing, and resizes nothing.
        self.allow_unsigned = allow_unsigned
        #: The annotations of device lists, of every vendor.
        self._signed = signed
        #: Namespaces in which a container may turn the limiter off.
        self._uncontrolled = uncontrolled

    def record_of(self, pod: Pod, *, now: float) -> LedgerRecord:
        """Return a new ledger record of a pod; RefusalError if it has no valid grant."""
        what = f"pod {pod.namespace}/{pod.name}"
        if pod.node_name != self._node:
            raise RefusalError(
                what,
                f"is on node {pod.node_name!r}, not on {self._node!r}",
                "delete the pod to reschedule it",
            )
        devices = pod.annotation(annotation_keys.SIGNED_DEVICES)
        if not devices:
            raise RefusalError(
                what,
                f"has no annotation {annotation_keys.SIGNED_DEVICES}: hami's scheduler did not "
                "give it a card",
                "let hami's scheduler place it (schedulerName) and do not set nodeName",
            )
        mac = pod.annotation(annotation_keys.GRANT_MAC)
        signed = grant.of_pod(pod, self._node, self._signed)
        self._verify(what, annotation_keys.GRANT_MAC, mac, signed)
        try:
            granted = shares.decode(devices, what=f"{what}, {annotation_keys.SIGNED_DEVICES}")
        except errors.WireError as error:
            raise RefusalError(what, str(error), "delete the pod to reschedule it") from error
        if not mac:
            # HAMi's scheduler leaves out containers without a card.
            granted = align(granted, [self._count(container) for _, container in pod.containers()])
            devices = shares.encode(granted)
        containers = tuple(
            ContainerRecord(
                name=container.name or "",
                kind=kind,
                priority=self._priority(container),
                exempt=pod.namespace in self._uncontrolled and _asks_for_no_control(container),
            )
            for kind, container in pod.containers()
        )
        if len(granted) > len(containers):
            raise RefusalError(
                what,
                f"was granted cards for {len(granted)} containers, but has {len(containers)}",
                "delete the pod to reschedule it",
            )
        return LedgerRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            devices=devices,
            mac=mac,
            others={key: value for key, value in signed.devices.items() if key != _OURS},
            placements=signed.placements,
            containers=containers,
            created=now,
        )

    def forms(self) -> str:
        """Return the forms and keys that are verified now, for the Node; empty: none."""
        return grant.encode_forms(self._keys.keys().ids()) if self._keys is not None else ""

    def proves(self, record: LedgerRecord) -> bool:
        """Return whether one of the keys has signed the grant that a record holds."""
        if self._keys is None or not record.mac:
            return False
        signed = grant.Grant(
            uid=record.uid,
            node=self._node,
            devices=record.device_lists,
            placements=record.placements,
        )
        return self._keys.keys().verify(record.mac, signed)

    def resize_of(self, pod: Pod, record: LedgerRecord) -> grant.Resize | None:
        """Return the order to resize that a pod has, verified; None: it asks for no change."""
        value = pod.annotation(annotation_keys.RESIZE)
        if not value:
            return None
        what = f"pod {pod.namespace}/{pod.name}, {annotation_keys.RESIZE}"
        try:
            seq, devices = grant.decode_order(value, what=what)
            order = grant.Resize(uid=pod.uid, node=self._node, devices=devices, seq=seq)
            if (seq, devices) == (record.resize_seq, record.resize):
                return None
            self._verify(
                what, annotation_keys.RESIZE_MAC, pod.annotation(annotation_keys.RESIZE_MAC), order
            )
            new = shares.decode(devices, what=what)
        except errors.WireError as error:
            raise RefusalError(what, str(error)) from error
        if seq < record.resize_seq or (seq and seq == record.resize_seq):
            raise RefusalError(
                what,
                f"order {seq} is not newer than order {record.resize_seq}, which was applied",
                "give an order with a higher sequence number",
            )
        if not shares.same_cards(new, record.shares):
            raise RefusalError(
                what,
                "names other cards than the pod has; a running container keeps its cards",
                "change memory and cores only",
            )
        return order

    def _verify(self, what: str, key: str, mac: str, signed: grant.Signed) -> None:
        unsigned = self.allow_unsigned and key == annotation_keys.GRANT_MAC and not mac
        if self._keys is None or unsigned:
            return
        if not mac:
            raise RefusalError(
                what,
                f"has no annotation {key}: its grant is not signed",
                "let hami's scheduler place it; while HAMi's scheduler still places pods, "
                "run the agents with --allow-unsigned-grants",
            )
        if not self._keys.keys().verify(mac, signed):
            raise RefusalError(
                what,
                f"its {key} was not made for this pod, node and share by a key of this agent",
                "the pod's annotations were changed, its form of signature is not accepted any "
                "more, or scheduler and agent have different keys (Secrets "
                "<release>-grant-signing-key and <release>-grant-public-key); delete the pod to "
                "reschedule it",
            )

    def _priority(self, container: Container) -> int:
        # Admission refuses a pod with a wrong one; a pod that evaded it gets the low priority.
        return _amount(container, self._resources.priority, otherwise=_LOW)

    def _count(self, container: Container) -> int:
        return _amount(container, self._resources.count, otherwise=0)


def with_order(record: LedgerRecord, order: grant.Resize) -> LedgerRecord:
    """Return the record after an order to resize: the policy files get a new generation.

    A smaller share releases nothing yet: processes hold what they had until they free it.
    """
    wanted = shares.decode(order.devices, what=annotation_keys.RESIZE)
    larger = shares.larger(record.held, wanted)
    return msgspec.structs.replace(
        record,
        resize=order.devices,
        resize_seq=order.seq,
        unreleased="" if larger == wanted else shares.encode(larger),
        generation=record.generation + 1,
    )


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
                return text_values.parse_bool(variable.value or "", what=_SWITCH)
            except errors.WireError:
                return False
    return False
