"""`hami explain`: a pod as data and as text."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from hami.cli import explain_text, pod_story
from hami.cli.pod_story import Granted, State, Story
from hami.wire import annotation_keys, errors, explanation_note, shares
from hami.wire.explanation_note import Near, Note, ReasonCount
from hami.wire.shares import Share
from tests import builders
from tests.unit.cli.pods import MAIN, pod

NOW = dt.datetime(2026, 2, 3, 5, 0, tzinfo=dt.UTC)
NOTE = Note(
    at="2026-02-03T04:59:30Z",
    summary="no node fits",
    reasons={"CardNotHealth": ReasonCount(1, 1), "CardInsufficientMemory": ReasonCount(3, 24)},
    near=(
        Near("node-2", "main", memory_short=2048, cards_missing=1),
        Near("node-3", "main", cores_short=10, cards_missing=2),
        Near("node-4"),
    ),
)


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "lastTransitionTime": "2026-02-03T04:30:00Z",
    "message": "0/3 nodes are available",
}


def gather(data: bytes) -> Story:
    return pod_story.gather(data, builders.VENDORS, scheduler_name="hami-scheduler")


def words(data: bytes) -> list[str]:
    text = explain_text.text(
        gather(data), managed=("nvidia.com/gpu",), scheduler_name="hami-scheduler", now=NOW
    )
    return text.splitlines()


def test_a_waiting_pod_shows_request_reasons_and_near_misses() -> None:
    annotations = {annotation_keys.EXPLANATION: explanation_note.encode(NOTE)}
    data = pod(MAIN, annotations=annotations, condition=UNSCHEDULABLE)
    assert words(data) == [
        "team/train waits since 2026-02-03T04:30:00Z (30 min)",
        "it asks for:",
        "  main: 1 card of NVIDIA, with 2048 MiB and 30 % of its compute",
        "why (30 s ago): no node fits",
        "  CardInsufficientMemory: 3 nodes, 24 cards",
        "  CardNotHealth: 1 node, 1 card",
        "nearest:",
        "  node-2, container main: 2048 MiB short, 1 card missing",
        "  node-3, container main: 10 % of compute short, 2 cards missing",
        "  node-4: almost fits",
        "kube-scheduler says: 0/3 nodes are available",
    ]
    story = gather(data)
    assert story.state is State.WAITING
    assert story.explanation == NOTE


def test_without_reasons_it_says_what_is_known() -> None:
    assert words(pod(MAIN))[0] == "team/train waits since 2026-02-03T04:00:00Z (1 h)"
    assert "no scheduler has tried to place it yet; check that" in words(pod(MAIN))[3]


def test_of_a_pod_that_no_filter_has_seen_kube_schedulers_words_come_first() -> None:
    lines = words(pod(MAIN, condition=UNSCHEDULABLE))
    assert lines[3:] == [
        "kube-scheduler says: 0/3 nodes are available",
        "hami has given no reasons: it is asked only about nodes that pass kube-scheduler's",
        "own filters",
    ]


def test_gates_and_the_nominated_node_are_shown() -> None:
    gated = UNSCHEDULABLE | {"message": "Scheduling is blocked due to non-empty scheduling gates"}
    lines = words(pod(MAIN, condition=gated, gates=("a.example/x", "b")))
    assert lines[3:5] == [
        "it has scheduling gates: a.example/x, b",
        "no scheduler tries it until their controllers have removed them all",
    ]
    lines = words(pod(MAIN, condition=UNSCHEDULABLE, nominated="node-5"))
    assert lines[3:5] == [
        "kube-scheduler says: 0/3 nodes are available",
        "kube-scheduler makes room for it on node-5, where other pods must end",
    ]


def test_a_placed_pod_shows_neither_gates_nor_a_nominated_node() -> None:
    story = gather(pod(MAIN, node="n", nominated="n", gates=("a",)))
    assert (story.gates, story.nominated) == ((), "")


@pytest.mark.parametrize(
    ("amounts", "wanted"),
    [
        ({"gpu": 2, "percent": 50}, "2 cards of NVIDIA, each with 50 % of its memory and no limit"),
        ({"gpu": 1}, "1 card of NVIDIA, with all its memory and no limit on compute"),
    ],
)
def test_a_request_is_put_into_words(amounts: dict[str, Any], wanted: str) -> None:
    assert wanted in words(pod(builders.container(**amounts)))[2]


def test_a_placed_pod_shows_its_cards_by_container() -> None:
    grants = [[], [Share("GPU-1", "NVIDIA", 2048, 30), Share("GPU-2", "NVIDIA", 1024, 0)]]
    annotations = {
        builders.NVIDIA.annotations.allocated: shares.encode(grants),
        annotation_keys.BIND_PHASE: "success",
        annotation_keys.EXPLANATION: explanation_note.encode(NOTE),
    }
    data = pod(
        builders.container("side"),
        builders.container(gpu=2),
        annotations=annotations,
        node="node-7",
        phase="Running",
    )
    assert words(data) == [
        "team/train is on node-7 (Running)",
        "  main: NVIDIA GPU-1, 2048 MiB, 30 % of its compute",
        "  main: NVIDIA GPU-2, 1024 MiB, no limit on compute",
        "bind phase: success",
    ]
    story = gather(data)
    assert story.granted[0] == Granted("main", "NVIDIA", "GPU-1", 2048, 30)
    assert story.explanation is None, "it is about the time before"


def test_slots_that_hami_left_out_are_given_to_the_container_that_asked() -> None:
    granted = shares.encode([[Share("GPU-1", "NVIDIA", 2048, 30)]])
    data = pod(
        builders.container("side"),
        MAIN,
        annotations={builders.NVIDIA.annotations.allocated: granted},
        node="n",
    )
    assert [g.container for g in gather(data).granted] == ["main"]


def test_a_finished_pod_is_described_in_the_past() -> None:
    assert words(pod(MAIN, node="n", phase="Succeeded"))[0] == "team/train was on n (Succeeded)"


def test_a_placed_pod_without_cards_was_placed_by_another_scheduler() -> None:
    assert "another scheduler placed it" in words(pod(MAIN, node="n", phase="Running"))[1]


def test_a_pod_without_our_resources_is_named_so() -> None:
    data = pod(builders.container("web"), scheduler="default-scheduler", condition=UNSCHEDULABLE)
    assert gather(data).state is State.NOT_OURS
    assert words(data) == [
        "team/train asks for no card, so hami has no part in where it goes",
        "hami manages nvidia.com/gpu; a container asks for them in resources.limits",
        "kube-scheduler says: 0/3 nodes are available",
    ]


@pytest.mark.parametrize("named", ["default-scheduler", None])
def test_a_pod_of_another_scheduler_gets_its_remedy(named: str | None) -> None:
    data = pod(MAIN, scheduler=named)
    assert gather(data).state is State.OTHER_SCHEDULER
    reply = words(data)
    shown = f"its schedulerName is {named or 'none'}, not hami-scheduler: hami is never asked"
    assert reply[3].startswith(shown)
    assert "spec.schedulerName: hami-scheduler" in reply[4]


def test_a_request_that_breaks_a_rule_is_reported_with_its_remedy() -> None:
    data = pod(builders.container(gpu="1.5"))
    assert gather(data).state is State.REFUSED
    first, second = words(data)
    assert first == "team/train cannot be placed: its request breaks a rule"
    assert second.startswith("problem: container main, nvidia.com/gpu: '1.5'")


def test_a_damaged_explanation_is_a_problem_and_not_the_end() -> None:
    reply = words(pod(MAIN, annotations={annotation_keys.EXPLANATION: "{"}))
    assert reply[0].startswith("team/train waits")
    assert reply[-1].startswith("problem: explanation: '{' does not decode")


def test_a_damaged_grant_is_a_problem_and_the_others_are_shown() -> None:
    value = "GPU-1,NVIDIA,many,30:GPU-2,NVIDIA,10,0:;"
    annotations = {builders.NVIDIA.annotations.allocated: value}
    reply = words(pod(MAIN, annotations=annotations, node="n"))
    assert any("GPU-2, 10 MiB" in line for line in reply)
    assert "the share of card GPU-1 cannot be read; delete the pod" in reply[-1]


def test_a_terminal_gets_nothing_but_printable_characters() -> None:
    note = Note(at="yesterday", summary="red \x1b[31m\nfake line")
    annotations = {annotation_keys.EXPLANATION: explanation_note.encode(note)}
    reply = words(pod(MAIN, annotations=annotations))
    assert "why: red �[31m�fake line" in reply


def test_what_is_no_pod_is_a_wire_error() -> None:
    with pytest.raises(errors.WireError, match="pod"):
        gather(b"[]")
