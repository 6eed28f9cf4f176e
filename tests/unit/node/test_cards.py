"""Cards as plain values."""

from __future__ import annotations

from hami.node.nvml_cards import Problem


def test_a_problem_reads_as_a_sentence() -> None:
    problem = Problem(subject="GPU 3", rule="is lost", remedy="reboot the node")
    assert str(problem) == "GPU 3: is lost; reboot the node"
