"""Pods that come and go on a sandbox while its programs and containers are killed.

Everything random comes from one seed. Nobody is told what was killed: whatever state is found after
a kill has to be good enough to go on from.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Iterator

from hami.kube import errors, paths
from hami.wire import codec, objects
from hami_sandbox.cluster import Sandbox
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import Phase

NAMESPACE = "churn"
IMAGE = "hami"
PODS = 200
#: So many pods are wanted at once: more than the cards have room for, so that some wait.
AT_ONCE = 24
KILL_EVERY_S = 1.5
PATIENCE_S = 240.0

Object = dict[str, object]


class Churn:
    def __init__(self, sandbox: Sandbox, seed: int) -> None:
        self._sandbox = sandbox
        self._random = random.Random(seed)
        #: How often each kind of thing was killed.
        self.kills: collections.Counter[str] = collections.Counter()
        #: What became of the pods: Succeeded, Failed, or deleted before either.
        self.ends: collections.Counter[str] = collections.Counter()

    async def run(self) -> None:
        """Have all pods created, and wait until each is over."""
        await self._create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        killing = asyncio.create_task(self._kill_all_the_time())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._come_and_go()
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing

    async def _come_and_go(self) -> None:
        left = [f"p{number:03d}" for number in range(PODS)]
        there: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        while left or there:
            while left and len(there) < AT_ONCE:
                name = left.pop(0)
                body, patience = self._pod(name)
                await self._create(paths.pods(NAMESPACE), body)
                there[name] = loop.time() + patience
            known = {pod.name: pod for pod in await self._pods()}
            for name, until in list(there.items()):
                pod = known.get(name)
                if pod is None or pod.finished:
                    self.ends[pod.phase if pod else "deleted"] += 1
                    del there[name]
                    await self._delete(name, grace=0)
                elif loop.time() >= until:
                    await self._delete(name, grace=self._random.choice((0, 1, 2)))
            await asyncio.sleep(0.2)

    def _pod(self, name: str) -> tuple[Object, float]:
        """Describe a pod, and say after how many seconds somebody loses patience with it."""
        draw = self._random
        spec: Object = {
            "containers": [self._container("main")],
            "restartPolicy": draw.choice(("Never", "OnFailure")),
        }
        if draw.random() < 0.2:
            spec["containers"] = [self._container("main"), self._container("second")]
        if draw.random() < 0.2:
            spec["initContainers"] = [self._container("before")]
        if draw.random() < 0.1:
            sidecar = self._container("beside", seconds=600) | {"restartPolicy": "Always"}
            spec["initContainers"] = [sidecar]
        patience = 8.0 if draw.random() < 0.25 else 60.0
        return {"metadata": {"name": name}, "spec": spec}, patience

    def _container(self, name: str, seconds: int | None = None) -> Object:
        draw = self._random
        memory = draw.choice((1000, 2000, 4000, 8000))
        used = draw.randint(100, memory - 600)  # a context takes some of it, too
        work = ["gpu-work", f"--memory={used}Mi"]
        work.append(f"--seconds={draw.randint(0, 2) if seconds is None else seconds}")
        if draw.random() < 0.3:
            work.append(f"--then-ask={memory}Mi")
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
        if draw.random() < 0.5:
            limits["nvidia.com/gpucores"] = draw.choice((10, 25, 50))
        return {
            "name": name,
            "image": IMAGE,
            "command": work,
            "resources": {"limits": limits},
        }

    async def _kill_all_the_time(self) -> None:
        turns = ["agent", "kubelet", "container", "container"]
        for number in itertools.count():
            await asyncio.sleep(KILL_EVERY_S * 2 * self._random.random())
            if number % len(turns) == 0:
                self._random.shuffle(turns)
            what = turns[number % len(turns)]
            node = self._random.choice(list(self._sandbox.nodes))
            if what == "container":
                if victims := list(_container_processes(self._sandbox)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._random.choice(victims), signal.SIGKILL)
                        self.kills[what] += 1
            elif self._sandbox.programs[f"{node}/{what}"].kill() is not None:
                self.kills[what] += 1

    async def _pods(self) -> list[objects.Pod]:
        body = await self._sandbox.client.get(paths.pods(NAMESPACE))
        return list(codec.decode(body, _PodList, what="pods").items)

    async def _create(self, path: str, body: Object) -> None:
        await self._sandbox.client.create(path, codec.encode(body))

    async def _delete(self, name: str, *, grace: int) -> None:
        body = codec.encode({"gracePeriodSeconds": grace})
        with contextlib.suppress(errors.NotFound):
            await self._sandbox.client.delete(paths.pods(NAMESPACE, name), body)


class _PodList(codec.Object, frozen=True):
    items: list[objects.Pod]


def _container_processes(sandbox: Sandbox) -> Iterator[int]:
    """Give the first process of every container that runs now."""
    for node in sandbox.nodes.values():
        for container in Runtime(node.folders.containers, cdi_dirs=()).list():
            if container.phase is Phase.RUNNING and container.pid:
                yield container.pid
