"""The cards that the reference takes: docs/placement.md, section 5."""

from __future__ import annotations

import pytest

from tests.oracle.hand_made_cases import ask, card, gpu, node, placed, pod, uuids
from tests.oracle.reference_cards import Card
from tests.oracle.reference_checks import Case
from tests.oracle.reference_holdings import cards_of
from tests.oracle.reference_order import device_score, first_cards
from tests.oracle.reference_request import Weights, read_request
from tests.oracle.reference_vendor import Ask, Take
from tests.oracle.sample_vendors import NVIDIA


def test_device_score_of_the_worked_example() -> None:
    device = card("a", count=10, devcore=4, devmem=8192)
    used = Card(device, 0, cordoned=False, shares=2, memory=2048, cores=1)
    want = Take(memory=1024, cores=1)
    # 11.75 / 3 x 1048576 = 4106922.67
    assert device_score(used, want, Weights()) == 4106923
    # 10 x (2 x 0.3 + 0 x 0.5 + 6 x 0.375) / 8 = 3.5625
    assert device_score(used, want, Weights(2, 0, 6)) == 3735552


@pytest.mark.parametrize("field", ["count", "devcore", "devmem"])
def test_device_score_without_capacity_is_zero(field: str) -> None:
    used = Card(card("a", **{field: 0}), 0, cordoned=False, shares=2, memory=1, cores=1)
    want = Take(memory=1, cores=1)
    assert device_score(used, want, Weights()) == 0


#: By name: numa, used memory in percent, used shares. Shares are so many that they hardly score.
ORDERED = {"a": (0, 50, 1), "b": (0, 20, 2), "c": (1, 50, 1), "d": (1, 0, 0), "e": (1, 20, 2)}


@pytest.mark.parametrize(
    ("policy", "bound", "want"),
    [
        ("binpack", "", "c a e b d"),
        ("spread", "", "d e b c a"),
        ("topology-aware", "", "d e b c a"),
        ("numa", "", "e d c b a"),
        ("numa,binpack", "", "c e d a b"),
        ("binpack,numa", "", "c a e b d"),
        ("spread,numa", "", "d e b c a"),
        ("spread,spread", "", "d e b c a"),
        ("binpack,binpack", "", "c a e b d"),
        (" numa , spread,", "", "d e c b a"),
        ("topology-aware,mutex", "", "d"),
        ("mutex", "", "d"),
        ("binpack", "true", "a b"),
        ("spread", "true", "d e c"),
        ("mutex", "true", "d"),
        ("numa", "true", "e d c"),
        ("binpack,spread", "true", "c e d"),
        ("spread,numa", "true", "d e c"),
        ("topology-aware,topology-aware", "true", "d e c"),
    ],
)
def test_card_orders(policy: str, bound: str, want: str) -> None:
    cards, pods = [], []
    for index, (name, (numa, memory, number)) in enumerate(ORDERED.items()):
        cards.append(card(name, index, numa=numa, devmem=1000, count=1000))
        for at in range(number):
            share = memory * 10 if at == 0 else 0
            pods.append(placed(f"{name}{at}", "n", f"{name},NVIDIA,{share},0:;"))
    there = node("n", *cards)
    for count in range(1, len(want.split()) + 1):
        incoming = pod(gpu(count, 1), gpu_policy=policy, numa_bind=bound)
        # Listed by column, which is the order of the names; the growing set shows the preference.
        got = uuids(ask(incoming, there, pods=pods))[0]
        assert got == sorted(want.split()[:count])


def test_mutex_prefers_few_shares_then_high_numa_then_high_columns() -> None:
    cards = [Card(card(n, numa=n == "b"), i, cordoned=False) for i, n in enumerate("abc")]
    wanted = read_request(pod(gpu(), gpu_policy="mutex"), [NVIDIA], "binpack", "spread")
    assert wanted is not None
    case = Case(wanted, [NVIDIA], {}, {}, {}, set())
    order = first_cards(case, NVIDIA, cards, Ask(3, 1, 0, 0), bound=False)
    assert [c.device.id for c in order] == ["b", "c", "a"]


def test_columns_are_by_index_then_id_and_the_last_tie_goes_to_the_highest() -> None:
    cards = [card("z", 1), card("a", 1), card("m", 0), card("y", 2)]
    there = node("n", *cards)
    assert [c.device.id for c in cards_of(there, NVIDIA, ())] == ["m", "a", "z", "y"]
    for policy in ("binpack", "spread", "mutex", "numa", "topology-aware", "mutex,mutex"):
        for count in (1, 2, 3, 4):
            want = ["m", "a", "z", "y"][-count:]
            assert uuids(ask(pod(gpu(count), gpu_policy=policy), there)) == [want]
