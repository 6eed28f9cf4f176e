"""Answers of Helm are kept for exactly what they depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.rendered_cache import KEPT, Output, RenderedCache

ANSWER = Output(0, "kind: Pod\n", "")


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "templates/pod.yaml").write_text("kind: Pod")
    return folder


@pytest.fixture
def helm(tmp_path: Path) -> Path:
    path = tmp_path / "helm"
    path.write_text("4.1")
    return path


class Helm:
    def __init__(self, answer: Output = ANSWER) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self) -> Output:
        self.asked += 1
        return self.answer


def test_the_same_question_is_asked_once(tmp_path: Path, chart: Path, helm: Path) -> None:
    ask = Helm(Output(1, "", "refused"))
    for _ in range(2):
        kept = RenderedCache(tmp_path / "kept", chart)
        assert kept.get(helm, ["template"], "{}", ask) == ask.answer
    assert ask.asked == 1


def test_chart_helm_arguments_and_values_make_another_question(
    tmp_path: Path, chart: Path, helm: Path
) -> None:
    ask = Helm()
    kept = RenderedCache(tmp_path / "kept", chart)
    kept.get(helm, ["template"], "{}", ask)
    kept.get(helm, ["template", "--debug"], "{}", ask)
    kept.get(helm, ["template"], '{"a": 1}', ask)
    other = tmp_path / "helm3"
    other.write_text("3.9")
    kept.get(other, ["template"], "{}", ask)
    (chart / "templates/pod.yaml").write_text("kind: Job")
    RenderedCache(tmp_path / "kept", chart).get(helm, ["template"], "{}", ask)
    assert ask.asked == 5


@pytest.mark.parametrize("content", [b"", b"no gzip", b"\x1f\x8b\x08\x00half"])
def test_a_damaged_file_is_made_again(
    tmp_path: Path, chart: Path, helm: Path, content: bytes
) -> None:
    ask = Helm()
    kept = RenderedCache(tmp_path / "kept", chart)
    kept.get(helm, ["template"], "{}", ask)
    (path,) = (tmp_path / "kept").rglob("*.gz")
    path.write_bytes(content)
    assert [kept.get(helm, ["template"], "{}", ask) for _ in range(2)] == [ANSWER, ANSWER]
    assert ask.asked == 2


def test_only_the_newest_charts_are_kept(tmp_path: Path, chart: Path, helm: Path) -> None:
    for number in range(KEPT + 3):
        (chart / "values.yaml").write_text(str(number))
        RenderedCache(tmp_path / "kept", chart).get(helm, ["template"], "{}", Helm())
    assert len(list((tmp_path / "kept").iterdir())) == KEPT
