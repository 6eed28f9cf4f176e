"""A question about the same nodes as before is not looked up again."""

from __future__ import annotations

from hami.cluster.state import Asked, Cluster
from tests.builders import card, cluster, node


def test_the_same_names_in_another_order_are_the_same_question() -> None:
    kept = cluster(*(node(name, [card(name)]) for name in "abc"))
    assert kept.ask(["a", "b", "x"]) is kept.ask(["x", "b", "a"])
    assert nodes_of(kept, kept.ask(["c", "b", "x"])) == {"b", "c"}
    assert kept.ask(["c", "b", "x"]).unknown == ("x",)


def test_a_name_more_or_less_is_another_question() -> None:
    kept = cluster(*(node(name, [card(name)]) for name in "abc"))
    assert nodes_of(kept, kept.ask(["a", "b", "c"])) == {"a", "b", "c"}
    assert nodes_of(kept, kept.ask(["b", "a"])) == {"a", "b"}
    assert nodes_of(kept, kept.ask(["b", "a", "c"])) == {"a", "b", "c"}


def test_the_same_names_are_looked_up_again_once_a_node_has_come() -> None:
    kept = cluster(node("a", [card("1")]))
    assert kept.ask(["a", "b"]).unknown == ("b",)
    kept.observe_node(node("b", [card("2")]))
    asked = kept.ask(["b", "a"])
    assert asked.unknown == ()
    assert nodes_of(kept, asked) == {"a", "b"}


def test_questions_about_single_nodes_do_not_displace_the_one_about_all() -> None:
    names = [f"n{number}" for number in range(40)]
    kept = cluster(*(node(name, [card(name)]) for name in names))
    asked = kept.ask(names)
    for name in names:
        assert nodes_of(kept, kept.ask([name])) == {name}
    assert kept.ask(names[::-1]) is asked


def nodes_of(kept: Cluster, asked: Asked) -> set[str]:
    assert asked.masks is not None
    return {
        name
        for width, mask in asked.masks.items()
        for name, wanted in zip(kept.card_tables[width].names, mask, strict=True)
        if wanted
    }
