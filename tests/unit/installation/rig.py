"""A job on a scripted API server, with a clock of the test's; TLS in memory."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from hami.installation.job import Job
from hami.kube.client import Client
from tests.scripted_api.server import ScriptedApi

NAMESPACE = "kube-system"
WEBHOOK = "hami-webhook"
LABELS = {"app.kubernetes.io/managed-by": "hami"}


class Rig:
    def __init__(self, api: ScriptedApi, client: Client) -> None:
        self.api = api
        self.printed: list[str] = []
        self.slept: list[float] = []
        self.monotonic = 0.0
        #: The wall clock; certificates are checked by TLS at the real time.
        self.now = dt.datetime.now(dt.UTC)
        self.job = Job(
            client,
            self.printed.append,
            clock=lambda: self.monotonic,
            now=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.monotonic += seconds

    def put_secret(
        self, name: str, entries: Mapping[str, bytes], *, ours: bool = True, **fields: Any
    ) -> None:
        data = {entry: base64.b64encode(content).decode() for entry, content in entries.items()}
        meta = {"name": name, "namespace": NAMESPACE, "labels": LABELS if ours else {}}
        self.api.put({"kind": "Secret", "metadata": meta, "type": "Opaque", "data": data, **fields})

    def secret(self, name: str) -> dict[str, Any]:
        found = self.api.find("secrets", name, NAMESPACE)
        assert found is not None
        return found

    def entries(self, name: str) -> dict[str, bytes]:
        data = self.secret(name)["data"]
        return {entry: base64.b64decode(content) for entry, content in data.items()}

    def put_webhook(self, *bundles: bytes | None) -> None:
        hooks = [
            {
                "name": f"{number}.hami.io",
                "failurePolicy": "Fail",
                "clientConfig": {"service": {"name": "hami-webhook", "namespace": NAMESPACE}}
                | ({} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()}),
            }
            for number, bundle in enumerate(bundles)
        ]
        kind = "MutatingWebhookConfiguration"
        self.api.put({"kind": kind, "metadata": {"name": WEBHOOK}, "webhooks": hooks})

    def webhook(self) -> dict[str, Any]:
        found = self.api.find("mutatingwebhookconfigurations", WEBHOOK)
        assert found is not None
        return found

    def bundles(self) -> list[bytes]:
        hooks = self.webhook()["webhooks"]
        return [base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks]


@contextlib.asynccontextmanager
async def made() -> AsyncIterator[Rig]:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        yield Rig(api, client)


def refusal(entries: Mapping[str, bytes], trusted: bytes, host: str) -> str:
    """Return why a client refuses a server with this Secret's entries; empty: it does not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pair.pem")
        file.write_bytes(entries["tls.crt"] + entries["tls.key"])
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(file)
    client_side = ssl.create_default_context(cadata=trusted.decode())
    # What later Pythons ask for by themselves, and Go does not.
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    assert client.version() == "TLSv1.3"
    return ""
