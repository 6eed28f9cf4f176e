"""A cluster that does what a test says, for the demo to run its examples on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, cast

from hami.kube import errors
from hami.kube.client import Client
from hami_sandbox.demo.cluster_view import ClusterView, Node
from sandbox.tests.unit.demo.worlds import pod


class ScriptedClient:
    """A client whose server knows pods by name, and does to them what the test says.

    There is no server behind it, not even the scripted one: the demo's time passes only when a
    test says so, and an answer over HTTP would come at a moment of its own.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuse: dict[str, errors.ApiError] = {}
        self.created: Callable[[str], None] = lambda _: None
        self.deleted: Callable[[str], None] = lambda _: None

    async def create(self, path: str, body: bytes) -> bytes:
        name = json.loads(body)["metadata"]["name"]
        self.calls.append(f"create {name}")
        if name in self.refuse:
            raise self.refuse[name]
        self.created(name)
        return body

    async def patch(self, path: str, body: bytes, **_: Any) -> bytes:
        self.calls.append(f"apply {path.rpartition('/')[2]}")
        return body

    async def delete(self, path: str, body: bytes | None = None, **_: Any) -> bytes:
        name = path.rpartition("/")[2]
        self.calls.append(f"delete {name}")
        self.deleted(name)
        return b"{}"


class ScriptedCluster:
    kubeconfig = Path("/none")
    isolation = ""

    def __init__(self) -> None:
        self.api = ScriptedClient()
        self.client = cast("Client", self.api)
        self.nodes: Mapping[str, Node] = {}


class ScriptedWorld(ClusterView):
    """Time passes only while it is waited, and the test is called at each such moment."""

    def __init__(self, scripted: ScriptedCluster) -> None:
        self.now = 0.0
        self.api = scripted.api
        #: Seconds that a moment really lasts, and how much of the world's time passes in it.
        self.pace = 0.0
        super().__init__(scripted, clock=lambda: self.now)
        self.api.created = lambda name: self.pods.put(pod(name, node="", phase="Pending"))
        self.api.deleted = lambda name: self.pods.drop(f"uid-default-{name}")
        self.moment: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        return self

    async def change(self, limit: float) -> None:
        await asyncio.sleep(self.pace)
        self.now += self.pace or limit
        self.moment()
