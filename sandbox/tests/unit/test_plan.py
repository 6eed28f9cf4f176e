"""Sandboxes as users describe them, and what they may not ask for."""

from __future__ import annotations

import pytest

from hami.vendors import table
from hami.wire import node_register
from hami_sandbox.errors import SandboxError
from hami_sandbox.fleet import nodes
from hami_sandbox.plan import MOST_NODES, OTHERS, NodePlan, Plan, parse_node


def test_a_node_is_a_name_and_its_cards_in_order() -> None:
    assert parse_node("gpu-a=8xH100") == NodePlan(name="gpu-a", cards=(("H100", 8),))
    assert parse_node("b=2xT4,1xA10").cards == (("T4", 2), ("A10", 1))
    mixed = parse_node("c=2xT4,1xZ100,3xMLU370-X8")
    assert (mixed.cards, mixed.others) == ((("T4", 2),), (("Z100", 1), ("MLU370-X8", 3)))


def test_there_are_models_of_every_vendor() -> None:
    assert {model.vendor for model in OTHERS.values()} | {"NVIDIA"} == {
        vendor.name for vendor in table.built_in()
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu-a", "NAME=CARDS"),
        ("Gpu=1xT4", "NAME=CARDS"),
        ("a=T4", "COUNTxMODEL"),
        ("a=0xT4", "COUNTxMODEL"),
        ("a=2xT5", "models are"),
    ],
)
def test_what_does_not_read_is_named_with_its_rule(text: str, told: str) -> None:
    with pytest.raises(SandboxError, match=told):
        parse_node(text)


def test_a_plan_has_each_node_once_and_no_more_than_can_run() -> None:
    one = parse_node("a=1xT4")
    Plan(nodes=(one,)).check()
    with pytest.raises(SandboxError, match="twice"):
        Plan(nodes=(one, one)).check()
    many = tuple(parse_node(f"n{number}=1xT4") for number in range(MOST_NODES + 1))
    with pytest.raises(SandboxError, match="simulated"):
        Plan(nodes=many).check()
    with pytest.raises(SandboxError, match="17 cards of node a"):
        Plan(nodes=(parse_node("a=9xT4,8xA10"),)).check()
    with pytest.raises(SandboxError, match="-1 simulated"):
        Plan(nodes=(one,), simulated=-1).check()


def test_a_simulated_fleet_is_the_same_at_every_start_and_no_card_is_twice() -> None:
    fleet = nodes.rows("sim", 12, [("H100", 2)])
    assert fleet == nodes.rows("sim", 12, [("H100", 2)])
    assert [row.name for row in fleet][:2] == ["sim-01", "sim-02"]
    cards = [card for row in fleet for card in node_register.decode_json(row.register)]
    assert len({card.id for card in cards}) == 24
    assert {card.devmem for card in cards} == {81559}
