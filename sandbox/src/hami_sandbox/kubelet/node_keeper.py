"""Keep the Node object and its lease up to date.

The status is written at once when a plugin reports a change, else every few minutes; in between
the lease shows that this node is alive.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client, PatchKind
from hami.kube.transport import Backoff
from hami.wire import codec
from hami_sandbox.kubelet import node_document
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.node_document import Machine
from hami_sandbox.kubelet.pod import Object

_log = logging.getLogger(__name__)

_LEASES = "kube-node-lease"
_LEASE_S = 40
_RENEW_EVERY_S = 10.0
_REPORT_EVERY_S = 300.0
_LONGEST_WAIT_S = 5.0


class NodeKeeper:
    def __init__(
        self,
        client: Client,
        machine: Machine,
        devices: DeviceManager,
        *,
        fresh: bool,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._machine = machine
        self._devices = devices
        #: No checkpoint: devices of a former node of this name are void.
        self._fresh = fresh
        self._now = now
        self._began = now()
        self._changed = asyncio.Event()
        self._uid = ""
        #: Devices that were offered once and are not any more.
        self._zeroed: dict[str, int] = {}
        self._offered: set[str] = set()

    def look(self) -> None:
        """Report the devices again: they may have changed."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Keep node and lease up to date, for ever."""
        async with asyncio.TaskGroup() as group:
            await self._trying("node", self._register)
            group.create_task(self._renew())
            while True:
                self._changed.clear()
                await self._trying("node status", self._report)
                try:
                    async with asyncio.timeout(_REPORT_EVERY_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def _trying(self, what: str, work: Callable[[], Any]) -> None:
        backoff = Backoff(first=0.2, longest=_LONGEST_WAIT_S)
        while True:
            try:
                await work()
            except errors.NotFound:
                if work == self._report:  # the node was deleted; kubelet creates it again
                    await self._trying("node", self._register)
                    continue
                await asyncio.sleep(backoff.next())
            except errors.KubeError as error:
                _log.warning("not written", extra={"what": what, "error": str(error)})
                await asyncio.sleep(backoff.next(error.retry_after))
            else:
                return

    async def _register(self) -> None:
        wanted = node_document.node(self._machine)
        try:
            body = await self._client.create(paths.nodes(), codec.encode(wanted))
        except errors.Conflict as conflict:
            if not conflict.exists:
                raise
            change = {"metadata": {"labels": node_document.labels(self._machine)}}
            body = await self._client.patch(paths.nodes(self._machine.name), codec.encode(change))
        node: Object = codec.decode(body, dict[str, Any], what="node")
        self._uid = node["metadata"]["uid"]
        if self._fresh:
            self._zeroed = node_document.zeroed(node, self._devices.capacity())

    async def _report(self) -> None:
        capacity, allocatable = self._devices.capacity(), self._devices.allocatable()
        self._zeroed |= dict.fromkeys(self._offered - capacity.keys(), 0)
        self._offered |= capacity.keys()
        status = node_document.status(
            self._machine,
            capacity=self._zeroed | capacity,
            allocatable=self._zeroed | allocatable,
            ready_since=self._began,
            now=self._now(),
        )
        path = paths.node_status(self._machine.name)
        body = codec.encode({"status": status})
        await self._client.patch(path, body, kind=PatchKind.STRATEGIC)

    async def _renew(self) -> NoReturn:
        while True:
            await self._trying("lease", self._renew_once)
            await asyncio.sleep(_RENEW_EVERY_S)

    async def _renew_once(self) -> None:
        moment = dt.datetime.fromtimestamp(self._now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        name = self._machine.name
        try:
            change = {"spec": {"renewTime": moment, "holderIdentity": name}}
            await self._client.patch(paths.lease(_LEASES, name), codec.encode(change))
        except errors.NotFound:
            wanted = node_document.lease(name, self._uid, moment, _LEASE_S)
            await self._client.create(paths.leases(_LEASES), codec.encode(wanted))
