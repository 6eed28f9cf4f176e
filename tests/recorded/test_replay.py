"""The product on cases that HAMi's own code has answered.

`python -m tests.recorded record` has written them, docs/testing.md says how. Each vendor has at
least 200, a quarter of them placed and a quarter refused.
"""

from __future__ import annotations

import collections
import functools
import pathlib

import pytest

from tests.recorded import comparing, fleets, recordings, replay
from tests.recorded.comparing import Comparison, Meant
from tests.recorded.fleets import Document
from tests.recorded.recordings import Recorded

AT_LEAST = 200
SHARE = 4
SHOWN = 3


@functools.cache
def recorded(vendor: str) -> list[Recorded]:
    return recordings.read(vendor)


@functools.cache
def compared(vendor: str) -> list[Comparison]:
    return [Comparison(case, facts, replay.answer(case)) for case, facts in recorded(vendor)]


@pytest.mark.parametrize("vendor", fleets.VENDORS)
def test_it_answers_as_hami_does(vendor: str) -> None:
    differing = [
        (case["id"], each.found[0])
        for (case, _), each in zip(recorded(vendor), compared(vendor), strict=True)
        if each.found
    ]
    assert differing[:SHOWN] == [], f"{len(differing)} cases differ"


@pytest.mark.parametrize("vendor", fleets.VENDORS)
def test_enough_cases_are_placed_and_refused(vendor: str) -> None:
    ends = collections.Counter(recordings.ending(facts) for _, facts in recorded(vendor))
    assert ends.total() >= AT_LEAST
    assert min(ends["placed"], ends["refused"]) * SHARE >= ends.total(), ends
    assert not ends["panic"]


def test_each_meant_difference_is_shown() -> None:
    shown = {each for vendor in fleets.VENDORS for one in compared(vendor) for each in one.meant}
    assert shown == set(Meant)


def test_the_page_lists_the_meant_differences() -> None:
    rows = [f"| `{each.name}` | {each.value} |" for each in Meant]
    page = (pathlib.Path(__file__).parents[2] / "docs/testing.md").read_text()
    assert [row for row in page.splitlines() if row in rows] == rows


def _placed(vendor: str) -> tuple[Document, Document, str]:
    """Return a case that both place on a node, HAMi's facts about it, and the node."""
    for (case, facts), each in zip(recorded(vendor), compared(vendor), strict=True):
        for node, outcome in facts.get("nodes", {}).items():
            if "answers" in outcome and not each.found and not each.meant:
                return case, facts, node
    raise AssertionError(f"no case of {vendor} is placed")


def test_a_byte_more_in_an_annotation_is_noticed() -> None:
    case, facts, node = _placed("hygon")
    outcome = facts["nodes"][node]
    wrong = [{key: f"{value}x" for key, value in each.items()} for each in outcome["answers"]]
    changed = facts | {"nodes": facts["nodes"] | {node: outcome | {"answers": wrong}}}
    found = Comparison(case, changed, replay.answer(case)).found
    assert [each.kind for each in found] == [f"annotations on {node}"]


def test_another_fit_is_noticed() -> None:
    case, facts, node = _placed("hygon")
    refused = {"reasons": ["1/1 CardNotHealth"]}
    changed = facts | {"nodes": facts["nodes"] | {node: refused}}
    found = Comparison(case, changed, replay.answer(case)).found
    assert comparing.Difference in map(type, found)
    assert f"fit of {node}" in [each.kind for each in found]


def test_another_patch_is_noticed() -> None:
    case, facts, _ = _placed("hygon")
    changed = facts | {"pod": facts["pod"] | {"scheduler": "other"}}
    found = Comparison(case, changed, replay.answer(case)).found
    assert [each.kind for each in found] == ["pod"]
