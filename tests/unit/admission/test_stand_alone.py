"""Parts of `hami webhook` on an API server: watches fill the MIG offer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from hami.admission import settings
from hami.admission.main import Webhook
from hami.admission.settings import Rules, Settings
from hami.kube.client import Client
from hami.serving.http_server import Server
from hami.serving.tracing import Tracer
from hami.wire import annotation_keys
from tests.builders import GPU, VENDORS
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import desk, pods
from tests.unit.admission.desk import review
from tests.unit.admission.pods import MIG, Document
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers

ASKING = pods.pod(pods.container(mig={"3g.30gb": 1}))


def node(name: str, **allocatable: str) -> Document:
    names = {"gpu": GPU, "three": f"{MIG}3g.30gb", "two": f"{MIG}2g.20gb"}
    offered = {names[key]: value for key, value in allocatable.items()}
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": offered}}


class Asked:
    """A replica behind HTTP."""

    def __init__(self, api: ScriptedApi, webhook: Webhook, server: Server) -> None:
        self._api = api
        self._webhook = webhook
        self._port = server.port

    async def noted(self, document: Document = ASKING) -> str:
        """Return the fallback that a pod gets, once all there is has been seen."""
        for cache in self._webhook.caches.values():
            await asyncio.wait_for(cache.wait_version(self._api.store.version), PATIENCE_S)
        body = json.dumps(review(document)).encode()
        status, _, reply = await servers.ask(self._port, "POST", "/webhook", body=body)
        answer = json.loads(reply)["response"]
        assert (status, answer["allowed"]) == (200, True)
        through = desk.patched(document, answer)
        annotations: dict[str, str] = through["metadata"].get("annotations", {})
        return annotations.get(annotation_keys.FALLBACK, "as asked")


@contextlib.asynccontextmanager
async def running(api: ScriptedApi, *, mode: str) -> AsyncIterator[Asked]:
    plan = settings.plan(VENDORS, mode=mode, end="whole", file="")
    rules = Rules(vendors=VENDORS, scheduler_name="", fallback=plan)
    async with Client(api.access(), user_agent="test") as client:
        webhook = Webhook(Settings(), client, rules=rules, tracer=Tracer.disabled())
        tasks = [asyncio.create_task(cache.run()) for cache in webhook.caches.values()]
        try:
            async with servers.serving(*webhook.routes) as server:
                yield Asked(api, webhook, server)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_in_available_mode_a_pod_counts_until_it_is_deleted() -> None:
    async with ScriptedApi() as api:
        api.put(node("a", three="1", two="1"))
        api.put(pods.pod(pods.container(mig={"3g.30gb": 1}), nodeName="a"))
        async with running(api, mode="available") as webhook:
            assert await webhook.noted() == "3g.30gb->2g.20gb"
            api.remove("pods", "p")
            assert await webhook.noted() == "as asked"


async def test_a_review_costs_no_request() -> None:
    async with ScriptedApi() as api:
        api.put(node("a", gpu="4"))
        async with running(api, mode="available") as webhook:
            await webhook.noted()
            before = len(api.requests)
            for _ in range(20):
                await webhook.noted()
            assert len(api.requests) == before
