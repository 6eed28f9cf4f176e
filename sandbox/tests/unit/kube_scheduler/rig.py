"""The whole kube-scheduler on a scripted API server, with a scripted extender.

async with ScriptedApi() as api, rig.extender() as extender:
    async with rig.running(api, extender.settings()):
        api.put(makers.pod_object("p"))
        await rig.until(lambda: rig.node_of(api, "p") == "a")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from hami.kube.client import Client
from hami.serving.http_server import Request, Response, Route
from hami.wire import codec
from hami_sandbox.kube_scheduler import configuration
from hami_sandbox.kube_scheduler.configuration import Configuration, Election, Extender, Managed
from hami_sandbox.kube_scheduler.extenders import Extenders
from hami_sandbox.kube_scheduler.main import Scheduler
from sandbox.tests.unit.kube_scheduler.makers import GPU, SCHEDULER, Object
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers

#: Waits that are over at once, so that no test waits for one.
BACKOFF = 0.01
#: Seconds after which somebody hangs.


class FakeExtender:
    """Takes the nodes that `takes` says, and binds by itself if it is to."""

    def __init__(self, port: int, api: ScriptedApi | None) -> None:
        self.url = f"http://{servers.LOCAL}:{port}"
        self._api = api
        self.filters: list[Object] = []
        self.priorities: list[Object] = []
        self.binds: list[Object] = []
        self.takes: Callable[[str], bool] = lambda _: True
        #: Nodes that it names beside those.
        self.invents: tuple[str, ...] = ()
        self.points: dict[str, int] = {}
        #: Answered in place of anything else.
        self.error = ""
        self.bind_error = ""
        self.status = 200
        #: Filters wait for this.
        self.gate: asyncio.Event | None = None

    def settings(self, **changes: Any) -> Extender:
        fields: dict[str, Any] = {
            "url": self.url,
            "filter_verb": "filter",
            "bind_verb": "bind",
            "node_cache_capable": True,
            "managed": (Managed(GPU, True),),  # noqa: FBT003 - as the file has it
            **changes,
        }
        return Extender(**fields)

    async def filter(self, request: Request) -> Response:
        args = json.loads(request.body)
        self.filters.append(args)
        if self.gate is not None:
            await self.gate.wait()
        names = args["NodeNames"]
        if names is None:
            names = [node["metadata"]["name"] for node in args["Nodes"]["items"]]
        taken = [name for name in names if self.takes(name)]
        result: Object = {
            "NodeNames": [*taken, *self.invents] if args["NodeNames"] is not None else None,
            "Nodes": None,
            "FailedNodes": {name: "no cards" for name in names if not self.takes(name)},
            "Error": self.error,
        }
        if args["Nodes"] is not None:
            items = [node for node in args["Nodes"]["items"] if node["metadata"]["name"] in taken]
            result["Nodes"] = {"items": items}
        return Response(status=self.status, body=codec.encode(result))

    async def prioritize(self, request: Request) -> Response:
        self.priorities.append(json.loads(request.body))
        listed = [{"Host": name, "Score": score} for name, score in self.points.items()]
        return Response(status=self.status, body=codec.encode(listed))

    async def bind(self, request: Request) -> Response:
        args = json.loads(request.body)
        self.binds.append(args)
        if self._api is not None and not self.bind_error and self.status == 200:
            bind(self._api, args["PodName"], args["Node"], namespace=args["PodNamespace"])
        return Response(status=self.status, body=codec.encode({"Error": self.bind_error}))


@contextlib.asynccontextmanager
async def extender(api: ScriptedApi | None = None, **options: Any) -> AsyncIterator[FakeExtender]:
    """Run one; given an API server, its bind really binds. `options` are the HTTP server's."""
    made: list[FakeExtender] = []

    def verb(name: str) -> Route:
        async def answer(request: Request) -> Response:
            response: Response = await getattr(made[0], name)(request)
            return response

        return Route("POST", f"/{name}", answer)

    async with servers.serving(
        *(verb(name) for name in ("filter", "prioritize", "bind")), drain_timeout=0, **options
    ) as server:
        made.append(FakeExtender(server.port, api))
        yield made[0]


@contextlib.asynccontextmanager
async def running(
    api: ScriptedApi, *extenders: Extender, clock: Callable[[], float] | None = None, **changes: Any
) -> AsyncIterator[Scheduler]:
    """Run a scheduler and all its background tasks."""
    config = Configuration(
        schedulers=(SCHEDULER, configuration.DEFAULT_SCHEDULER),
        extenders=extenders,
        **{"first_backoff": BACKOFF, "longest_backoff": BACKOFF, **changes},
    )
    options: dict[str, Any] = {} if clock is None else {"clock": clock}
    async with Client(api.access(), user_agent="test") as client, Extenders(extenders) as asked:
        scheduler = Scheduler(config, client, asked, aside=client, hostname="here", **options)
        tasks = [asyncio.create_task(work) for work in scheduler.background().values()]
        try:
            yield scheduler
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await scheduler.attempts.end()
    failed = [r for r in results if isinstance(r, Exception)]
    assert not failed, failed


def election(
    *, lease_duration: float = 8, renew_deadline: float = 6, retry_period: float = 0.02
) -> Election:
    return Election(
        namespace="kube-system",
        name="hami-scheduler",
        lease_duration=lease_duration,
        renew_deadline=renew_deadline,
        retry_period=retry_period,
    )


def bind(api: ScriptedApi, pod: str, node: str, *, namespace: str = "default") -> None:
    """Bind a pod as the API server does, past all faults."""
    found = api.find("pods", pod, namespace)
    assert found is not None
    found["spec"]["nodeName"] = node
    api.put(found)


def node_of(api: ScriptedApi, pod: str, namespace: str = "default") -> str:
    """Return the node of a pod; empty: none, or no such pod."""
    found = api.find("pods", pod, namespace)
    return str((found or {}).get("spec", {}).get("nodeName") or "")


def events(api: ScriptedApi, pod: str, reason: str) -> list[Object]:
    return [
        event
        for event in api.objects("events")
        if event["involvedObject"]["name"] == pod and event["reason"] == reason
    ]


def condition(api: ScriptedApi, pod: str) -> Object:
    """Return the condition PodScheduled of a pod; empty: it has none."""
    found = api.find("pods", pod) or {}
    for known in found.get("status", {}).get("conditions") or ():
        if known["type"] == "PodScheduled":
            return dict(known)
    return {}


async def seen(api: ScriptedApi, scheduler: Scheduler) -> None:
    """Wait until the scheduler has seen all that the API server has."""
    version = api.store.version
    async with asyncio.timeout(PATIENCE_S):
        await scheduler.pod_watch.wait_version(version)
        await scheduler.node_watch.wait_version(version)
