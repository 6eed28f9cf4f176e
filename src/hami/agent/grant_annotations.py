"""Write a pod's grant back where its annotations were removed or changed.

The ledger has the grant as it was when the pod's first container started, with its signature. The
pod's annotations are what the scheduler reads after a restart, and what HAMi's tools show. Every
account that may patch pods can change them. So they are compared with the ledger every few seconds,
and what differs is written back, with an event and a metric: some account writes what it should
not.

Only what can be proven is written: a record whose signature none of the keys has made stays in the
ledger alone. That is so for pods of HAMi's scheduler, which signs nothing. Nothing else of a pod is
restored, and no pod but those in the ledger; from 1.30 on the chart's admission policy allows
exactly that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

from hami.agent.grants import Grants
from hami.agent.ledger import Ledger
from hami.agent.metrics import Metrics
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.node.ledger_record import LedgerRecord
from hami.wire import annotation_keys, codec
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

REASON = "GrantRestored"
#: Seconds between two comparisons; also how often one pod is patched at most.
_EVERY_S = 4.0
_TIMEOUT_S = 5.0
#: Writes at one time.
_AT_ONCE = 8


class GrantAnnotations:
    """Keeps the annotations of this node's pods equal to their grants in the ledger."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        pods: NodePods,
        ledger: Ledger,
        grants: Grants,
        events: EventRecorder,
        metrics: Metrics,
        active: asyncio.Event,
    ) -> None:
        self._client = client
        self._node = node
        self._pods = pods
        self._ledger = ledger
        self._grants = grants
        self._events = events
        self._metrics = metrics
        #: Not set while another agent serves this node, and writes.
        self._active = active
        #: By pod UID, why its grant cannot be written back: logged once, tried again.
        self._failed: dict[str, str] = {}

    async def run(self) -> NoReturn:
        """Once the pods are known, compare for ever."""
        await self._pods.informer.wait_synced()
        while True:
            await self.restore()
            await asyncio.sleep(_EVERY_S)

    async def restore(self) -> None:
        """Write back what differs from the ledger, a few pods at a time: one may be slow."""
        if not self._active.is_set():
            return
        failed_before, self._failed = self._failed, {}
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(record: LedgerRecord, changed: list[str]) -> None:
            async with free:
                await self._restore(record, changed, failed_before.get(record.uid, ""))

        async with asyncio.TaskGroup() as group:
            for record in self._ledger.records():
                pod = self._pods.find(record.uid)
                if pod is None or pod.finished:
                    continue
                changed = self._changed(pod, record)
                if changed and self._grants.proves(record):
                    group.create_task(one(record, changed))

    async def _restore(self, record: LedgerRecord, changed: list[str], failed_before: str) -> None:
        try:
            written = await self._write(record)
        except errors.KubeError as error:
            self._failed[record.uid] = why = str(error)
            if failed_before != why:
                extra = {"pod": f"{record.namespace}/{record.name}", "error": why}
                _log.warning("cannot write a grant back yet, retrying", extra=extra)
        else:
            if written:
                self._report(record, changed)

    def _changed(self, pod: Pod, record: LedgerRecord) -> list[str]:
        """Return the keys of the grant that the pod does not have as they were."""
        wanted = self._annotations(record)
        return [key for key, value in wanted.items() if pod.annotation(key) != value]

    def _annotations(self, record: LedgerRecord) -> dict[str, str]:
        return {
            **record.device_lists,
            annotation_keys.GRANT_MAC: record.mac,
            annotation_keys.ASSIGNED_NODE: self._node,
        }

    async def _write(self, record: LedgerRecord) -> bool:
        """Write a grant back; False: the pod is deleted."""
        # The UID makes the server refuse when the name is another pod's by now.
        metadata = {"uid": record.uid, "annotations": self._annotations(record)}
        path = paths.pods(record.namespace, record.name)
        try:
            body = await self._client.patch(
                path, codec.encode({"metadata": metadata}), timeout=_TIMEOUT_S
            )
        except errors.NotFound:
            return False
        self._pods.informer.offer(body)
        return True

    def _report(self, record: LedgerRecord, changed: list[str]) -> None:
        extra = {"pod": f"{record.namespace}/{record.name}", "uid": record.uid, "keys": changed}
        _log.warning("wrote a grant back that was removed or changed", extra=extra)
        self._metrics.grant_restored()
        self._events.record(
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            type="Warning",
            reason=REASON,
            message=(
                f"{', '.join(changed)} was removed or changed, and is written back as it was "
                f"granted: {record.devices}. The pod runs with its grant all the time. Find the "
                "account that writes hami.io annotations; the chart's admissionPolicy keeps others "
                "from it"
            ),
        )
