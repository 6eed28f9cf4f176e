"""Pods that run here but are not in the ledger: a lost disk, a damaged record, HAMi's own agent.

kubelet's checkpoint has their tokens, and the API server their signed grants. What both agree on is
taken in, so that nobody is given a card's share a second time. Files of tokens that neither the
ledger nor the checkpoint knows are removed, but never while a record cannot be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import msgspec

from hami.agent import checkpoint
from hami.agent.checkpoint import CheckpointError, Entry
from hami.agent.errors import RefusalError
from hami.agent.grants import Grants
from hami.agent.late_binding import slot_of
from hami.agent.pods import NodePods
from hami.agent.prepare import Preparer
from hami.agent.shares import Shares
from hami.node.layout import NodeLayout
from hami.node.record import Record, TokenRecord

_log = logging.getLogger(__name__)

TokenEntry = tuple[str, Entry, bool]
"""A token, kubelet's entry of it, and whether it is named as a CDI device."""


class Adopting:
    def __init__(
        self,
        place: NodeLayout,
        resource: str,
        *,
        pods: NodePods,
        grants: Grants,
        shares: Shares,
        preparer: Preparer,
    ) -> None:
        self._layout = place
        self._resource = resource
        self._pods = pods
        self._grants = grants
        self._shares = shares
        self._preparer = preparer
        self._refused: set[str] = set()

    async def adopt(self) -> None:
        """Take in every pod of kubelet's checkpoint that holds tokens of ours."""
        for uid, tokens in self._held().items():
            pod = self._pods.find(uid)
            if pod is None or pod.finished or uid in self._refused:
                continue
            if self._shares.ledger.get(uid) is not None:
                continue
            try:
                record = self._grants.record_of(pod, now=time.time())
                await self._shares.admit(_with_tokens(record, tokens))
            except RefusalError as error:
                self._refused.add(uid)
                _log.warning("a pod cannot be taken in", extra={"uid": uid, "error": str(error)})
            else:
                _log.info(
                    "a pod was taken in that the ledger did not know",
                    extra={"pod": f"{pod.namespace}/{pod.name}", "uid": uid},
                )

    def _held(self) -> dict[str, list[TokenEntry]]:
        """Return the tokens that were prepared, by pod UID."""
        found: dict[str, list[TokenEntry]] = {}
        for token, entry, cdi in self._ours():
            # Without files it was never started: it is taken in when it is.
            if self._layout.token_folder(token).is_dir():
                found.setdefault(entry.pod_uid, []).append((token, entry, cdi))
        return found

    def _ours(self) -> Iterator[TokenEntry]:
        for entry in checkpoint.read(self._layout.checkpoint).entries:
            if entry.resource != self._resource:
                continue
            try:
                allocation = entry.allocation()
            except CheckpointError:
                continue  # whoever starts that container hears of it
            if (token := checkpoint.token_of(allocation)) is not None:
                yield token, entry, bool(allocation.cdi_devices)

    async def tidy(self) -> None:
        """Take in whom the ledger does not know; remove what belongs to nobody."""
        await self.adopt()
        self._clear_strays()

    def _clear_strays(self) -> None:
        if self._shares.ledger.damaged or not self._pods.synced:
            return
        known = self._shares.ledger.by_token
        strays = {token for token in self._preparer.tokens() if known(token) is None}
        if not strays:
            return
        strays -= {token for token, entry, _ in self._ours() if self._pods.find(entry.pod_uid)}
        for token in sorted(strays):
            _log.info("files of a token that nobody knows are removed", extra={"token": token})
            self._preparer.forget(token)


def _with_tokens(record: Record, entries: Iterable[TokenEntry]) -> Record:
    tokens = tuple(
        TokenRecord(
            token=token,
            container=entry.container,
            slot=slot_of(record, entry.container),
            device_ids=tuple(sorted(entry.device_ids)),
            cdi=cdi,
        )
        for token, entry, cdi in entries
    )
    return msgspec.structs.replace(record, tokens=tokens)
