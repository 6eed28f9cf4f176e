"""A whole scheduler replica on a scripted API server, driven by its verbs.

async with ScriptedApi() as api:
    api.put(rig.node("a"))
    async with rig.running(api) as replica:
        await replica.place(rig.pod("p"))
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from hami.admission.settings import Rules
from hami.kube import connections
from hami.kube.client import Client
from hami.scheduler import admission, grants
from hami.scheduler.main import Scheduler
from hami.scheduler.settings import Settings
from hami.serving.http_server import Request, Response
from hami.serving.tracing import Tracer
from hami.vendors import device_config
from hami.wire import codec, node_marks, node_register
from tests import builders
from tests.builders import GPU, NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import following

Object = dict[str, Any]
#: Seconds; catches hangs only.
PATIENCE_S = following.PATIENCE_S
BUILT_IN = device_config.load_or_built_in("")


def node(name: str, *, cards: int = 1, late: bool = True, **annotations: str) -> Object:
    """Make a node with 8000 MiB cards that ten containers may share."""
    register = node_register.encode_json(builders.cards(name, cards))
    keys = {NVIDIA.annotations.register: register, **annotations}
    if late:
        keys[NVIDIA.annotations.binding] = node_marks.late_binding_mark(register)
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": keys},
        "status": {"allocatable": {GPU: str(10 * cards)}},
    }


def pod(name: str, *, memory: int = 1000, gpu: int = 1, **metadata: Any) -> Object:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [builders.container(gpu=gpu, memory=memory)],
        },
        "status": {"phase": "Pending"},
    }


class Replica:
    def __init__(self, scheduler: Scheduler, api: ScriptedApi) -> None:
        self.scheduler = scheduler
        self.api = api

    async def filter(self, pod: Object, nodes: Sequence[str] | None = None) -> Object:
        names = [n["metadata"]["name"] for n in self.api.objects("nodes")]
        return await self._call(
            self.scheduler.http_api.filter, {"Pod": pod, "NodeNames": list(nodes or names)}
        )

    async def bind(self, pod: Object, node: str) -> str:
        """Ask to bind; returns the error, empty for success."""
        args = {
            "PodName": pod["metadata"]["name"],
            "PodNamespace": pod["metadata"]["namespace"],
            "PodUID": pod["metadata"]["uid"],
            "Node": node,
        }
        answer = await self._call(self.scheduler.http_api.bind, args)
        error: str = answer["Error"]
        return error

    async def place(self, pod: Object) -> str:
        """Create, filter and bind a pod; returns its node, or raises with what was answered."""
        pod = self.api.put(pod)
        answer = await self.filter(pod)
        assert not answer["Error"], answer
        assert answer["NodeNames"], answer
        (node,) = answer["NodeNames"]
        error = await self.bind(pod, node)
        assert not error, error
        return str(node)

    async def explain(self, **query: str) -> Response:
        return await self.scheduler.http_api.explain(request(b"", query))

    async def _call(self, verb: Callable[[Request], Any], args: object) -> Object:
        response = await verb(request(codec.encode(args)))
        assert isinstance(response.body, bytes)
        answer: Object = json.loads(response.body)
        return answer

    async def seen(self) -> None:
        """Wait until the watches have shown everything the API server has."""
        for kind, informer in self.scheduler.informers.items():
            if kind != "lease":
                await asyncio.wait_for(informer.wait_version(self.api.store.version), PATIENCE_S)

    def used(self, node: str) -> list[int]:
        """Return the MiB in use on each card of a node."""
        located = self.scheduler.watched.cluster.locate(node)
        assert located is not None
        table, row = located
        cards = table.cards[NVIDIA.name]
        number = len(self.scheduler.watched.cluster.nodes[node].cards[NVIDIA.name])
        used: list[int] = (cards.memory[:number, row] - cards.memory_left[:number, row]).tolist()
        return used


def request(body: bytes, query: dict[str, str] | None = None) -> Request:
    return Request("POST", "/", query or {}, {}, body, "127.0.0.1", "test")


@contextlib.asynccontextmanager
async def running(
    api: ScriptedApi,
    *,
    keys: pathlib.Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
    ready: bool = True,
    seen: bool = True,
    hostname: str = "sched-1",
    tracer: Tracer | None = None,
    rules: Rules | None = None,
    most: int = connections.MOST,
    **settings: Any,
) -> AsyncIterator[Replica]:
    """Run a replica and all its background tasks; it sends `most` requests at once."""
    chosen = Settings(grant_key_dir=str(keys or ""), **settings)
    async with Client(api.access(), user_agent=hostname, most=most) as client:
        scheduler = Scheduler(
            chosen,
            client,
            rules=rules or admission.rules(chosen, BUILT_IN),
            keys=grants.key_folder(chosen),
            tracer=tracer or Tracer.disabled(),
            hostname=hostname,
            clock=clock,
            now=now,
        )
        tasks = [asyncio.create_task(work) for work in scheduler.background().values()]
        replica = Replica(scheduler, api)
        try:
            if ready:
                await scheduler.readiness.require(PATIENCE_S)
            if ready and seen:
                await replica.seen()
            yield replica
        finally:
            await scheduler.lost_answers.end()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [r for r in results if isinstance(r, Exception)]
        assert not failed, failed


async def eventually(check: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait until something is true; the loop goes on meanwhile. The bound only catches hangs."""
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.01)
