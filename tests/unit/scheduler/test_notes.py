"""Explanations on unschedulable pods: short, seldom written, replaced at bind."""

from __future__ import annotations

import asyncio
import collections
import json
from typing import Any

import pytest

from hami.scheduler import explanation_notes
from hami.wire import annotation_keys, explanation_note, node_marks, node_register
from tests import builders
from tests.builders import GPU
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


def note_of(api: ScriptedApi, name: str = "p") -> explanation_note.Note | None:
    pod = api.find("pods", name)
    assert pod is not None
    text = (pod["metadata"].get("annotations") or {}).get(annotation_keys.EXPLANATION)
    return None if text is None else explanation_note.decode(text)


def writes(api: ScriptedApi) -> list[dict[str, Any]]:
    key = annotation_keys.EXPLANATION.encode()
    return [json.loads(r.body) for r in api.sent("PATCH", "/pods/") if key in r.body]


async def refuse(replica: rig.Replica, name: str = "p", **more: Any) -> rig.Object:
    """Ask about a pod as kube-scheduler does, with the pod as it is stored."""
    pod = replica.api.find("pods", name) or replica.api.put(rig.pod(name, memory=9000, **more))
    answer = await replica.filter(pod)
    assert answer["NodeNames"] is None, answer
    return pod


async def test_a_note_is_written_after_two_seconds_with_the_pods_uid(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = await refuse(replica)
            times.pass_by(1.9)
            await replica.scheduler.explanation_notes.write_due()
            assert writes(api) == []
            times.pass_by(0.1)
            await replica.scheduler.explanation_notes.write_due()
            (body,) = writes(api)
            assert body["metadata"]["uid"] == pod["metadata"]["uid"]
            note = note_of(api)
    assert note is not None
    assert note.at == "2027-01-15T08:00:00Z"
    assert note.summary.startswith("no node fits: 1 nodes CardInsufficientMemory; nearest a (1000")
    assert note.fitting == 0
    assert note.reasons == {"CardInsufficientMemory": explanation_note.ReasonCount(1, 1)}
    assert note.near[0].memory_short == 1000


async def test_a_pod_that_is_refused_only_for_a_moment_gets_none(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("small"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = await refuse(replica)
            api.put(rig.node("a", cards=2, late=False, **big_cards()))
            await replica.seen()
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            times.pass_by(60)
            await replica.scheduler.explanation_notes.write_due()
            assert writes(api) == []
            assert await replica.bind(pod, "a") == ""
            assert note_of(api) is None


async def test_the_same_explanation_is_written_once_however_often_it_is_reached(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            for _ in range(5):
                await refuse(replica)
                times.pass_by(70)
                await replica.scheduler.explanation_notes.write_due()
                await replica.seen()
            assert len(writes(api)) == 1


async def test_another_explanation_is_written_but_not_within_a_minute(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica)
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            for number in range(5):
                api.put(rig.node(f"more-{number}"))
                await replica.seen()
                await refuse(replica)
                times.pass_by(10)
                await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1
            times.pass_by(10)
            await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 2
            note = note_of(api)
            assert note is not None
            assert note.reasons["CardInsufficientMemory"].nodes == 6


async def test_a_namesake_is_not_changed_and_the_deleted_pod_is_forgotten(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            # The watch is behind: it shows neither the end of the old one nor the new one.
            api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            await refuse(replica)
            api.remove("pods", "p")
            api.put(rig.pod("p", memory=9000))
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1
            assert note_of(api) is None
            assert len(replica.scheduler.unschedulable) == 0
            times.pass_by(120)
            await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1


async def test_a_note_that_could_not_be_written_is_tried_again_a_minute_later(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica)
            api.fault(method="PATCH", path="/pods/p", status=500)
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            assert note_of(api) is None
            times.pass_by(60)
            await replica.scheduler.explanation_notes.write_due()
            assert note_of(api) is not None


LONG = [f"a-node-with-a-rather-long-name-as-clouds-give-them-{n:04}" for n in range(40)]


def add_long_nodes(api: ScriptedApi) -> None:
    """Add nodes that refuse for many reasons, so that a note of all of it would be too long."""
    for number, name in enumerate(LONG):
        node = rig.node(name, cards=1 + number % 4)
        if number % 5 == 0:
            node["status"]["allocatable"][GPU] = "0"
        api.put(node)


async def test_a_new_leader_with_the_same_explanation_does_not_write_it_again(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        add_long_nodes(api)
        async with rig.running(api, clock=times.clock, now=times.now) as old:
            await refuse(old, gpu=3)
            times.pass_by(2)
            await old.scheduler.explanation_notes.write_due()
        first = note_of(api)
        times.pass_by(100)
        async with rig.running(api, clock=times.clock, now=times.now) as new:
            await refuse(new, gpu=3)
            times.pass_by(2)
            await new.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1
            assert note_of(api) == first
            api.put(rig.node("one-more"))
            await new.seen()
            await refuse(new, gpu=3)
            await new.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 2


async def test_a_note_is_at_most_a_kibibyte(times: Times) -> None:
    async with ScriptedApi() as api:
        add_long_nodes(api)
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica, gpu=3)
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            pod = api.find("pods", "p")
            assert pod is not None
            text = pod["metadata"]["annotations"][annotation_keys.EXPLANATION]
            assert len(text.encode()) <= 1024
            note = explanation_note.decode(text)
            assert note.summary.startswith("no node fits: ")


async def test_what_another_leader_has_written_meanwhile_is_seen(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica)
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            stored = api.find("pods", "p")
            assert stored is not None
            other = explanation_note.encode(explanation_note.Note(summary="by another"))
            stored["metadata"]["annotations"][annotation_keys.EXPLANATION] = other
            api.put(stored)
            await replica.seen()
            await refuse(replica)
            times.pass_by(60)
            await replica.scheduler.explanation_notes.write_due()
            note = note_of(api)
            assert note is not None
            assert note.summary.startswith("no node fits")


@pytest.mark.parametrize("text", ["{", "x" * 300_000, json.dumps({"near": [{"node": ""}] * 90})])
async def test_a_note_that_is_not_ours_is_replaced(times: Times, text: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica, annotations={annotation_keys.EXPLANATION: text})
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            note = note_of(api)
            assert note is not None
            assert note.summary.startswith("no node fits")


@pytest.mark.parametrize("leader", ["same", "new", "new, without a filter"])
async def test_the_binding_itself_ends_the_note(times: Times, leader: str) -> None:
    async with ScriptedApi() as api:
        async with rig.running(api, clock=times.clock, now=times.now) as old:
            await refuse(old)
            times.pass_by(2)
            await old.scheduler.explanation_notes.write_due()
            await old.seen()
            api.put(rig.node("a", cards=2, late=False, **big_cards()))
            if leader == "same":
                await place(old)
        if leader != "same":
            async with rig.running(api, clock=times.clock, now=times.now) as new:
                await place(new, filtered=leader == "new")
        note = note_of(api)
        assert note is not None
        assert (note.summary, note.fitting) == ("placed on a", 1)
        assert len(writes(api)) == 1


def big_cards() -> dict[str, str]:
    register = node_register.encode_json(builders.cards("a", 2, devmem=16000))
    keys = builders.NVIDIA.annotations
    return {keys.register: register, keys.binding: node_marks.late_binding_mark(register)}


async def place(replica: rig.Replica, *, filtered: bool = True) -> None:
    await replica.seen()
    pod = replica.api.find("pods", "p")
    assert pod is not None
    if filtered:
        assert (await replica.filter(pod))["NodeNames"] == ["a"]
    assert await replica.bind(pod, "a") == ""


async def test_many_notes_are_written_a_few_at_a_time_and_all_have_their_turn(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation_notes, "BATCH", 3)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            for number in range(8):
                await refuse(replica, f"p{number}")
            times.pass_by(2)
            written = []
            for _ in range(4):
                before = len(writes(api))
                await replica.scheduler.explanation_notes.write_due()
                written.append(len(writes(api)) - before)
            assert written == [3, 3, 2, 0]
            # The explanation changes for all, faster than all can be written.
            await replica.seen()
            for minute in range(4):
                api.put(rig.node(f"more-{minute}"))
                await replica.seen()
                for number in range(8):
                    await refuse(replica, f"p{number}")
                times.pass_by(60)
                await replica.scheduler.explanation_notes.write_due()
                await replica.seen()
            latest = [note_of(api, f"p{number}") for number in range(8)]
            assert all(note is not None and note.summary.count("1 nodes") == 0 for note in latest)


async def test_a_round_encodes_only_notes_that_changed_and_lets_other_tasks_run_after_each(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, turns, encoded = explanation_note.encode, [0], []

    def counted(note: explanation_note.Note) -> str:
        encoded.append(turns[0])
        return encode(note)

    async def tick() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(explanation_notes, "BATCH", 0)  # what is due stays due
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            other = explanation_note.encode(explanation_note.Note(summary="of another leader"))
            for number in range(50):
                annotations = {annotation_keys.EXPLANATION: other}
                await refuse(replica, f"p{number}", annotations=annotations)
            await replica.seen()
            times.pass_by(2)
            monkeypatch.setattr(explanation_note, "encode", counted)
            ticking = asyncio.create_task(tick())
            await replica.scheduler.explanation_notes.write_due()
            assert len(encoded) == 100
            assert max(collections.Counter(encoded).values()) == 2  # the old note and the new one
            for _ in range(3):
                await replica.scheduler.explanation_notes.write_due()
            assert len(encoded) == 100
            ticking.cancel()


async def test_pods_that_are_refused_again_for_the_same_reasons_cost_no_encoding(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encoded = explanation_note.encode, []

    def counted(note: explanation_note.Note) -> str:
        encoded.append(note)
        return encode(note)

    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica)
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1
            monkeypatch.setattr(explanation_note, "encode", counted)
            for _ in range(3):
                times.pass_by(70)
                await replica.seen()
                await refuse(replica)
                await replica.scheduler.explanation_notes.write_due()
            assert encoded == []


async def test_only_a_leader_writes(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await refuse(replica)
            times.pass_by(2)
            monkeypatch.setattr(replica.scheduler.leadership, "_until", 0.0)
            await replica.scheduler.explanation_notes.write_due()
            assert writes(api) == []
            monkeypatch.undo()
            await replica.scheduler.explanation_notes.write_due()
            assert len(writes(api)) == 1


async def test_the_event_of_a_refusal_is_bounded_and_counts_every_node(times: Times) -> None:
    async with ScriptedApi() as api:
        add_long_nodes(api)
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            pod = api.put(rig.pod("p", memory=9000))
            unknown = [f"unknown-{number:03}" for number in range(500)]
            await replica.filter(pod, [*LONG, *unknown])
            await rig.eventually(lambda: bool(api.objects("events")))
            (event,) = api.objects("events")
    assert event["reason"] == "FilteringFailed"
    assert len(event["message"].encode()) <= 1024
    assert event["message"].startswith("no available node, 540 nodes do not meet; ")
    # Eight of those that are known offer no card.
    assert "508 nodes node unregistered(unknown-000,unknown-001,unknown-002," in event["message"]
    assert "… 503 more)" in event["message"]
