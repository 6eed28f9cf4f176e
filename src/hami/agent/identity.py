"""Whose device ids these are: kubelet names them and nothing else.

kubelet's checkpoint knows pod UID, container and our own answer with its token, for init containers
too. PodResources knows less (no UIDs, no plain init containers) but comes from kubelet's memory:
where both know the ids and name different pods, nobody starts.
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
"""By device id: namespace, pod and container of those whom kubelet says it belongs to."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One container's answer of ours, as kubelet keeps it."""

    token: str
    container: str
    device_ids: frozenset[str]
    #: Whether it names the token as a CDI device; else it carries its own mounts.
    cdi: bool


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds a set of device ids, with every container of it that does.

    No container: another agent, as HAMi's, gave them to it.
    """

    uid: str
    held: tuple[Held, ...]


class Identity:
    def __init__(self, layout: NodeLayout, resource: str) -> None:
        self._layout = layout
        self._resource = resource
        self._asking: asyncio.Task[Holders | None] | None = None
        self._complained = False

    def claim(self, device_ids: frozenset[str]) -> Claim:
        """Return who holds just these ids; CheckpointError if kubelet's file cannot be read."""
        found: dict[str, list[Held]] = {}
        foreign: set[str] = set()
        for entry in checkpoint.read(self._layout.checkpoint).entries:
            if entry.resource != self._resource or entry.device_ids != device_ids:
                continue
            allocation = entry.allocation()
            token = checkpoint.token_of(allocation)
            if token is None:
                foreign.add(entry.pod_uid)
                continue
            held = Held(
                token=token,
                container=entry.container,
                device_ids=entry.device_ids,
                cdi=bool(allocation.cdi_devices),
            )
            found.setdefault(entry.pod_uid, []).append(held)
        if not found and len(foreign) == 1:
            return Claim(uid=foreign.pop(), held=())
        if len(found) != 1:
            ids = ", ".join(sorted(device_ids))
            owners = " and ".join(sorted(found)) or "no pod"
            raise RefusalError(
                f"{self._resource} {ids}",
                f"kubelet's checkpoint gives it, with a token of ours, to {owners}",
                "exactly one pod must hold it; delete the pod if this stays",
            )
        ((uid, held_by),) = found.items()
        return Claim(uid=uid, held=tuple(held_by))

    async def claim_of_known(
        self, device_ids: frozenset[str], records: Iterable[LedgerRecord]
    ) -> Claim | None:
        """Return who holds these ids by our own ledger, where kubelet's file cannot be read.

        kubelet's memory must not say otherwise. None: it is not certain.
        """
        candidates = []
        for record in records:
            held = tuple(
                Held(
                    token=token.token,
                    container=token.container,
                    device_ids=device_ids,
                    cdi=token.cdi,
                )
                for token in record.tokens
                if frozenset(token.device_ids) == device_ids
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
        """Refuse if kubelet's memory says that the ids are another pod's."""
        # An answer that was under way already may be older than the allocation.
        for ask in (self._holders, self._ask):
            others = _others(await ask() or {}, device_ids, (namespace, name))
            if not others:
                return
        raise RefusalError(
            f"{self._resource} {', '.join(sorted(device_ids))}",
            f"kubelet's checkpoint gives it to pod {namespace}/{name}, its PodResources to "
            f"{', '.join(others)}",
            "restart kubelet if this stays",
        )

    async def _holders(self) -> Holders | None:
        """Ask kubelet; starts at the same time share one answer. None: it does not tell."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Holders | None:
        try:
            told = await kubelet_api.holders(self._layout.pod_resources_socket, self._resource)
        except PodResourcesError as error:
            if not self._complained:
                self._complained = True
                _log.warning(
                    "kubelet's PodResources cannot be asked; its checkpoint alone says whose "
                    "devices are",
                    extra={"error": str(error)},
                )
            return None
        self._complained = False
        return told


def _others(holders: Holders, device_ids: frozenset[str], wanted: tuple[str, str]) -> list[str]:
    """Return the pods that have one of the ids, where the wanted one does not have it."""
    found: set[str] = set()
    for device_id in device_ids:
        owners = {(space, pod) for space, pod, _ in holders.get(device_id, ())}
        if wanted not in owners:
            found |= {"/".join(owner) for owner in owners}
    return sorted(found)


__all__ = ["CheckpointError", "Claim", "Held", "Identity"]
