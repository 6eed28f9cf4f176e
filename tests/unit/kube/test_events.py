"""Events for users: soon, few, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.wire import correlation
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until


class Rig:
    """A recorder whose clock is in the test's hand."""

    def __init__(self, api: ScriptedApi, client: Client) -> None:
        self.api = api
        self.time = 1000.0
        self.recorder = EventRecorder(
            client,
            component="hami-scheduler",
            host="host-1",
            clock=lambda: self.time,
            now=lambda: 1_700_000_000 + self.time,
        )

    def say(self, name: str = "p", message: str = "no card is free", **more: str) -> None:
        given: dict[str, Any] = {"namespace": "default", "uid": f"uid-{name}", **more}
        given.setdefault("reason", "FilteringFailed")
        self.recorder.record(name=name, message=message, type="Warning", **given)

    def stored(self) -> list[dict[str, Any]]:
        return self.api.objects("events")

    async def settled(self) -> None:
        """Wait until everything that is queued has been answered."""
        stats = self.recorder.stats
        await until(lambda: not self.recorder._queue)
        seen = len([r for r in self.api.requests if "/events" in r.path])
        await until(lambda: stats.sent + stats.failed >= seen)


@pytest.fixture
async def rig(api: ScriptedApi, client: Client) -> AsyncIterator[Rig]:
    made = Rig(api, client)
    task = asyncio.create_task(made.recorder.run())
    yield made
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_an_event_says_of_whom_what_and_by_whom(rig: Rig) -> None:
    correlation.begin("the-filter-call")
    rig.say("p")
    await until(rig.stored)
    (event,) = rig.stored()
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("p.")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "namespace": "default",
        "uid": "uid-p",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == (
        "Warning",
        "FilteringFailed",
        "no card is free",
        1,
    )
    assert event["source"] == {"component": "hami-scheduler", "host": "host-1"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2023-11-14T22:30:00Z"
    assert rig.api.requests[0].headers["Audit-ID"] == "the-filter-call"


async def test_the_same_again_is_counted_at_most_once_a_minute(rig: Rig) -> None:
    rig.say()
    await until(lambda: rig.recorder.stats.sent == 1)
    for _ in range(5):
        rig.time += 10
        rig.say()
        rig.recorder.flush()
    await rig.settled()
    assert [event["count"] for event in rig.stored()] == [1]
    rig.time += 10
    rig.recorder.flush()
    await until(lambda: rig.recorder.stats.sent == 2)
    (event,) = rig.stored()
    assert event["count"] == 6
    assert event["lastTimestamp"] == "2023-11-14T22:31:00Z"
    assert [r.method for r in rig.api.requests] == ["POST", "PATCH"]


async def test_the_same_after_ten_silent_minutes_is_a_new_event(rig: Rig) -> None:
    rig.say()
    await until(lambda: rig.recorder.stats.sent == 1)
    rig.time += 601
    rig.say()
    await until(lambda: len(rig.stored()) == 2)


async def test_another_message_is_another_event(rig: Rig) -> None:
    rig.say(message="a")
    rig.say(message="b")
    await until(lambda: len(rig.stored()) == 2)


async def test_pods_of_a_thousand_namespaces_do_not_flood_the_server(rig: Rig) -> None:
    for number in range(1000):
        rig.say(f"p{number}", namespace=f"team-{number}")
    for flushes in range(1, 30):
        rig.time += 2
        rig.recorder.flush()
        await rig.settled()
        assert len(rig.stored()) <= 40 + 40 * flushes, "more than 20 a second"
    await until(lambda: len(rig.stored()) == 1000)


async def test_above_the_rate_many_pods_become_one_event_on_their_namespace(rig: Rig) -> None:
    for number in range(100):
        rig.say(f"p{number}")
    for number in range(10):
        rig.say(f"q{number}", namespace="other")
    await until(lambda: len(rig.stored()) == 40)
    rig.recorder.flush()
    await until(lambda: len(rig.stored()) == 42)
    grouped = [e for e in rig.stored() if e["involvedObject"]["kind"] == "Namespace"]
    assert [(e["metadata"]["namespace"], e["involvedObject"], e["message"]) for e in grouped] == [
        (
            "default",
            {"apiVersion": "v1", "kind": "Namespace", "name": "default", "namespace": "default"},
            "60 pods: no card is free (p40, p41, p42, p43, p44, …)",
        ),
        (
            "other",
            {"apiVersion": "v1", "kind": "Namespace", "name": "other", "namespace": "other"},
            "10 pods: no card is free (q0, q1, q2, q3, q4, …)",
        ),
    ]
    assert rig.recorder.stats.aggregated == 70
    rig.time += 1
    for number in range(21):
        rig.say(f"r{number}")
    await until(lambda: len(rig.stored()) == 62)  # twenty a second again


async def test_a_single_pod_above_the_rate_gets_its_own_event(rig: Rig) -> None:
    for number in range(41):
        rig.say(f"p{number}")
    rig.recorder.flush()
    await until(lambda: len(rig.stored()) == 41)
    assert {e["involvedObject"]["kind"] for e in rig.stored()} == {"Pod"}


async def test_objects_without_a_namespace_have_their_events_in_default(rig: Rig) -> None:
    rig.say("node-1", namespace="", kind="Node")
    await until(rig.stored)
    (event,) = rig.stored()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


@pytest.mark.parametrize("letter", ["x", "ä", "🙂"])
async def test_long_messages_are_cut_to_a_kibibyte(rig: Rig, letter: str) -> None:
    rig.say(message=letter * 2000)
    await until(rig.stored)
    message = rig.stored()[0]["message"]
    assert 1018 <= len(message.encode()) <= 1024
    assert message.endswith(f"{letter}…")


async def test_what_cannot_be_written_as_text_is_still_no_error(rig: Rig) -> None:
    rig.say(message="broken \udc80 text")
    await until(rig.stored)
    assert rig.stored()[0]["message"] == "broken ? text"


async def test_refusals_are_counted_and_logged_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.api.fault(path="/events", status=403, reason="Forbidden", times=None)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            rig.say(f"p{number}")
        await until(lambda: rig.recorder.stats.failed == 3)
        assert len(caplog.records) == 1
        rig.time += 60
        rig.say("p9")
        await until(lambda: rig.recorder.stats.failed == 4)
    assert len(caplog.records) == 2
    assert rig.stored() == []


async def test_an_event_that_was_refused_is_retried_when_it_is_recorded_again(rig: Rig) -> None:
    rig.api.fault(path="/events", status=500)
    rig.say()
    await until(lambda: rig.recorder.stats.failed == 1)
    rig.say()
    await until(rig.stored)


async def test_an_event_that_the_server_has_forgotten_begins_again(rig: Rig) -> None:
    rig.say()
    await until(lambda: rig.recorder.stats.sent == 1)
    rig.api.remove("events", rig.stored()[0]["metadata"]["name"])
    rig.time += 61
    rig.say()
    rig.recorder.flush()
    await until(lambda: rig.recorder.stats.failed == 1)
    rig.say()
    await until(rig.stored)


async def test_the_queue_is_bounded_and_forgets_the_oldest(
    api: ScriptedApi, client: Client
) -> None:
    rig = Rig(api, client)
    for number in range(1500):
        rig.time += 1
        rig.say(f"p{number}")
    assert rig.recorder.stats.dropped == 500
    task = asyncio.create_task(rig.recorder.run())
    await until(lambda: rig.recorder.stats.sent == 1000)
    assert rig.stored()
    names = {event["involvedObject"]["name"] for event in rig.stored()}
    assert names == {f"p{number}" for number in range(500, 1500)}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
