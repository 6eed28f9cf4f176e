"""Verify a pod's grant; resize a running pod's shares.

A pod's grant, as far as it can be believed (D14).
Whoever may patch pods can rewrite annotations, so a grant counts only with the scheduler's code
over pod, node and devices. What is read here is frozen in the ledger at first sight; later only a
signed resize changes it, within the same cards.

Changing a running pod's share (D14): the only way in which a frozen grant changes.
A signed `hami.io/vgpu-resize` is checked against the ledger like a new grant; then the policy's
generation rises, and the processes in the container take the new limits over. A container that has
a whole card runs without the limiter, so it cannot become a share, nor the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import NoReturn, Protocol

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.errors import AgentError, RefusalError
from hami.agent.pods import NodePods
from hami.kube.events import EventRecorder
from hami.node.ledger_record import ContainerRecord, LedgerRecord
from hami.vendors.table import ResourceNames
from hami.wire import annotation_keys, errors, quantity, shares, signature, text_values
from hami.wire.objects import Container, Pod
from hami.wire.shares import PodShares, align

_SWITCH = "CUDA_DISABLE_CONTROL"
_LOW = 1


class Keys(Protocol):
    def keys(self) -> signature.GrantKeys: ...


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

    def record_of(self, pod: Pod, *, now: float) -> LedgerRecord:
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
            slots = shares.decode(devices, what=f"{what}, {annotation_keys.SIGNED_DEVICES}")
        except errors.WireError as error:
            raise RefusalError(what, str(error), "delete the pod to have it placed anew") from error
        if not mac:
            # HAMi's scheduler leaves out the slots of containers without a card.
            slots = align(slots, [self._count(container) for _, container in pod.containers()])
            devices = shares.encode(slots)
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
        return LedgerRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            devices=devices,
            mac=mac,
            containers=containers,
            created=now,
        )

    def resize_of(self, pod: Pod, record: LedgerRecord) -> str:
        """Return the pod's new share if it asks for one, else an empty text."""
        devices = pod.annotation(annotation_keys.RESIZE)
        if not devices or devices == record.resize:
            return ""
        what = f"pod {pod.namespace}/{pod.name}, {annotation_keys.RESIZE}"
        mac = pod.annotation(annotation_keys.RESIZE_MAC)
        about = signature.resize(devices)
        self._verify(what, annotation_keys.RESIZE_MAC, mac, uid=pod.uid, devices=about)
        try:
            new = shares.decode(devices, what=what)
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
        if not signature.verify(self._keys.keys(), mac, uid=uid, node=self._node, devices=devices):
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


def _cards(slots: PodShares) -> list[list[str]]:
    cards = [[grant.card for grant in slot] for slot in slots]
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
                return text_values.parse_bool(variable.value or "", what=_SWITCH)
            except errors.WireError:
                return False
    return False


_log = logging.getLogger(__name__)

RESIZED, REFUSED = "GPUShareResized", "GPUResizeRefused"

Limited = Callable[[tuple[shares.Share, ...]], bool]
"""Whether a container with these grants runs under the limiter."""


class Resizing:
    def __init__(
        self,
        pods: NodePods,
        grants: Grants,
        shares: Allocator,
        events: EventRecorder,
        *,
        limited: Limited,
    ) -> None:
        self._pods = pods
        self._grants = grants
        self._shares = shares
        self._events = events
        self._limited = limited
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        #: By pod UID, what was refused last (share and code): said once.
        self._refused: dict[str, tuple[str, str]] = {}
        pods.add_handler(self._notice)

    def _notice(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._refused.pop(old.uid, None)
        elif new.annotation(annotation_keys.RESIZE):
            self.remind(new.uid)

    def remind(self, uid: str) -> None:
        """Look at a pod although it has not changed."""
        self._waiting.put_nowait(uid)

    async def run(self) -> NoReturn:
        while True:
            await self.look(await self._waiting.get())

    async def look(self, uid: str) -> None:
        """Take over what the pod asks for, if it asks and may."""
        pod, record = self._pods.find(uid), self._shares.ledger.get(uid)
        if pod is None or record is None:
            return
        wanted = (
            pod.annotation(annotation_keys.RESIZE),
            pod.annotation(annotation_keys.RESIZE_MAC),
        )
        if self._refused.get(uid) == wanted:
            return
        try:
            devices = self._grants.resize_of(pod, record)
            if not devices:
                return
            resized = await self._shares.admit(uid, lambda now: self._resized(now, devices))
            await self._lay_out(resized, before=record.resize)
        except AgentError as error:
            self._refused[uid] = wanted
            _log.warning("a resize is refused", extra={"uid": uid, "error": str(error)})
            self._say(pod, REFUSED, str(error), type="Warning")
        else:
            self._refused.pop(uid, None)
            _log.info("a share was resized", extra={"uid": uid, "devices": devices})
            self._say(pod, RESIZED, f"generation {resized.generation}: {devices}")

    async def _lay_out(self, record: LedgerRecord, *, before: str) -> None:
        """Write the new limits; if they cannot be written, the ledger has the old ones again."""
        try:
            for token in record.tokens:
                self._shares.prepare(record, token)
        except RefusalError:
            await self._shares.change(
                record.uid,
                lambda now: msgspec.structs.replace(
                    now, resize=before, generation=now.generation + 1
                ),
            )
            for token in record.tokens:
                with contextlib.suppress(RefusalError):
                    self._shares.prepare(record, token)
            raise

    def _resized(self, record: LedgerRecord | None, devices: str) -> LedgerRecord:
        if record is None:
            raise RefusalError("resize", "the pod has given its cards back meanwhile")
        resized = msgspec.structs.replace(record, resize=devices, generation=record.generation + 1)
        for slot, container in enumerate(record.containers):
            old, new = record.grants_of(slot), resized.grants_of(slot)
            if old and not container.exempt and self._limited(old) != self._limited(new):
                raise RefusalError(
                    f"container {container.name} of pod {record.namespace}/{record.name}",
                    "would change between a share and a whole card, which needs another start",
                    "make a new pod",
                )
        return resized

    def _say(self, pod: Pod, reason: str, message: str, *, type: str = "Normal") -> None:  # noqa: A002 - the event's word
        self._events.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=type,
            reason=reason,
            message=message,
        )
