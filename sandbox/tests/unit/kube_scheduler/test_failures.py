"""Failures around the scheduler, which it survives."""

from __future__ import annotations

import asyncio

import pytest

from hami_sandbox.kube_scheduler.cluster_view import SEEN_WITHIN_S
from sandbox.tests.unit.kube_scheduler import rig
from sandbox.tests.unit.kube_scheduler.makers import GPU, node_object, pod_object
from tests.scripted_api.server import Lost, ScriptedApi
from tests.unit.kube.following import until


async def test_an_extender_that_is_down_is_an_error_and_is_asked_again() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a"))
        async with rig.extender(api) as gone:
            settings = gone.settings()
        async with rig.running(api, settings):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.condition(api, "p"))
            condition = rig.condition(api, "p")
            assert condition["reason"] == "SchedulerError"
            assert condition["message"].startswith(f'Post "{settings.url}/filter": ')
            await until(lambda: rig.events(api, "p", "FailedScheduling"))


@pytest.mark.parametrize("what", ["error", "status", "bind"])
async def test_what_an_extender_may_answer_wrongly(what: str) -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        told = "the cache is cold"
        if what == "error":
            extender.error = told
        elif what == "status":
            extender.status = 503
            told = f"failed filter with extender at URL {extender.url}/filter, code 503"
        else:
            extender.bind_error = "no cards left"
            told = "no cards left"
        async with rig.running(api, extender.settings()):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.condition(api, "p"))
            assert rig.condition(api, "p")["message"] == told
            assert rig.condition(api, "p")["reason"] == "SchedulerError"
            # As soon as it is well again the pod is placed, whoever noticed.
            extender.error, extender.bind_error, extender.status = "", "", 200
            await until(lambda: rig.node_of(api, "p") == "a")


async def test_an_extender_that_names_a_node_that_it_was_not_asked_about() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        extender.invents = ("b",)
        async with rig.running(api, extender.settings()):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.condition(api, "p"))
            assert 'a filtered node "b" which is not' in rig.condition(api, "p")["message"]
            assert not extender.binds
            extender.invents = ()
            await until(lambda: rig.node_of(api, "p") == "a")


async def test_an_ignorable_extender_is_left_out() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        extender.status = 500
        async with rig.running(api, extender.settings(ignorable=True)):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.node_of(api, "p") == "a")
            assert api.sent("POST", "/binding")


async def test_an_extender_that_does_not_answer_in_time() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        extender.gate = asyncio.Event()
        async with rig.running(api, extender.settings(timeout=0.05)):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.condition(api, "p"))
            assert "no answer within 0.05 s" in rig.condition(api, "p")["message"]
            extender.gate.set()
            await until(lambda: rig.node_of(api, "p") == "a")


async def test_a_pod_that_is_deleted_while_it_is_tried() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a", cpu="1"))
        extender.gate = asyncio.Event()
        async with rig.running(api, extender.settings()) as scheduler:
            api.put(pod_object("p", requests={GPU: "1", "cpu": "1"}))
            await until(lambda: extender.filters)
            api.remove("pods", "p")
            await rig.seen(api, scheduler)
            extender.gate.set()
            # Its place is free for the next one.
            api.put(pod_object("q", requests={"cpu": "1"}))
            await until(lambda: rig.node_of(api, "q") == "a")
            assert not extender.binds
            assert not rig.events(api, "p", "FailedScheduling")


async def test_a_pod_that_is_deleted_while_it_is_bound() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="1"))
        held = asyncio.Event()
        api.fault(method="POST", path="/binding", gate=held)
        async with rig.running(api) as scheduler:
            api.put(pod_object("p", requests={"cpu": "1"}))
            await until(lambda: api.sent("POST", "/binding"))
            api.remove("pods", "p")
            await rig.seen(api, scheduler)
            held.set()
            api.put(pod_object("q", requests={"cpu": "1"}))
            await until(lambda: rig.node_of(api, "q") == "a")
            await until(lambda: len(scheduler.queue) == 0)


async def test_a_pod_that_is_being_deleted_is_not_placed() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        pod = pod_object("p", metadata={"finalizers": ["x/y"]})
        api.put(pod)
        await until(lambda: rig.condition(api, "p"))
        api.remove("pods", "p")
        await rig.seen(api, scheduler)
        assert (api.find("pods", "p") or {})["metadata"]["deletionTimestamp"]
        api.put(node_object("a"))
        api.put(pod_object("q"))
        await until(lambda: rig.node_of(api, "q") == "a")
        assert rig.node_of(api, "p") == ""


async def test_a_node_that_goes_while_the_extender_thinks() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        extender.gate = asyncio.Event()
        async with rig.running(api, extender.settings()) as scheduler:
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: extender.filters)
            api.remove("nodes", "a")
            api.put(node_object("b"))
            await rig.seen(api, scheduler)
            extender.gate.set()
            await until(lambda: rig.node_of(api, "p") == "b")
            assert [bind["Node"] for bind in extender.binds] == ["b"]


async def test_a_node_that_comes_back_has_its_pods() -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        api.put(node_object("a", cpu="1"))
        api.put(pod_object("p", requests={"cpu": "1"}))
        await until(lambda: rig.node_of(api, "p") == "a")
        api.remove("nodes", "a")
        await rig.seen(api, scheduler)
        assert scheduler.cluster.rows() == []
        api.put(node_object("a", cpu="1"))
        api.put(pod_object("q", requests={"cpu": "1"}))
        await until(lambda: rig.condition(api, "q"))
        assert rig.condition(api, "q")["message"] == (
            "0/1 nodes are available: 1 Insufficient cpu."
        )


async def test_a_binding_that_is_refused_is_tried_again() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="1"))
        api.fault(method="POST", path="/binding", status=500, message="etcd is slow", times=2)
        async with rig.running(api):
            api.put(pod_object("p", requests={"cpu": "1"}))
            await until(lambda: rig.node_of(api, "p") == "a")
            await until(lambda: rig.events(api, "p", "FailedScheduling"))
            (event, *_) = rig.events(api, "p", "FailedScheduling")
            assert event["message"] == 'running Bind plugin "DefaultBinder": etcd is slow'


async def test_a_binding_whose_answer_is_lost_has_happened() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="2"))
        api.fault(method="POST", path="/binding", lost=Lost.AFTER)
        async with rig.running(api) as scheduler:
            api.put(pod_object("p", requests={"cpu": "1"}))
            await until(lambda: rig.node_of(api, "p") == "a")
            await until(lambda: len(scheduler.queue) == 0)
            (row,) = scheduler.cluster.rows()
            assert row.used == {"cpu": 1000}


async def test_an_api_server_that_stops_every_watch_and_forgets() -> None:
    async with ScriptedApi() as api, rig.running(api):
        api.put(node_object("a"))
        for number in range(5):
            api.put(pod_object(f"p{number}"))
            await until(lambda n=number: rig.node_of(api, f"p{n}") == "a")  # type: ignore[misc] # bound now
            api.compact()
            api.close_watches()


async def test_a_binding_that_the_server_forgot_is_made_again() -> None:
    """An API server that was restored from a snapshot has the pod without its node."""
    moved = 0.0
    loop = asyncio.get_running_loop()
    async with ScriptedApi() as api, rig.extender() as extender:
        # It says that it has bound, and has not.
        api.put(node_object("a"))
        async with rig.running(
            api, extender.settings(), clock=lambda: loop.time() + moved
        ) as scheduler:
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: extender.binds)
            await until(lambda: len(scheduler.queue) == 0)
            assert scheduler.cluster.expire() == []
            moved = SEEN_WITHIN_S
            (pod,) = scheduler.cluster.expire()
            assert pod.name == "p"
            await until(lambda: len(extender.binds) == 2)


async def test_somebody_else_places_the_pod_while_it_is_tried() -> None:
    async with ScriptedApi() as api, rig.extender(api) as extender:
        api.put(node_object("a"))
        api.put(node_object("b"))
        extender.gate = asyncio.Event()
        extender.takes = lambda name: name == "a"
        async with rig.running(api, extender.settings()) as scheduler:
            api.put(pod_object("p", requests={GPU: "1", "cpu": "1"}))
            await until(lambda: extender.filters)
            rig.bind(api, "p", "b")
            await rig.seen(api, scheduler)
            extender.gate.set()
            api.put(pod_object("q"))
            await until(lambda: rig.node_of(api, "q"))
            assert not extender.binds
            used = {row.name: row.used.get("cpu", 0) for row in scheduler.cluster.rows()}
            assert used == {"a": 0, "b": 1000}


async def test_what_nobody_thought_of_costs_one_attempt_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedApi() as api, rig.running(api) as scheduler:
        with monkeypatch.context() as patch:

            def broken(_: object) -> None:
                raise RuntimeError("a bug")

            patch.setattr(scheduler.cluster, "neighbours", broken)
            api.put(node_object("a"))
            api.put(pod_object("p"))
            await until(lambda: rig.condition(api, "p"))
            assert rig.condition(api, "p")["message"] == "RuntimeError: a bug"
        await until(lambda: rig.node_of(api, "p") == "a")
    told = [record for record in caplog.records if record.getMessage() == "attempt failed"]
    assert told
    assert all(record.exc_info for record in told)
