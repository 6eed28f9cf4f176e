"""A kubelet stand-in in this process, on a scripted API server and runtime."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hami.agent.kubelet.registration import Registration
from hami.kube.client import Client
from hami.node.layout import NodeLayout
from hami_sandbox.kubelet.attempts import Waits
from hami_sandbox.kubelet.main import Kubelet, Settings
from sandbox.tests.unit.devices.desk import FakePlugin
from sandbox.tests.unit.kubelet.fake_runtime import FakeRuntime
from sandbox.tests.unit.kubelet.pods import NODE
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until

Object = dict[str, Any]

TOKEN = "let-me-read"  # noqa: S105 - the test's own


class Node:
    """What outlives a kubelet: folder, containers, API server."""

    def __init__(self, folder: Path, api: ScriptedApi) -> None:
        self.folder = folder
        self.api = api
        self.runtime = FakeRuntime()
        self.waits = Waits(first=0.05, longest=0.2)
        self.kubelet: Kubelet | None = None
        (folder / "token").write_text(f"{TOKEN}\n")

    def settings(self) -> Settings:
        return Settings(
            node_name=NODE,
            kubeconfig="",
            folder=self.folder / "k",
            cdi_dirs=(),
            cri_socket=self.folder / "cri.sock",
            runtime_dir=self.folder / "c",
            log_token_file=self.folder / "token",
            version="v1.36.3",
            labels={"team": "a"},
            waits=self.waits,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Kubelet]:
        """Run a kubelet; at the end it is let go of in the middle of whatever it does."""
        stop = asyncio.Event()
        async with Client(self.api.access(), user_agent="test") as client:
            kubelet = Kubelet(self.settings(), client, self.runtime)
            task = asyncio.create_task(kubelet.serve(stop))
            try:
                await until(lambda: kubelet.pods.ready or task.done())
                yield kubelet
            finally:
                stop.set()
                await task

    @contextlib.asynccontextmanager
    async def plugin(self, kubelet: Kubelet, plugin: FakePlugin) -> AsyncIterator[Registration]:
        layout = NodeLayout(kubelet_dir=self.folder / "k")
        link = Registration(layout, plugin, "fake", check_every=0.01)
        task = asyncio.create_task(link.run())
        try:
            await until(lambda: kubelet.devices.allocatable().get(plugin.resource))
            yield link
        finally:
            await link.stop()
            await task

    def put(self, pod: Object) -> Object:
        return self.api.put(pod)

    def delete(self, name: str, *, grace: int = 30) -> None:
        """Ask for a pod's end as kube-apiserver does: it stays until kubelet lets it go."""
        pod = self.api.find("pods", name)
        assert pod is not None
        self.api.put(
            {
                **pod,
                "metadata": {
                    **pod["metadata"],
                    "deletionTimestamp": "2026-01-01T00:00:30Z",
                    "deletionGracePeriodSeconds": grace,
                    # The scripted server removes at once what nothing holds.
                    "finalizers": ["test/kept"],
                },
            }
        )

    def release(self, name: str) -> None:
        """Take away what holds a deleted pod: it goes."""
        pod = self.api.find("pods", name)
        assert pod is not None
        self.api.put({**pod, "metadata": {**pod["metadata"], "finalizers": []}})

    def status(self, name: str = "p") -> Object:
        pod = self.api.find("pods", name)
        assert pod is not None
        found: Object = pod.get("status") or {}
        return found

    def phase(self, name: str = "p") -> str:
        return str(self.status(name).get("phase", ""))

    def state(self, container: str = "main", name: str = "p") -> Object:
        """Return what a pod's status says of a container's state."""
        status = self.status(name)
        for each in (
            *status.get("containerStatuses", ()),
            *status.get("initContainerStatuses", ()),
        ):
            if each["name"] == container:
                found: Object = each["state"]
                return found
        return {}

    def waits_for(self, container: str = "main", name: str = "p") -> str:
        return str(self.state(container, name).get("waiting", {}).get("reason", ""))

    def events(self) -> list[tuple[str, str]]:
        return [(each["reason"], each["message"]) for each in self.api.objects("events")]

    def deletions(self) -> list[Object]:
        return [json.loads(each.body) for each in self.api.sent("DELETE", "/pods/")]
