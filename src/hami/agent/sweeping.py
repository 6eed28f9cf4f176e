"""Forgetting pods that are gone.

A record goes when its pod has ended, or when the API server says that there is no such pod; the
cache alone is not believed, because it may be behind. As long as a process of the pod still lives
on a card (a pod that was deleted by force), the pod holds what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from hami.agent.errors import AgentError
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.node.record import Record
from hami.wire import codec
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Seconds.
_EVERY = 5.0
_TIMEOUT = 5.0


class Sweeper:
    def __init__(
        self,
        client: Client,
        pods: NodePods,
        *,
        records: Callable[[], list[Record]],
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

    async def _gone(self, record: Record) -> bool:
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
