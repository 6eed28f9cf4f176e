"""Where device plugins register: kubelet's socket, what it takes, and the folder around it."""

from __future__ import annotations

import re
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.grpc import Message
from hami_sandbox.kubelet.devices.endpoint import Endpoint
from hami_sandbox.kubelet.devices.pods import DevicesError

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_DOMAIN, _LONGEST_NAME = 253, 63
#: Names that quotas are written with.
_REQUESTS = "requests."


def is_extended(resource: str) -> bool:
    """Tell whether a resource can be a plugin's: a qualified name outside of kubernetes.io."""
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
    """Remove every socket, those of plugins too: so they learn that there is a new kubelet."""
    for path in folder.iterdir():
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def handler(folder: Path, connected: Callable[[Endpoint], Awaitable[None]]) -> Any:
    """Return what answers Register; the plugin is called back before that answer."""

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
        # What the request says of options is not looked at.
        await endpoint.connect()
    except BaseException:
        await endpoint.close()
        raise
    return endpoint
