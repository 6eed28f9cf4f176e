"""`hami webhook` as a real process with TLS, on a scripted API server.

async with ScriptedApi() as api:
    api.put(webhooks.node("a", {"nvidia.com/mig-1g.10gb": "7"}))
    async with webhooks.serving(api, tmp_path) as webhook:
        await webhook.ready()
        answer = await webhook.review(pod)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from prometheus_client import parser

from tests import processes
from tests.authority import Authority, Issued
from tests.processes import Process
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import desk
from tests.unit.admission.pods import Document
from tests.unit.kube import kubeconfigs
from tests.unit.serving import servers
from tests.unit.serving.tls_files import Secret, client_context

PORT, METRICS_PORT = 8443, 9395


def node(name: str, allocatable: Mapping[str, str]) -> Document:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


class Webhook:
    """One process, and everything that a peer of it needs."""

    def __init__(self, folder: pathlib.Path, days: float) -> None:
        self.host = processes.own_address()
        self._authority = Authority("webhooks")
        self._folder = folder
        self.secret = Secret(folder / "secret", **_files(self.issue(days)))
        self.process: Process

    def issue(self, days: float = 30) -> Issued:
        return self._authority.issue("webhook", hosts=[self.host], days=days)

    def swap(self, issued: Issued) -> None:
        """Exchange the mounted certificate as kubelet does it."""
        self.secret.swap(**_files(issued))

    def flags(self, api: ScriptedApi) -> list[str]:
        config = kubeconfigs.write(self._folder / "config", cluster={"server": api.url})
        return [
            f"--kubeconfig={config}",
            f"--http_bind={self.host}:{PORT}",
            f"--metrics-bind-address={self.host}:{METRICS_PORT}",
            f"--cert_file={self.secret.path('crt')}",
            f"--key_file={self.secret.path('key')}",
        ]

    def trust(self) -> ssl.SSLContext:
        return client_context(self._authority, self._folder)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[servers.Connection]:
        async with servers.connected(PORT, tls=self.trust(), host=self.host) as connection:
            yield connection

    async def get(self, path: str) -> tuple[int, str]:
        async with self.connected() as connection:
            status, _, body = await connection.ask("GET", path)
            return status, body.decode()

    async def serves(self) -> None:
        """Wait until it listens."""
        await self.process.logged("serving")

    async def ready(self) -> None:
        await self.serves()
        async with asyncio.timeout(processes.PATIENCE):
            while (await self.get("/readyz"))[0] != 200:
                await asyncio.sleep(0.01)

    async def review(self, pod: Document, **request: Any) -> Document:
        """Return what it answers to a pod's creation."""
        async with self.connected() as connection:
            return await review_over(connection, pod, **request)

    async def scrape(self) -> bytes:
        async with servers.connected(METRICS_PORT, host=self.host) as connection:
            status, headers, body = await connection.ask("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        return body

    async def metrics(self) -> dict[str, float]:
        """Return all that it counts, as `name{label=value}`."""
        text = (await self.scrape()).decode()
        return {
            f"{sample.name}{{{', '.join(f'{k}={v}' for k, v in sample.labels.items())}}}": (
                sample.value
            )
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }


async def review_over(connection: servers.Connection, pod: Document, **request: Any) -> Document:
    status, _, body = await connection.ask(
        "POST", "/webhook?timeout=10s", body=json.dumps(desk.review(pod, **request)).encode()
    )
    assert status == 200, body
    response: Document = json.loads(body)["response"]
    return response


@contextlib.asynccontextmanager
async def serving(
    api: ScriptedApi,
    folder: pathlib.Path,
    *flags: str,
    days: float = 30,
    python: Sequence[str] = (),
) -> AsyncIterator[Webhook]:
    """Start one whose certificate lasts for so many days."""
    webhook = Webhook(folder, days)
    async with processes.running(
        "webhook", *webhook.flags(api), *flags, python=python
    ) as webhook.process:
        yield webhook


def _files(issued: Issued) -> dict[str, str]:
    return {"crt": issued.certificate, "key": issued.key}
