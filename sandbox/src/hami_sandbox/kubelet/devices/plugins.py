"""The device plugins of a node: registration, loss, return.

A plugin whose stream of lists ends is stopped: its devices are unhealthy at once, but they count
in the node's capacity for a while, because most plugins come back. One that registers again
replaces its former registration. A new kubelet removes all sockets, so that plugins register
again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.grpc import Message
from hami_sandbox.kubelet.devices.endpoint import Device, Endpoint, Inventory
from hami_sandbox.kubelet.devices.pods import DevicesError

_log = logging.getLogger(__name__)

#: Seconds that a resource keeps its capacity after its plugin went away; kubelet's.
STOP_GRACE = 300.0


class Plugins:
    def __init__(self, *, stop_grace: float, save: Callable[[], None]) -> None:
        self.inventory = Inventory()
        self._endpoints: dict[str, Endpoint] = {}
        #: Resources whose plugin stayed away for too long.
        self._expired: set[str] = set()
        self._stop_grace = stop_grace
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: Writes the checkpoint.
        self._save = save
        self._handlers: list[Callable[[], None]] = []

    def add_handler(self, callback: Callable[[], None]) -> None:
        self._handlers.append(callback)

    def expect(self, resources: Iterable[str]) -> None:
        """Add resources of an earlier kubelet: no device until their plugin registers again."""
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
        _log.info("device plugin registered", extra={"resource": resource})
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
        return dict.fromkeys(self._expired, 0) | listed

    def allocatable(self) -> dict[str, int]:
        healthy = {resource: len(ids) for resource, ids in self.inventory.healthy.items()}
        return dict.fromkeys(self._expired, 0) | healthy

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
        self._expired.add(resource)
        self._save_or_complain()
        self._notify()

    def _save_or_complain(self) -> None:
        try:
            self._save()
        except DevicesError as error:
            _log.warning("cannot write the checkpoint", extra={"error": str(error)})

    def _notify(self) -> None:
        for callback in self._handlers:
            callback()


_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_DOMAIN, _LONGEST_NAME = 253, 63
#: Prefix of names in quotas.
_REQUESTS = "requests."


def is_extended(resource: str) -> bool:
    """Return whether a resource can be a plugin's: a qualified name outside of kubernetes.io."""
    domain, slash, name = resource.partition("/")
    if not slash or "kubernetes.io/" in resource or resource.startswith(_REQUESTS):
        return False
    return (
        len(_REQUESTS + domain) <= _LONGEST_DOMAIN
        and _DOMAIN.fullmatch(domain) is not None
        and len(name) <= _LONGEST_NAME
        and _NAME.fullmatch(name) is not None
    )


def remove_sockets(folder: Path) -> None:
    """Remove every socket, so that plugins see a new kubelet and register again."""
    for path in folder.iterdir():
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def register_handler(folder: Path, connected: Callable[[Endpoint], Awaitable[None]]) -> Any:
    """Return the handler of Register; it calls the plugin before it answers."""

    async def register(request: Message, context: Any) -> Message:
        try:
            await connected(await _endpoint(folder, request))
        except DevicesError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return {}

    return grpc.handler({kubelet_api.REGISTER: register})


async def _endpoint(folder: Path, request: Message) -> Endpoint:
    if request["version"] != kubelet_api.VERSION:
        raise DevicesError(
            f'requested API version "{request["version"]}" is not supported by kubelet. '
            f'Supported version is ["{kubelet_api.VERSION}"]'
        )
    resource: str = request["resource_name"]
    if not is_extended(resource):
        raise DevicesError(f'the ResourceName "{resource}" is invalid')
    # As Go joins paths: what is named stays within the folder.
    endpoint = Endpoint(resource, folder / request["endpoint"].lstrip("/"))
    try:
        # kubelet ignores the options in the request.
        await endpoint.connect()
    except BaseException:
        await endpoint.close()
        raise
    return endpoint
