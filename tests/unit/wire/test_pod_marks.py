"""Marks of a node on its pods: bounded, and only for the pod that they name."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.wire import annotation_keys, codec, objects, pod_marks
from hami.wire.pod_marks import Overuse, PodMarks, Refusal

OVERUSE = Overuse(
    uid="u1",
    node="n1",
    container="main",
    card="GPU-1",
    used=9 << 30,
    limit=4 << 30,
    since="2026-02-03T04:05:06+00:00",
    seen="2026-02-03T04:05:26+00:00",
)


def pod(**annotations: str | None) -> objects.Pod:
    keys = {"overuse": annotation_keys.OVERUSE, "refusal": annotation_keys.START_REFUSED}
    meta: dict[str, Any] = {"uid": "u1", "name": "p", "namespace": "team"}
    meta["annotations"] = {keys[name]: value for name, value in annotations.items()}
    body = {"metadata": meta, "spec": {"nodeName": "n1"}}
    return codec.decode(json.dumps(body).encode(), objects.Pod, what="pod")


def test_the_bytes_are_those_that_nodes_and_schedulers_of_two_versions_agree_on() -> None:
    assert pod_marks.encode(OVERUSE) == (
        '{"uid":"u1","node":"n1","container":"main","card":"GPU-1","used":9663676416,'
        '"limit":4294967296,"since":"2026-02-03T04:05:06+00:00","seen":"2026-02-03T04:05:26+00:00"}'
    )
    refusal = Refusal(uid="u1", node="n1", reason="not signed", seen="now")
    assert pod_marks.encode(refusal) == (
        '{"uid":"u1","node":"n1","reason":"not signed","seen":"now"}'
    )


def test_both_are_read_from_the_pod_that_they_name() -> None:
    refusal = Refusal(uid="u1", node="n1", reason="not signed", seen="now")
    found = PodMarks.of(pod(overuse=pod_marks.encode(OVERUSE), refusal=pod_marks.encode(refusal)))
    assert found == PodMarks(OVERUSE, refusal)
    assert PodMarks.of(pod()) is None


def test_fields_of_a_later_version_are_skipped() -> None:
    text = json.dumps(json.loads(pod_marks.encode(OVERUSE)) | {"later": [1]})
    assert pod_marks.decode_overuse(text) == OVERUSE


@pytest.mark.parametrize("change", [{"uid": "u2"}, {"node": "n2"}])
def test_a_mark_that_names_another_pod_is_none(change: dict[str, str]) -> None:
    text = json.dumps(json.loads(pod_marks.encode(OVERUSE)) | change)
    assert PodMarks.of(pod(overuse=text)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"uid": ""},
        {"seen": ""},
        {"used": -1},
        {"used": 2**63},
        {"used": "1"},
        {"card": "x" * 300},
        {"container": "x" * 2000},
        {"since": None},
    ],
)
def test_what_no_monitor_writes_is_a_problem_and_no_mark(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(pod_marks.encode(OVERUSE)) | change)
    found = PodMarks.of(pod(overuse=text, refusal=None))
    assert found is not None
    assert found.overuse is None
    assert annotation_keys.OVERUSE in found.problem
    assert len(found.problem) < 400


@hypothesis.given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 40))
def test_a_refusal_of_any_length_is_written_within_the_limit(reason: str, times: int) -> None:
    refusal = Refusal(uid="u" * 36, node="n" * 253, reason=reason * times, seen="now")
    text = pod_marks.encode(refusal)
    assert len(text.encode()) <= pod_marks.LIMIT
    found = codec.decode(text, Refusal, what="mark")
    assert (found.uid, found.node, found.seen) == (refusal.uid, refusal.node, refusal.seen)
