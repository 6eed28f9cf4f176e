"""The node's own sum: what does not fit is refused, what fits is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent import ledger
from hami.node.ledger_record import LedgerRecord
from hami.wire.node_register import RegisteredCard
from hami.wire.objects import ContainerKind
from tests.unit.agent.records import APP, INIT, SIDECAR, Part, record

CARDS = {
    uuid: RegisteredCard(id=uuid, index=index, count=3, devmem=1000, devcore=100)
    for index, uuid in enumerate(("A", "B"))
}

Containers = Sequence[tuple[ContainerKind, Sequence[Part]]]


def moments(containers: Containers, *, init_done: bool) -> list[list[Sequence[Part]]]:
    """Tell who runs together, step by step: the oracle knows nothing of peaks."""
    steps: list[list[Sequence[Part]]] = []
    staying: list[Sequence[Part]] = []
    for kind, parts in containers:
        if kind is INIT:
            steps.append([*staying, *([] if init_done else [parts])])
        else:
            staying.append(parts)
    return [*steps, staying]


def holds(containers: Containers, card: str, *, init_done: bool) -> tuple[int, int, int]:
    """Return the most MiB, percent and containers on a card at any moment."""
    memory, cores, shares = [0], [0], [0]
    for running in moments(containers, init_done=init_done):
        parts = [part for each in running for part in each if part[0] == card]
        memory.append(sum(part[1] for part in parts))
        cores.append(sum(part[2] for part in parts))
        shares.append(sum(any(part[0] == card for part in each) for each in running))
    return max(memory), max(cores), max(shares)


PARTS = st.tuples(st.sampled_from("AB"), st.integers(1, 600), st.integers(0, 60))
CONTAINERS = st.lists(
    st.tuples(st.sampled_from(ContainerKind), st.lists(PARTS, max_size=2)), min_size=1, max_size=4
)
PODS = st.lists(st.tuples(CONTAINERS, st.booleans()), max_size=3)


@given(others=PODS, new=CONTAINERS, new_done=st.booleans())
def test_it_agrees_with_who_runs_when(
    others: list[tuple[Containers, bool]], new: Containers, new_done: bool
) -> None:
    pods = [*others, (new, new_done)]
    records = [record(f"uid-{at}", *containers) for at, (containers, _) in enumerate(pods)]
    done = {f"uid-{at}" for at, (_, done) in enumerate(pods) if done}
    fits = True
    for card in "AB":
        if not any(part[0] == card for _, parts in new for part in parts):
            continue
        sums = [
            sum(amounts)
            for amounts in zip(
                *(holds(each, card, init_done=done) for each, done in pods), strict=True
            )
        ]
        asked = holds(new, card, init_done=new_done)
        limits = (1000, 100, 3)
        fits &= all(
            total <= limit or not some
            for total, limit, some in zip(sums, limits, asked, strict=True)
        )
    why = ledger.check(records[:-1], records[-1], CARDS, init_done=done)
    assert (why == "") is fits
    totals = ledger.total(records, init_done=done)
    for card in "AB":
        expected = [
            sum(amounts)
            for amounts in zip(
                *(holds(each, card, init_done=done) for each, done in pods), strict=True
            )
        ]
        assert list(totals.get(card, (0, 0, 0))) == expected


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([("A", 501, 0)], "card A has 1000 MiB of memory, 500 MiB are taken by other pods, 501"),
        ([("A", 1, 61)], "card A has 100% of cores, 40% are taken by other pods, 61%"),
        ([("C", 1, 0)], "card C is none of this node's"),
    ],
)
def test_the_reason_names_card_and_numbers(parts: list[Part], says: str) -> None:
    known = record("one", (APP, [("A", 500, 40)]))
    assert says in ledger.check([known], record("two", (APP, parts)), CARDS)
    fits = record("two", (APP, [("A", 500, 60)]))
    assert ledger.check([known], fits, CARDS) == ""


def test_shares_are_counted_by_containers() -> None:
    known = [record(f"uid-{at}", (APP, [("A", 1, 0), ("A", 1, 0)])) for at in range(3)]
    new = record("new", (APP, [("A", 1, 0)]))
    assert "3 of shares" in ledger.check(known, new, CARDS)
    assert ledger.check(known[:2], new, CARDS) == ""


def test_a_pods_older_record_does_not_count_against_it() -> None:
    old = record("one", (APP, [("A", 900, 90)]))
    assert ledger.check([old], record("one", (APP, [("A", 1000, 100)])), CARDS) == ""


def test_a_resize_is_what_counts() -> None:
    known = record("one", (APP, [("A", 900, 0)]), resize="A,NVIDIA,100,0:;")
    assert ledger.check([known], record("two", (APP, [("A", 900, 0)])), CARDS) == ""


def test_ended_init_containers_give_back_what_only_they_had() -> None:
    known = record("one", (INIT, [("A", 900, 0)]), (SIDECAR, [("A", 100, 0)]))
    new = record("two", (APP, [("A", 500, 0)]))
    assert ledger.check([known], new, CARDS)
    assert ledger.check([known], new, CARDS, init_done={"one"}) == ""


def test_an_overfull_card_is_no_reason_against_a_pod_on_another() -> None:
    known = [record("one", (APP, [("A", 5000, 500)]))]
    assert ledger.check(known, record("two", (APP, [("B", 1000, 100)])), CARDS) == ""


def test_grants_behind_the_last_container_count_all_the_same() -> None:
    odd = LedgerRecord(
        uid="odd", namespace="team", name="odd", devices="A,NVIDIA,900,0:;", containers=()
    )
    assert ledger.held_by(odd) == {"A": (900, 0, 1)}
