"""The demo's view: every number is there as text, on any terminal."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from hami_sandbox.demo import cards, cluster_view, example, recording, results, snapshot, view
from hami_sandbox.demo.results import Met, NodeLine, Outcome, Result, Status
from hami_sandbox.demo.running import Progress
from sandbox.tests.unit.demo.worlds import MIB, grant, node, pod, used

_NODES = [node("gpu-a", 10240, 20480), node("gpu-b", 10240, late=False, reason="old kubelet")]
_PODS = [
    pod("a", grant("gpu-a-0", 4096, 30), created="2026-01-01T00:00:01Z"),
    pod("b", grant("gpu-a-0", 2048, 20), created="2026-01-01T00:00:02Z"),
    pod("done", grant("gpu-a-0", 4096), phase="Succeeded"),
    pod("waits", phase="Pending", node="", namespace="team"),
]
_SAMPLES = [
    used("a", 1024),
    cluster_view.Sample("gpu-a", cluster_view.CARD_USED, {"device_uuid": "gpu-a-0"}, 1536 * MIB),
]


def drawn(thing: RenderableType, width: int = 130) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(thing)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def taken(real: frozenset[str] = frozenset({"gpu-a", "gpu-b"})) -> snapshot.Snapshot:
    return snapshot.take(_NODES, _PODS, _SAMPLES, real=real)


def test_cards_have_what_their_pods_were_granted() -> None:
    found = cards.of_all(_NODES, _PODS)
    first, second = found["gpu-a"]
    # A pod that has ended holds nothing.
    assert (first.granted_memory, first.granted_cores, first.shares) == (6144, 50, 2)
    assert (second.granted_memory, second.shares) == (0, 0)
    assert not first.overgranted()


def test_more_than_a_card_has_is_told() -> None:
    many = [pod(f"p{number}", grant("gpu-a-0", 10, 10)) for number in range(11)]
    [card, _] = cards.of_all(_NODES, many)["gpu-a"]
    assert card.overgranted() == "card 0 of gpu-a: 110 of 100 % of compute are granted"


def test_how_a_node_binds_is_said_with_its_reason() -> None:
    assert cards.binding(_NODES[0]) == "late"
    assert cards.binding(_NODES[1]) == "lock (old kubelet)"
    assert cards.binding(node("x", late=False)).startswith("lock")


def test_an_unreadable_register_shows_no_cards() -> None:
    body = node("gpu-a", 1)
    assert body.metadata is not None
    assert body.metadata.annotations is not None
    body.metadata.annotations["hami.io/node-nvidia-register"] = "{"
    assert cards.of_node(body, []) == []


def test_the_view_has_every_card_and_pod() -> None:
    text = drawn(view.render(taken(), Progress(total=0), most_pods=10))
    lines = text.splitlines()
    [card] = [line for line in lines if "0 H100" in line and "gpu-a" in line]
    assert "6.0/10.0 GiB" in card
    assert "1.5 GiB" in card
    assert "50 %" in card
    assert "2/10" in card
    assert "1 Pending, 2 Running, 1 Succeeded" in text
    [waits] = [line for line in lines if "team/waits" in line]
    assert "Pending" in waits
    newest = next(line for line in lines if line.startswith(("a ", "b ", "done")))
    assert newest.startswith("b")


def test_pods_beyond_the_room_are_counted() -> None:
    text = drawn(view.render(taken(), Progress(total=0), most_pods=1))
    assert "and 3 more" in text


def test_a_narrow_terminal_has_bars_too() -> None:
    text = drawn(view.render(taken(), Progress(total=0), most_pods=3), width=80)
    bars = [line for line in text.splitlines() if "H100" in line]
    assert len(bars) == 3
    assert all(line.count("░") >= 4 for line in bars)


@pytest.mark.parametrize("height", [20, 30, 45, 100])
def test_as_many_pods_are_shown_as_there_are_lines_for(height: int) -> None:
    many = [pod(f"p{number:02}", grant("gpu-a-0", 10)) for number in range(40)]
    seen = snapshot.take(_NODES, many, [], real=frozenset({"gpu-a", "gpu-b"}))
    console = Console(file=io.StringIO(), width=120, height=height)
    fitted = view.fitted(seen, Progress(total=0), console, footer="the end")
    lines = drawn(fitted, width=120).splitlines()
    # The last line of the terminal is the cursor's.
    assert len(lines) == min(height - 1, len(drawn(everything(seen)).splitlines()))
    assert lines[-1].startswith("the end")


def everything(seen: snapshot.Snapshot) -> RenderableType:
    return view.render(seen, Progress(total=0), most_pods=100, footer="the end")


def test_simulated_nodes_are_one_line() -> None:
    text = drawn(view.render(taken(frozenset({"gpu-a"})), Progress(total=0), most_pods=5))
    assert "1 simulated nodes: 1 cards, 0.0 of 10.0 GiB granted in 0 shares" in text
    assert "gpu-b" not in text


def test_the_example_that_runs_is_shown_with_its_checks() -> None:
    [shown] = example.load(example.default_folder(), ["quota"])
    progress = Progress(
        total=3,
        done=1,
        example=shown,
        met=[Met("pod first Running", met=True, seen=""), Met("that", met=False, seen="nothing")],
        waiting_for="pod small Running",
        results=[Result(name="01", title="t", promise="p", status=Status.AS_EXPECTED)],
    )
    text = drawn(view.render(taken(), progress, most_pods=5))
    assert "05-quota" in text
    assert "team-red may have 10000 MiB" in text
    assert "✓ pod first Running" in text
    assert "✗ that: nothing" in text
    assert "… pod small Running" in text
    assert "1 of 3 examples" in text


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(min_value=1, max_value=60)
)
def test_a_bar_is_as_wide_as_it_should_be(
    used_mib: float, granted: float, total: float, width: int
) -> None:
    letters = view.Bar(used=used_mib, granted=granted, total=total).text(width)
    assert len(letters) == width
    assert letters == "".join(sorted(letters, key="█▓░".index))
    assert ("█" in letters) == (used_mib > 0)


def outcome(*results: Result, simulated: int = 0) -> Outcome:
    return Outcome(
        results=results,
        nodes=(NodeLine("gpu-a", "2xH100", "late"), NodeLine("gpu-b", "4xT4", "lock (old)")),
        simulated=simulated,
        isolation="containers have namespaces",
        ready_after=8.0,
        first_placed_after=9.5,
        seconds=60,
    )


def result(status: Status, *met: Met, note: str = "") -> Result:
    return Result(
        name="01-it",
        title="t",
        promise="two pods",
        status=status,
        seconds=3.21,
        checks=met,
        note=note,
    )


def test_the_summary_tells_all_that_was_asked_for() -> None:
    good = result(Status.AS_EXPECTED, Met("x", met=True, seen="y"))
    text = drawn(results.render(outcome(good, simulated=7)))
    for part in (
        "01-it",
        "two pods",
        "as expected: 1 of 1 checks met",
        "3.2",
        "node gpu-a: 2xH100, binding late",
        "node gpu-b: 4xT4, binding lock (old)",
        "7 simulated nodes",
        "containers have namespaces",
        "cluster ready after 8.0 s, first pod placed after 9.5 s",
        "1 of 1 examples ended as their texts say, in 60 s",
    ):
        assert part in text


def test_what_went_otherwise_is_told_and_counts() -> None:
    bad = result(Status.OTHERWISE, Met("pod a Running", met=False, seen="it waits"))
    whole = outcome(bad, result(Status.SKIPPED, note="not run: it needs 9 cards"))
    assert not whole.good
    text = " ".join(drawn(results.render(whole)).split())
    assert "expected pod a Running; it waits" in text
    assert "not run: it needs 9 cards" in text
    assert "1 of 1 examples did not end as their texts say, 1 skipped" in text


def test_skipped_examples_fail_nothing() -> None:
    assert outcome(result(Status.SKIPPED)).good
    assert outcome().good
    assert "no examples were run" in drawn(results.render(outcome()))


def test_our_examples_text_fits_the_view() -> None:
    for each in example.load(Path(example.default_folder())):
        assert len(each.text) < 450, each.name
        assert len(each.promise) < 100, each.name


def test_a_screenshot_shows_both_and_loads_nothing_from_elsewhere() -> None:
    good = outcome(result(Status.AS_EXPECTED, Met("x", met=True, seen="y")))
    svg = recording.draw(taken(), Progress(total=0), good)
    assert ET.fromstring(svg.partition("\n")[2]).tag.endswith("svg")  # noqa: S314 - ours
    text = svg.replace("&#160;", " ")
    assert "gpu-a" in text
    assert "as expected" in text
    assert "scripts/record-demo" in svg
    assert "url(http" not in svg.replace('"', "")
    assert "@font-face" not in svg
    assert recording.draw(taken(), Progress(total=0), good) == svg
