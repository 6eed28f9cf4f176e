"""One call to one webhook: HTTPS, its own authority, its own timeout.

A webhook is found by its URL, or through its Service: at the address in the Service's annotation
`sandbox.hami.io/address` (host:port), else at the first address of the Endpoints of that name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yarl

from hami.kube import transport
from hami_sandbox.apiserver.auth.users import View
from hami_sandbox.apiserver.auth.webhook_matching import Webhook
from hami_sandbox.apiserver.refusals import Object

#: Annotation of a Service with the address of its server (host:port).
ADDRESS = "sandbox.hami.io/address"

_GROUP = "admission.k8s.io"
_VERSIONS = ("v1", "v1beta1")
_USER_AGENT = "kube-apiserver-admission"
_DEFAULT_TIMEOUT = 10
_OK = 200
_JSON_PATCH = "JSONPatch"


class CallError(Exception):
    """No valid answer; the message has kube-apiserver's words."""


class Response(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    uid: str = ""
    allowed: bool = False
    status: Object | None = None
    patch: str | None = None
    patch_type: str | None = None
    warnings: list[str] | None = None

    def operations(self) -> bytes:
        """Return the JSON patch; empty where nothing is to be changed."""
        return base64.b64decode(self.patch or "", validate=True)


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    response: Response | None = None


class _Where(msgspec.Struct, frozen=True):
    #: Shown in messages.
    url: str
    #: Where requests go.
    address: str
    #: The name that its certificate must have; empty: that in the address.
    server_name: str = ""


class Calls:
    def __init__(self, view: View) -> None:
        self._view = view
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, webhook: Webhook, request: Object, *, mutating: bool) -> Response:
        """Return what the webhook answers to this request."""
        version = _version(webhook)
        review = {"kind": "AdmissionReview", "apiVersion": version, "request": request}
        seconds = webhook.get("timeoutSeconds") or _DEFAULT_TIMEOUT
        where = self._where(webhook["clientConfig"], f"timeout={seconds}s")
        try:
            async with asyncio.timeout(seconds):
                answer = await self._post(webhook, where, msgspec.json.encode(review))
        except (aiohttp.ClientError, OSError) as error:
            why = f'Post "{where.url}": {_error_text(error, where)}'
            raise CallError(f"failed to call webhook: {why}") from error
        return _checked(answer, request["uid"], version, mutating=mutating)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, webhook: Webhook, where: _Where, body: bytes) -> bytes:
        try:
            return await self._post_once(webhook, where, body)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            # A connection that was kept open had been closed at the other end: as Go does.
            return await self._post_once(webhook, where, body)

    async def _post_once(self, webhook: Webhook, where: _Where, body: bytes) -> bytes:
        if self._session is None or self._session.closed:
            self._session = transport.session(_USER_AGENT)
        headers = {"Content-Type": "application/json"}
        if where.server_name:
            headers["Host"] = where.server_name
        async with self._session.post(
            yarl.URL(where.address, encoded=True),
            data=body,
            headers=headers,
            ssl=_context(webhook["clientConfig"].get("caBundle") or ""),
            server_hostname=where.server_name or None,
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            if answer.status != _OK:
                shown = content[:1024].decode(errors="replace").strip() or answer.reason
                raise CallError(
                    f'failed to call webhook: an error on the server ("{shown}") has prevented '
                    f"the request from succeeding (status {answer.status})"
                )
            return content

    def _where(self, config: Mapping[str, Any], query: str) -> _Where:
        url = config.get("url")
        if url:
            whole = f"{url}{'&' if urlsplit(url).query else '?'}{query}"
            return _Where(whole, whole)
        service = config["service"]
        namespace, name = service["namespace"], service["name"]
        port, path = service.get("port") or 443, service.get("path") or "/"
        server_name = f"{name}.{namespace}.svc"
        address = self._address(namespace, name, port)
        return _Where(
            f"https://{server_name}:{port}{path}?{query}",
            f"https://{address}{path}?{query}",
            server_name,
        )

    def _address(self, namespace: str, name: str, port: int) -> str:
        """Return host and port of the server behind a port of a Service."""
        service = self._view.find("", "services", namespace, name)
        if service is None:
            raise CallError(f'failed to call webhook: service "{name}" not found')
        given = (service["metadata"].get("annotations") or {}).get(ADDRESS)
        if given:
            return str(given)
        ports = service.get("spec", {}).get("ports") or ()
        name_of_port = next((each.get("name", "") for each in ports if each["port"] == port), "")
        endpoints = self._view.find("", "endpoints", namespace, name) or {}
        for subset in endpoints.get("subsets") or ():
            for address in subset.get("addresses") or ():
                for each in subset.get("ports") or ():
                    if each.get("name", "") == name_of_port:
                        return f"{address['ip']}:{each['port']}"
        raise CallError(
            f'failed to call webhook: no endpoints available for service "{name}": '
            f"give it the annotation {ADDRESS}, or make Endpoints of its name"
        )


def _version(webhook: Webhook) -> str:
    for version in webhook.get("admissionReviewVersions") or ():
        if version in _VERSIONS:
            return f"{_GROUP}/{version}"
    raise CallError("webhook does not accept known AdmissionReview versions (v1, v1beta1)")


def _checked(answer: bytes, uid: str, version: str, *, mutating: bool) -> Response:
    try:
        review = msgspec.json.decode(answer, type=_Review)
    except msgspec.DecodeError as error:
        raise CallError(
            f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
        ) from None
    wrong = ""
    response = review.response
    if response is None:
        raise _senseless("webhook response was absent")
    if (review.kind, review.api_version) != ("AdmissionReview", version):
        wrong = (
            f"expected webhook response of {version}, Kind=AdmissionReview, "
            f"got {review.api_version}, Kind={review.kind}"
        )
    elif response.uid != uid and version == f"{_GROUP}/v1":
        wrong = f'expected response.uid="{uid}", got "{response.uid}"'
    elif mutating and response.patch and response.patch_type != _JSON_PATCH:
        wrong = f'expected response.patchType "{_JSON_PATCH}", got "{response.patch_type or ""}"'
    elif mutating and response.patch_type and not response.patch:
        wrong = "webhook returned response.patchType but not response.patch"
    if wrong:
        raise _senseless(wrong)
    try:
        response.operations()
    except binascii.Error as error:
        raise _senseless(f"response.patch is not base64: {error}") from None
    return response


def _senseless(why: str) -> CallError:
    return CallError(f"received invalid webhook response: {why}")


@functools.lru_cache(maxsize=64)
def _context(bundle: str) -> ssl.SSLContext:
    if not bundle:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    except (ssl.SSLError, ValueError) as error:
        raise CallError(
            f"failed to call webhook: unable to load root certificates: {error}"
        ) from None
    # As Go: a certificate need not have every extension that RFC 5280 asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _error_text(error: Exception, where: _Where) -> str:
    if isinstance(error, TimeoutError):
        return "context deadline exceeded"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner = error.certificate_error
        words = getattr(inner, "verify_message", "") or str(inner)
        return f"tls: failed to verify certificate: x509: {words}"
    if isinstance(error, aiohttp.ClientConnectorError):
        address = urlsplit(where.address).netloc
        number = error.os_error.errno
        words = os.strerror(number).lower() if number else str(error.os_error)
        return f"dial tcp {address}: connect: {words}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__
