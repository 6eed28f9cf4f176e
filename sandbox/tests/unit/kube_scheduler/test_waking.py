"""Events that make an unschedulable pod be tried again, and those that do not."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.wire import annotation_keys
from hami_sandbox.kube_scheduler.main import Scheduler
from hami_sandbox.kube_scheduler.queue import Entry
from sandbox.tests.unit.kube_scheduler import rig
from sandbox.tests.unit.kube_scheduler.makers import GPU, Object, node_object, pod_object
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until


class Waiting:
    """A pod that was refused by everybody, and what is done to the cluster then."""

    def __init__(self, api: ScriptedApi, scheduler: Scheduler, entry: Entry) -> None:
        self.api = api
        self.scheduler = scheduler
        self.entry = entry
        self._markers = itertools.count()

    async def attempts(self) -> int:
        """Return how often it was tried, once all that has happened has been dealt with."""
        await rig.seen(self.api, self.scheduler)
        # Whatever was to be done was begun when the change was seen; this pod comes after it. It
        # stays: its end would wake others.
        name = f"marker-{next(self._markers)}"
        self.api.put(pod_object(name, priority=-1))
        await until(lambda: rig.node_of(self.api, name))
        await until(lambda: self.entry.place.name in ("WAITING", "OUT"))
        return self.entry.attempts

    def change(self, resource: str, name: str, **parts: Any) -> None:
        """Merge into an object."""
        found: Object = self.api.find(resource, name) or {}
        for part, values in parts.items():
            found[part] = {**found.get(part, {}), **values}
        self.api.put(found)


@contextlib.asynccontextmanager
async def waiting(pod: Object, **nodes: Object) -> AsyncIterator[Waiting]:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        extender.takes = lambda _: False
        for name, fields in nodes.items():
            api.put(node_object(name, **fields))
        async with rig.running(api, extender.settings(), first_backoff=0.0) as scheduler:
            made = api.put(pod)
            await until(lambda: scheduler.queue.get(made["metadata"]["uid"]))
            entry = scheduler.queue.get(made["metadata"]["uid"])
            assert entry is not None
            await until(lambda: entry.place.name == "WAITING")
            await until(lambda: rig.condition(api, "p"))
            yield Waiting(api, scheduler, entry)


async def test_hamis_wake_up_of_a_node() -> None:
    async with waiting(pod_object("p", requests={GPU: "1"}), a={}) as there:
        there.change("nodes", "a", metadata={"annotations": {annotation_keys.REQUEUE: "1.0"}})
        assert await there.attempts() == 2


async def test_hamis_wake_up_of_the_pod() -> None:
    async with waiting(pod_object("p", requests={GPU: "1"}), a={}) as there:
        there.change("pods", "p", metadata={"annotations": {annotation_keys.REQUEUE: "1.0"}})
        assert await there.attempts() == 2


async def test_a_heartbeat_wakes_nobody() -> None:
    async with waiting(pod_object("p", requests={GPU: "1"}), a={}) as there:
        ready = {"type": "Ready", "status": "True"}
        there.change("nodes", "a", status={"conditions": [{**ready, "lastHeartbeatTime": "1"}]})
        tried = await there.attempts()
        there.change("nodes", "a", status={"conditions": [{**ready, "lastHeartbeatTime": "2"}]})
        assert await there.attempts() == tried


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"status": {"allocatable": {"cpu": "9", "pods": "9"}}}, True),
        ({"status": {"allocatable": {"cpu": "3", "pods": "9"}}}, False),
        ({"metadata": {"labels": {"x": "y"}}}, False),
    ],
)
async def test_a_node_wakes_those_whom_it_could_take_now(change: Object, wakes: bool) -> None:
    async with waiting(pod_object("p", requests={"cpu": "4"}), a={"cpu": "2"}) as there:
        there.change("nodes", "a", **change)
        assert await there.attempts() == 1 + wakes


async def test_the_end_of_a_pod_on_a_node_that_could_take_it() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        api.put(node_object("a", cpu="4"))
        api.put(node_object("b", cpu="1"))
        for name, cpu in (("big", "4"), ("small", "1")):
            api.put(pod_object(name, requests={"cpu": cpu}))
            await until(lambda n=name: rig.node_of(api, n))  # type: ignore[misc] # bound now
        made = api.put(pod_object("p", requests={"cpu": "3"}))
        await until(lambda: rig.condition(api, "p"))
        entry = scheduler.queue.get(made["metadata"]["uid"])
        assert entry is not None
        api.remove("pods", "small")
        await rig.seen(api, scheduler)
        assert entry.place.name == "WAITING"
        # A pod that has ended keeps its object and frees its place.
        big = api.find("pods", "big") or {}
        big["status"]["phase"] = "Succeeded"
        api.put(big)
        await until(lambda: rig.node_of(api, "p") == "a")


async def test_a_pod_that_was_made_smaller_in_place() -> None:
    async with ScriptedApi() as api, rig.running(api):
        api.put(node_object("a", cpu="4"))
        api.put(pod_object("big", requests={"cpu": "4"}))
        await until(lambda: rig.node_of(api, "big"))
        api.put(pod_object("p", requests={"cpu": "3"}))
        await until(lambda: rig.condition(api, "p"))
        big = api.find("pods", "big") or {}
        big["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
        api.put(big)
        await until(lambda: rig.node_of(api, "p") == "a")


async def test_a_pod_to_be_near_to() -> None:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "db"}},
    }
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with ScriptedApi() as api, rig.running(api):
        for name in ("a", "b"):
            api.put(node_object(name))
        api.put(pod_object("p", affinity=near))
        await until(lambda: rig.condition(api, "p"))
        selector = {"kubernetes.io/hostname": "b"}
        api.put(pod_object("db", labels={"app": "db"}, nodeSelector=selector))
        await until(lambda: rig.node_of(api, "p") == "b")
