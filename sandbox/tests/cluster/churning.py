"""Pods that come and go on a sandbox while its programs and containers are killed.

One seed draws every pod, every deletion and every kill. Kills and deletions are keyed to the number
of pods that were served, never to a clock, so a slow machine sees the same schedule as a fast one.
Pods that kubelet refuses, because its plugin was killed, do not count; others are created in their
place. No program is informed of a kill: it has to go on from the state that it finds.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import signal
from collections.abc import Iterator

from hami.kube import errors, paths
from hami.wire import codec
from hami_sandbox.cluster import Sandbox
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import ContainerState, Phase

NAMESPACE = "churn"
IMAGE = "hami"
#: 1,000 in `make soak`.
PODS = 80
#: So many pods are wanted at once: more than the cards have room for, so that some wait.
AT_ONCE = 24
#: A kill after every so many pods that were served, the last of them some pods before the end.
KILL_EVERY = 5
KILLS = 12
#: kubelet's word for a pod that it refused.
REFUSED = "UnexpectedAdmissionError"
#: A round of kills, in an order that is drawn anew for every round.
ROUND = ("agent", "kubelet", "container", "container")
LOOK_S = 0.2
ENDS = ("Succeeded", "Failed")
#: Catches hangs only.
PATIENCE_S = 540.0
PATIENCE_PER_POD_S = 3.0

Object = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Kill:
    """A SIGKILL that is due once `after` pods were served."""

    after: int
    what: str
    node: str


@dataclasses.dataclass(frozen=True)
class Wish:
    """A pod, and whether a user deletes it before its end."""

    body: Object
    #: Delete it once so many pods were served since its creation; None: it is left alone.
    deleted_after: int | None
    grace: int


@dataclasses.dataclass(frozen=True)
class Failure:
    """A pod that failed, and the reason in its status; the reason is empty for a container's."""

    pod: str
    reason: str
    message: str


class Churn:
    """`pods` are created at least, and `kills` of them are done; more pods for more kills."""

    def __init__(
        self, sandbox: Sandbox, seed: int, *, pods: int = PODS, kills: int = KILLS
    ) -> None:
        self._sandbox = sandbox
        self._random = random.Random(seed)
        self._pods = pods
        #: In the order in which they are due.
        self.schedule = tuple(self._kills(kills, list(sandbox.nodes)))
        #: How often each kind of thing was killed.
        self.kills: collections.Counter[str] = collections.Counter()
        #: What became of the pods: Succeeded, Failed, refused, or deleted before any of them.
        self.ends: collections.Counter[str] = collections.Counter()
        self.created = 0
        #: Names of the pods that were deleted, and of those that lost a container, by our doing.
        self.struck: set[str] = set()
        self.failures: list[Failure] = []
        #: Pods that kubelet took, and that have ended since.
        self.served = 0
        self._news = asyncio.Condition()

    async def run(self) -> None:
        """Create all pods, wait until each has ended and every kill was done."""
        await self._create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        killing = asyncio.create_task(self._kill_as_scheduled())
        try:
            async with asyncio.timeout(max(PATIENCE_S, PATIENCE_PER_POD_S * self._pods)):
                await self._come_and_go(killing)
                await killing
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)

    def _kills(self, count: int, nodes: list[str]) -> Iterator[Kill]:
        turns = list(ROUND)
        for number in range(count):
            if number % len(turns) == 0:
                self._random.shuffle(turns)
            what = turns[number % len(turns)]
            yield Kill((number + 1) * KILL_EVERY, what, self._random.choice(nodes))

    async def _come_and_go(self, killing: asyncio.Task[None]) -> None:
        there: dict[str, tuple[Wish, int]] = {}
        goal = (len(self.schedule) + 1) * KILL_EVERY
        while there or self._wants_more(killing, goal):
            while len(there) < AT_ONCE and self._wants_more(killing, goal):
                name = f"p{self.created:03d}"
                wish = self._wish(name)
                await self._create(paths.pods(NAMESPACE), wish.body)
                self.created += 1
                there[name] = (wish, self.served)
            known = await self._list()
            for name, (wish, since) in list(there.items()):
                status = known.get(name)
                if status is None or status["phase"] in ENDS:
                    del there[name]
                    await self._note_end(name, status)
                    await self._delete(name, grace=0)
                elif wish.deleted_after is not None and self.served - since >= wish.deleted_after:
                    self.struck.add(name)
                    await self._delete(name, grace=wish.grace)
            await asyncio.sleep(LOOK_S)

    def _wants_more(self, killing: asyncio.Task[None], goal: int) -> bool:
        """Tell whether to create another pod: for the count, or as a kill still waits for it."""
        if killing.done():
            killing.result()  # a mistake of ours is raised here
        return self.created < self._pods or self.served < goal or not killing.done()

    async def _note_end(self, name: str, status: Object | None) -> None:
        phase = str(status["phase"]) if status else "deleted"
        reason = str(status.get("reason", "")) if status else ""
        self.ends["refused" if reason == REFUSED else phase] += 1
        if status and phase == "Failed":
            message = status.get("message") or json.dumps(status.get("containerStatuses"))
            self.failures.append(Failure(name, reason, str(message)))
        if reason != REFUSED:
            async with self._news:
                self.served += 1
                self._news.notify_all()

    def _wish(self, name: str) -> Wish:
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
        deleted_after = draw.randint(1, AT_ONCE) if draw.random() < 0.25 else None
        body: Object = {"metadata": {"name": name}, "spec": spec}
        return Wish(body, deleted_after, grace=draw.choice((0, 1, 2)))

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

    async def _kill_as_scheduled(self) -> None:
        draw = random.Random(self._random.random())  # pods are drawn meanwhile
        for kill in self.schedule:
            async with self._news:
                await self._news.wait_for(lambda: self.served >= kill.after)  # noqa: B023 - awaited here
            struck = False
            while not struck:
                if kill.what == "container":
                    struck = self._kill_container(draw)
                else:
                    struck = self._sandbox.programs[f"{kill.node}/{kill.what}"].kill() is not None
                if not struck:
                    await asyncio.sleep(0.02)  # until a container runs, or the program again
            self.kills[kill.what] += 1

    def _kill_container(self, draw: random.Random) -> bool:
        """Kill the first process of a container that runs; False: none does."""
        victims = sorted(_running(self._sandbox), key=lambda state: state.spec.id)
        if not victims:
            return False
        victim = draw.choice(victims)
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.struck.add(victim.spec.pod_name)
        return True

    async def _list(self) -> dict[str, Object]:
        """Return the status of every pod, by name."""
        items = json.loads(await self._sandbox.client.get(paths.pods(NAMESPACE)))["items"]
        return {pod["metadata"]["name"]: {"phase": "Pending", **pod["status"]} for pod in items}

    async def _create(self, path: str, body: Object) -> None:
        await self._sandbox.client.create(path, codec.encode(body))

    async def _delete(self, name: str, *, grace: int) -> None:
        body = codec.encode({"gracePeriodSeconds": grace})
        with contextlib.suppress(errors.NotFound):
            await self._sandbox.client.delete(paths.pods(NAMESPACE, name), body)


def _running(sandbox: Sandbox) -> Iterator[ContainerState]:
    """Give every container that runs now."""
    for node in sandbox.nodes.values():
        for container in Runtime(node.folders.containers, cdi_dirs=()).list():
            if container.phase is Phase.RUNNING and container.pid:
                yield container
