"""Logs of a container, read from its node's kubelet and passed on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

import aiohttp
import yarl
from aiohttp import web

from hami.kube import transport
from hami_sandbox.apiserver.auth.users import View
from hami_sandbox.apiserver.refusals import (
    Object,
    Refusal,
    bad_request,
    internal,
    invalid,
    not_found,
)

#: Parameters that kubelet knows as well.
_FLAGS = ("follow", "previous", "timestamps")
_NUMBERS = ("sinceSeconds", "tailLines", "limitBytes")
_TEXTS = ("sinceTime", "stream")
_TRUE = frozenset({"true", "1"})
_OK = 200
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    500: "InternalError",
}
_USER_AGENT = "kube-apiserver"


class Logs:
    def __init__(self, view: View, *, kubelet_token: str) -> None:
        self._view = view
        self._kubelet_token = kubelet_token
        self._session: aiohttp.ClientSession | None = None

    async def answer(self, request: web.Request, namespace: str, name: str) -> web.StreamResponse:
        """Answer GET pods/NAME/log; refuse before anything is sent."""
        pod = self._view.find("", "pods", namespace, name)
        if pod is None:
            raise not_found("pods", name)
        container = _container(pod, request.query.get("container", ""))
        options = _options(request.query, name)
        node = pod["spec"].get("nodeName") or ""
        if not node:
            return web.Response(content_type="text/plain")  # nothing has run yet
        path = "/".join(quote(part, safe="") for part in (namespace, name, container))
        query = f"?{urlencode(options)}" if options else ""
        url = f"{self._kubelet(node)}/containerLogs/{path}{query}"
        async with contextlib.AsyncExitStack() as stack:
            try:
                source = await stack.enter_async_context(self._open(url))
            except (aiohttp.ClientError, OSError) as error:
                raise _unreachable(url, error) from error
            if source.status != _OK:
                raise await _refusal(source)
            return await _passed_on(request, source)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self, url: str) -> aiohttp.client._RequestContextManager:
        if self._session is None or self._session.closed:
            self._session = transport.session(_USER_AGENT)
        return self._session.get(
            yarl.URL(url, encoded=True),
            headers={"Authorization": f"Bearer {self._kubelet_token}"},
            # A log that is followed may be silent for as long as its container is.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )

    def _kubelet(self, name: str) -> str:
        """Return the URL of a node's kubelet."""
        node = self._view.find("", "nodes", "", name)
        if node is None:
            raise not_found("nodes", name)
        status = node.get("status") or {}
        addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
        host = addresses.get("InternalIP") or addresses.get("Hostname")
        endpoint = (status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}
        port = endpoint.get("Port")
        if not host or not port:
            raise internal(f'node "{name}" has no address and port of its kubelet in its status')
        return f"http://{host}:{port}"


def _container(pod: Object, wanted: str) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    main: Sequence[Object] = spec["containers"]
    names = [each["name"] for each in (*main, *(spec.get("initContainers") or ()))]
    if wanted:
        if wanted not in names:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(main) == 1:
        return str(main[0]["name"])
    listed = " ".join(each["name"] for each in main)
    raise bad_request(
        f"a container name must be specified for pod {name}, choose one of: [{listed}]"
    )


def _options(query: Mapping[str, str], pod: str) -> dict[str, str]:
    given = {flag: "true" for flag in _FLAGS if query.get(flag, "").lower() in _TRUE}
    for number in _NUMBERS:
        value = query.get(number)
        if value is None:
            continue
        if not value.isascii() or not value.isdecimal():
            message = f'Invalid value: "{value}": must be a whole number of at least 0'
            cause = {"reason": "FieldValueInvalid", "field": number, "message": message}
            raise invalid("PodLogOptions", pod, [cause])
        given[number] = value
    return given | {text: query[text] for text in _TEXTS if query.get(text)}


async def _passed_on(request: web.Request, source: aiohttp.ClientResponse) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await answer.prepare(request)
    # Client and kubelet may disconnect: the end of a log is no error.
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for chunk in source.content.iter_any():
            await answer.write(chunk)
        await answer.write_eof()
    return answer


async def _refusal(source: aiohttp.ClientResponse) -> Refusal:
    text = (await source.read()).decode(errors="replace").strip()
    reason = _REASONS.get(source.status, "InternalError")
    return Refusal(source.status, reason, text or f"kubelet answers {source.status}")


def _unreachable(url: str, error: Exception) -> Refusal:
    return internal(f'Get "{url}": {str(error) or type(error).__name__}')
