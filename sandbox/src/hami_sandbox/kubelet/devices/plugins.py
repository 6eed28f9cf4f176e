"""The device plugins of a node and what they offer: who is there, who left, who stays away.

A plugin whose stream of lists ends is stopped: its devices are unhealthy at once, but they count in
the node's capacity for a while, for most plugins come back. One that registers again takes the
place of its former self.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from hami_sandbox.kubelet.devices.endpoint import Device, Endpoint, Inventory
from hami_sandbox.kubelet.devices.pods import DevicesError

_log = logging.getLogger(__name__)

#: Seconds that a resource keeps its capacity after its plugin went away; kubelet's.
STOP_GRACE = 300.0


class Plugins:
    def __init__(self, *, stop_grace: float, save: Callable[[], None]) -> None:
        self.inventory = Inventory()
        self._endpoints: dict[str, Endpoint] = {}
        #: Whose plugin once stayed away for too long.
        self._gone: set[str] = set()
        self._stop_grace = stop_grace
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: Writes the checkpoint.
        self._save = save
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._subscribers.append(callback)

    def expect(self, resources: Iterable[str]) -> None:
        """Take those of an earlier kubelet: they have no device until they are back."""
        for resource in resources:
            self.inventory.put(resource, ())
            self._endpoints[resource] = Endpoint(resource, None)
            self._await_return(self._endpoints[resource])

    async def connected(self, endpoint: Endpoint) -> None:
        resource = endpoint.resource
        former = self._endpoints.get(resource)
        self._endpoints[resource] = endpoint
        if timer := self._timers.pop(resource, None):
            timer.cancel()
        endpoint.listen(self._listed, self._ended)
        _log.info("a device plugin has registered", extra={"resource": resource})
        if former is not None:
            await former.close()

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for endpoint in self._endpoints.values():
            await endpoint.close()

    def find(self, resource: str) -> Endpoint:
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise DevicesError(f"endpoint not found in cache for a registered resource: {resource}")
        return endpoint

    def capacity(self) -> dict[str, int]:
        listed = {resource: self.inventory.count(resource) for resource in self.inventory.healthy}
        return dict.fromkeys(self._gone, 0) | listed

    def allocatable(self) -> dict[str, int]:
        healthy = {resource: len(ids) for resource, ids in self.inventory.healthy.items()}
        return dict.fromkeys(self._gone, 0) | healthy

    def _listed(self, endpoint: Endpoint, devices: list[Device]) -> None:
        self.inventory.put(endpoint.resource, devices)
        self._save_or_complain()
        self._notify()

    def _ended(self, endpoint: Endpoint) -> None:
        self.inventory.mark_unhealthy(endpoint.resource)
        self._await_return(endpoint)
        self._notify()

    def _await_return(self, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._stop_grace, self._give_up, endpoint.resource)
        self._timers[endpoint.resource] = timer

    def _give_up(self, resource: str) -> None:
        """Forget a plugin that did not come back within its grace."""
        del self._timers[resource], self._endpoints[resource]
        self.inventory.remove(resource)
        self._gone.add(resource)
        self._save_or_complain()
        self._notify()

    def _save_or_complain(self) -> None:
        try:
            self._save()
        except DevicesError as error:
            _log.warning("the checkpoint is not written", extra={"error": str(error)})

    def _notify(self) -> None:
        for callback in self._subscribers:
            callback()
