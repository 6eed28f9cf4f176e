"""Map device ids to a container: PreStart names ids and nothing else.

kubelet's checkpoint knows pod UID, container and our own answer with its allocation id, for init
containers too. PodResources knows less (no UIDs, no plain init containers) but comes from kubelet's
memory: where both know the ids and name different pods, the start is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from hami.agent.errors import RefusalError
from hami.agent.kubelet import checkpoint, kubelet_api
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.kubelet.kubelet_api import PodResourcesError
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord

_log = logging.getLogger(__name__)

Holders = Mapping[str, frozenset[tuple[str, str, str]]]
"""By device id: namespace, pod and container of all that hold it, by kubelet's memory."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One container's allocation, as kubelet's checkpoint has it."""

    allocation_id: str
    container: str
    device_ids: frozenset[str]
    #: True: our answer names a CDI device. False: it carries mounts and environment itself.
    cdi: bool


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds a set of device ids, with every container of it that does.

    No container: another agent, such as HAMi's, gave the ids to the pod.
    """

    uid: str
    held: tuple[Held, ...]


class Identity:
    """Reads kubelet's checkpoint and, as a second opinion, its PodResources."""

    def __init__(self, layout: NodeLayout, resource: str) -> None:
        self._layout = layout
        self._resource = resource
        self._asking: asyncio.Task[Holders | None] | None = None
        #: Whether the last failure of PodResources was logged.
        self._complained = False

    def claim(self, device_ids: frozenset[str]) -> Claim:
        """Return the pod that holds exactly these ids; CheckpointError: the file is unreadable."""
        found: dict[str, list[Held]] = {}
        foreign: set[str] = set()
        for entry in checkpoint.read(self._layout.checkpoint).entries:
            if entry.resource != self._resource or entry.device_ids != device_ids:
                continue
            response = entry.response()
            allocation_id = checkpoint.allocation_id_of(response)
            if allocation_id is None:
                foreign.add(entry.pod_uid)
                continue
            held = Held(
                allocation_id=allocation_id,
                container=entry.container,
                device_ids=entry.device_ids,
                cdi=bool(response.cdi_devices),
            )
            found.setdefault(entry.pod_uid, []).append(held)
        if not found and len(foreign) == 1:
            return Claim(uid=foreign.pop(), held=())
        if len(found) != 1:
            ids = ", ".join(sorted(device_ids))
            owners = " and ".join(sorted(found)) or "no pod"
            raise RefusalError(
                f"{self._resource} {ids}",
                f"kubelet's checkpoint gives it, by an answer of hami's, to {owners}",
                "exactly one pod must hold it; kubelet tries again; if this stays, delete the pod",
            )
        ((uid, held_by),) = found.items()
        return Claim(uid=uid, held=tuple(held_by))

    async def claim_of_known(
        self, device_ids: frozenset[str], records: Iterable[LedgerRecord]
    ) -> Claim | None:
        """Return the pod that holds these ids by the ledger, where kubelet's file is unreadable.

        kubelet's memory must not contradict. None: it is not certain.
        """
        candidates = []
        for record in records:
            held = tuple(
                Held(
                    allocation_id=allocation.allocation_id,
                    container=allocation.container,
                    device_ids=device_ids,
                    cdi=allocation.cdi,
                )
                for allocation in record.allocations
                if frozenset(allocation.device_ids) == device_ids
            )
            if held:
                candidates.append((record, Claim(uid=record.uid, held=held)))
        holders = await self._holders() or {}
        owners = {(space, pod) for id_ in device_ids for space, pod, _ in holders.get(id_, ())}
        if owners:
            candidates = [
                (record, claim)
                for record, claim in candidates
                if owners == {(record.namespace, record.name)}
            ]
        return candidates[0][1] if len(candidates) == 1 else None

    async def cross_check(self, device_ids: frozenset[str], *, namespace: str, name: str) -> None:
        """Refuse if the ids are another pod's by kubelet's memory."""
        # A question that was under way already may be older than the allocation.
        for ask in (self._holders, self._ask):
            others = _others(await ask() or {}, device_ids, (namespace, name))
            if not others:
                return
        raise RefusalError(
            f"{self._resource} {', '.join(sorted(device_ids))}",
            f"kubelet's checkpoint gives it to pod {namespace}/{name}, its PodResources to "
            f"{', '.join(others)}",
            "kubelet tries again; restart kubelet if this does not end",
        )

    async def _holders(self) -> Holders | None:
        """Ask kubelet; concurrent starts share one answer. None: it does not answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Holders | None:
        try:
            holders = await kubelet_api.holders(self._layout.pod_resources_socket, self._resource)
        except PodResourcesError as error:
            if not self._complained:
                self._complained = True
                _log.warning(
                    "cannot read kubelet's PodResources; using its checkpoint alone",
                    extra={"error": str(error)},
                )
            return None
        self._complained = False
        return holders


def _others(holders: Holders, device_ids: frozenset[str], wanted: tuple[str, str]) -> list[str]:
    """Return the pods that hold one of the ids, where the wanted pod does not hold it."""
    found: set[str] = set()
    for device_id in device_ids:
        owners = {(space, pod) for space, pod, _ in holders.get(device_id, ())}
        if wanted not in owners:
            found |= {"/".join(owner) for owner in owners}
    return sorted(found)


__all__ = ["CheckpointError", "Claim", "Held", "Identity"]
