"""Reconcile the ledger with pods, kubelet and files.

Pods that run here but are not in the ledger: a lost disk, a damaged record, HAMi's own agent.
kubelet's checkpoint has their tokens, and the API server their signed grants. What both agree on is
taken in, so that nobody is given a card's share a second time. A token that was made for another
pod is not: under the lock, kubelet may have given it to the wrong one, who then must not start.
Files of tokens that neither the ledger nor the checkpoint knows are removed, but never while a
record cannot be read or a process lives.

Forgetting pods that are gone.
A record goes when its pod has ended, or when the API server says that there is no such pod; the
cache alone is not believed, because it may be behind. As long as a process of the pod still lives
on a card (a pod that was deleted by force), the pod holds what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NoReturn

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.containers import limits
from hami.agent.containers.prepare import Preparer
from hami.agent.errors import AgentError, RefusalError
from hami.agent.grants import Grants
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError, Entry
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.late_binding import VISIBLE, slot_of
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.node.layout import NodeLayout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire import codec, policy_file
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

TokenEntry = tuple[str, Entry, Allocation]
"""A token, kubelet's entry of it, and our answer in that."""


class Adopter:
    def __init__(
        self,
        place: NodeLayout,
        resource: str,
        *,
        pods: NodePods,
        grants: Grants,
        shares: Allocator,
        preparer: Preparer,
        busy: Callable[[str], bool],
        adopted: Callable[[LedgerRecord], None],
    ) -> None:
        self._layout = place
        self._resource = resource
        self._pods = pods
        self._grants = grants
        self._shares = shares
        self._preparer = preparer
        #: Whether a process of the container with this token lives.
        self._busy = busy
        self._adopted = adopted
        #: By pod UID, why it was not taken in: said once, tried again.
        self._refused: dict[str, str] = {}

    async def adopt(self) -> None:
        """Take in every pod of kubelet's checkpoint that holds tokens of ours."""
        if not self._shares.ready:
            return
        refused = self._refused
        self._refused = {}
        held = self._held()
        if self._grants.allow_unsigned:
            held = {uid: [] for uid in self._foreign()} | held
        for uid, tokens in held.items():
            pod = self._pods.find(uid)
            if pod is None or pod.finished or self._shares.ledger.get(uid) is not None:
                continue
            try:
                found = self._with_tokens(self._grants.record_of(pod, now=time.time()), tokens)
                record = await self._shares.admit(uid, _unless_known(found), patience=0)
            except RefusalError as error:
                self._refused[uid] = why = str(error)
                if refused.get(uid) != why:
                    _log.warning("a pod cannot be taken in", extra={"uid": uid, "error": why})
            else:
                _log.info(
                    "a pod was taken in that the ledger did not know",
                    extra={"pod": f"{pod.namespace}/{pod.name}", "uid": uid},
                )
                self._adopted(record)

    def _held(self) -> dict[str, list[TokenEntry]]:
        """Return the tokens that were prepared, by pod UID."""
        found: dict[str, list[TokenEntry]] = {}
        for token, entry, answer in self._ours():
            # Without files it was never started: it is taken in when it is.
            if self._layout.token_folder(token).is_dir():
                found.setdefault(entry.pod_uid, []).append((token, entry, answer))
        return found

    def _foreign(self) -> list[str]:
        """Return the UIDs of pods that another agent gave their cards: they hold them as well."""
        return [
            entry.pod_uid
            for entry, answer in self._answers()
            if checkpoint.token_of(answer) is None
        ]

    def _with_tokens(self, record: LedgerRecord, entries: Iterable[TokenEntry]) -> LedgerRecord:
        tokens = tuple(self._token(record, *entry) for entry in entries)
        return msgspec.structs.replace(record, tokens=tokens)

    def _token(
        self, record: LedgerRecord, token: str, entry: Entry, answer: Allocation
    ) -> AllocationRecord:
        slot = slot_of(record, entry.container)
        cards = ",".join(card.card for card in limits.by_card(record.grants_of(slot)))
        cdi = bool(answer.cdi_devices)
        owner = self._owner(token)
        if (owner and owner != record.uid) or (not cdi and answer.envs.get(VISIBLE) != cards):
            raise RefusalError(
                f"container {entry.container} of pod {record.namespace}/{record.name}",
                f"kubelet gave it what was made for another one (pod {owner or 'unknown'})",
                "delete the pod to have it placed anew",
            )
        return AllocationRecord(
            token=token,
            container=entry.container,
            slot=slot,
            device_ids=tuple(sorted(entry.device_ids)),
            cdi=cdi,
        )

    def _owner(self, token: str) -> str:
        """Return the UID of the pod that a token was made for; empty: nobody knows."""
        known = self._shares.ledger.by_token(token)
        if known is not None:
            return known.uid
        try:
            return policy_file.decode(self._layout.policy(token).read_bytes()).pod_uid
        except (OSError, wire_errors.WireError):
            return ""

    def _ours(self) -> Iterator[TokenEntry]:
        for entry, answer in self._answers():
            if (token := checkpoint.token_of(answer)) is not None:
                yield token, entry, answer

    def _answers(self) -> Iterator[tuple[Entry, Allocation]]:
        for entry in checkpoint.read(self._layout.checkpoint).entries:
            if entry.resource == self._resource:
                with contextlib.suppress(CheckpointError):  # who starts that container hears of it
                    yield entry, entry.allocation()

    async def tidy(self) -> None:
        """Take in whom the ledger does not know; remove what belongs to nobody."""
        self._shares.ledger.look_again()
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
            if self._busy(token):
                continue
            try:
                self._preparer.forget(token)
            except AgentError as error:
                _log.warning("files of a token stay", extra={"token": token, "error": str(error)})
            else:
                _log.info("files of a token that nobody knows are removed", extra={"token": token})


def _unless_known(found: LedgerRecord) -> Callable[[LedgerRecord | None], LedgerRecord]:
    return lambda known: known or found


#: Seconds.
_EVERY = 5.0
_TIMEOUT = 5.0


class Cleaner:
    def __init__(
        self,
        client: Client,
        pods: NodePods,
        *,
        records: Callable[[], list[LedgerRecord]],
        remove: Callable[[str], Awaitable[None]],
        busy: Callable[[str], bool],
        tidy: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._pods = pods
        self._records = records
        self._remove = remove
        #: Whether a process of the container with this token lives.
        self._busy = busy
        #: Takes in pods that are not in the ledger, and removes files that belong to nobody.
        self._tidy = tidy
        self._wake = asyncio.Event()
        self._sweeping = asyncio.Lock()
        pods.subscribe(self._notice)

    def _notice(self, _old: Pod | None, new: Pod | None) -> None:
        if new is None or new.finished:
            self.look()

    def look(self) -> None:
        """Sweep and tidy soon."""
        self._wake.set()

    async def run(self) -> NoReturn:
        while True:
            self._wake.clear()
            await self.sweep()
            try:
                await self._tidy()
            except (AgentError, OSError) as error:
                _log.debug("files of nobody were not looked for", extra={"error": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await self._wake.wait()

    async def sweep(self) -> bool:
        """Forget who is gone; tell whether somebody gone still has processes."""
        async with self._sweeping:
            leaving = False
            if not self._pods.synced:
                return leaving
            for record in self._records():
                if not await self._gone(record):
                    continue
                told = {"pod": f"{record.namespace}/{record.name}", "uid": record.uid}
                try:
                    if any(self._busy(token.token) for token in record.tokens):
                        leaving = True
                        continue
                    await self._remove(record.uid)
                except (AgentError, OSError) as error:
                    # It is still there, and counts; the others go on.
                    _log.warning("a pod is not forgotten yet", extra={**told, "error": str(error)})
                else:
                    _log.info("a pod gave its cards back", extra=told)
            return leaving

    async def _gone(self, record: LedgerRecord) -> bool:
        pod = self._pods.find(record.uid)
        if pod is not None:
            return pod.finished
        path = paths.pods(record.namespace, record.name)
        try:
            body = await self._client.get(path, timeout=_TIMEOUT)
            found = codec.decode(body, Pod, what="pod")
        except errors.NotFound:
            return True
        except (errors.KubeError, wire_errors.WireError):
            return False  # nobody says so
        return found.uid != record.uid or found.finished
