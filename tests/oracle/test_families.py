"""The product places pods of every family of vendors as the reference does.

Compared are the pod after admission, the fit and the text of every node, the chosen node and its
score, the cards and amounts of each container, and the annotations. The scenarios come from a seed
(tests/oracle/families/fleets.py); the last test demands that of each family enough pods are placed
and enough refused. tests/oracle/families has the references, and says how to add one.

HAMI_ORACLE_CASES says how many scenarios there are in all: 500 by default, 8,000 in `make soak`.
"""

from __future__ import annotations

import collections
import os
import re

import pytest

from hami.vendors import table
from tests.oracle import reference, scenarios
from tests.oracle.families import fleets
from tests.oracle.families.registry import FAMILIES, VENDORS, WITHOUT
from tests.oracle.product import product_answer

CASES = int(os.environ.get("HAMI_ORACLE_CASES", "500"))
#: Of each family, so many that the rarest rule is met even with few cases.
EACH = max(CASES // len(FAMILIES), 100)
SHARE = 0.25
NAMES = [family.name for family in FAMILIES]

Counts = dict[str, collections.Counter[str]]


@pytest.fixture(scope="module")
def counts() -> Counts:
    """Return how the pods of each family ended, and why nodes refused them."""
    return {name: collections.Counter() for name in NAMES}


def difference(scenario: scenarios.Scenario, want: reference.Answer) -> str:
    """Return in which the product's answer differs; empty: in nothing."""
    got = product_answer(scenario)
    if want.error is not None:  # the words are the product's own
        return "" if got.error else f"the reference refuses the pod: {want.error}"
    for field in ("error", "passed_through", "admitted", "failed", "winner", "shares", "score"):
        if getattr(got, field) != getattr(want, field):
            return f"{field}: {getattr(got, field)}, reference: {getattr(want, field)}"
    if got.annotations != want.annotations:
        return f"annotations: {got.annotations}, reference: {want.annotations}"
    return ""


def smallest(name: str, data: bytes) -> str:
    """Return the simplest scenario found that differs, for the person who must find the error."""

    def differs(tape: bytes) -> bool:
        scenario = fleets.make(name, tape)
        return bool(difference(scenario, scenario.answer()))

    for size in (256, 64, 16, 4, 1):
        for start in range(0, len(data), size):
            simpler = data[:start] + bytes(size) + data[start + size :]
            if simpler != data and differs(simpler):
                data = simpler
    scenario = fleets.make(name, data)
    return f"{scenario!r}\n{difference(scenario, scenario.answer())}"


def test_every_built_in_row_has_a_reference() -> None:
    rows = [row.name for row in table.built_in() if row.name not in WITHOUT]
    assert [vendor.name for vendor in VENDORS] == rows


@pytest.mark.parametrize("name", NAMES)
def test_product_and_reference_agree(name: str, counts: Counts) -> None:
    for number in range(EACH):
        scenario = fleets.draw(name, number)
        want = scenario.answer()
        if difference(scenario, want):
            pytest.fail(f"scenario {number}: {smallest(name, scenario.key)}")
        if want.error is not None or want.passed_through:
            counts[name]["request refused" if want.error else "passed through"] += 1
            continue
        counts[name]["placed" if want.winner else "refused"] += 1
        reasons = {re.sub(r"^\d+/\d+ ", "", t) for v in want.failed.values() for t in v.split(", ")}
        counts[name].update(reasons)


@pytest.mark.parametrize("ending", ["placed", "refused"])
def test_enough_pods_of_each_family_end_so(
    ending: str, counts: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seen in counts.items():
        assert seen, "run the whole module: the counts come from its other tests"
        if ending == "placed":
            with capsys.disabled():
                print(f"\n{name}: {EACH} pods:", dict(seen.most_common()))  # noqa: T201  the result
    few = {name: seen[ending] for name, seen in counts.items() if seen[ending] < SHARE * EACH}
    assert not few
