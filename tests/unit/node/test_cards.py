"""Cards as plain values."""

from __future__ import annotations

import dataclasses

from hami.node.cards import Card, Problem, with_missing


def make(uuid: str, index: int) -> Card:
    return Card(
        uuid=uuid,
        index=index,
        minor=index,
        name="NVIDIA A10",
        memory=1 << 34,
        numa=0,
        bus_id=f"0000:{index:02x}:00.0",
        mig_enabled=False,
    )


def test_a_card_that_does_not_answer_keeps_its_place() -> None:
    known = (make("GPU-a", 0), make("GPU-b", 1), make("GPU-c", 2))
    assert with_missing(known, (known[0], known[2])) == known


def test_what_is_found_goes_before_what_was_known() -> None:
    before = make("GPU-a", 0)
    now = dataclasses.replace(before, mig_enabled=True)
    assert with_missing((before,), (now, make("GPU-b", 1))) == (now, make("GPU-b", 1))


def test_a_problem_reads_as_a_sentence() -> None:
    problem = Problem(subject="GPU 3", rule="is lost", remedy="reboot the node")
    assert str(problem) == "GPU 3: is lost; reboot the node"
