"""A lister with indexes that are never behind."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.kube.lister import Lister
from hami.wire import codec, objects


def pod(uid: str, name: str, node: str = "", **labels: str) -> objects.Pod:
    document = {
        "metadata": {"uid": uid, "name": name, "namespace": "n", "labels": labels},
        "spec": {"nodeName": node},
    }
    return codec.decode(codec.encode(document), objects.Pod, what="pod")


def by_node(pod: objects.Pod) -> Iterable[str]:
    return [pod.node_name] if pod.node_name else []


def names(pods: Iterable[objects.Pod]) -> list[str]:
    return [pod.name for pod in pods]


@pytest.fixture
def lister() -> Lister[objects.Pod]:
    return Lister(indexes={"node": by_node})


def test_objects_are_found_by_key_uid_and_index(lister: Lister[objects.Pod]) -> None:
    one, other = pod("1", "a", "x"), pod("2", "b", "x")
    lister.put(one)
    lister.put(other)
    assert lister.by_key("n/a") is one
    assert lister.get("2") is other
    assert lister.by_index("node", "x") == [one, other]
    assert list(lister.index_values("node")) == ["x"]
    assert (len(lister), names(lister), "1" in lister) == (2, ["a", "b"], True)


def test_an_object_that_moves_leaves_its_old_place(lister: Lister[objects.Pod]) -> None:
    lister.put(pod("1", "a", "x"))
    lister.put(pod("1", "a", "y"))
    assert lister.by_index("node", "x") == []
    assert names(lister.by_index("node", "y")) == ["a"]
    lister.drop("1")
    assert list(lister.index_values("node")) == []
    assert lister.by_key("n/a") is None


def test_the_end_of_an_object_takes_nothing_from_its_successor(lister: Lister[objects.Pod]) -> None:
    lister.put(pod("old", "a"))
    lister.put(pod("new", "a"))
    lister.drop("old")
    found = lister.by_key("n/a")
    assert found is not None
    assert found.uid == "new"


def test_handlers_see_every_change_after_it_and_what_was_there_before(
    lister: Lister[objects.Pod],
) -> None:
    heard: list[tuple[str, str, int]] = []

    def hear(old: objects.Pod | None, new: objects.Pod | None) -> None:
        heard.append((old.node_name if old else "-", new.node_name if new else "-", len(lister)))

    lister.put(pod("0", "z", "w"))
    lister.add_handler(hear)
    lister.put(pod("1", "a", "x"))
    lister.put(pod("1", "a", "y"))
    lister.drop("1")
    lister.drop("unknown")
    assert heard == [("-", "w", 1), ("-", "x", 2), ("x", "y", 2), ("y", "-", 1)]


def test_handlers_run_in_the_order_in_which_they_were_added(lister: Lister[objects.Pod]) -> None:
    order: list[int] = []
    for number in range(3):
        lister.add_handler(lambda _old, _new, number=number: order.append(number))  # type: ignore[misc]
    lister.put(pod("1", "a"))
    assert order == [0, 1, 2]


def test_an_index_function_that_fails_changes_nothing() -> None:
    def picky(pod: objects.Pod) -> Iterable[str]:
        if pod.node_name == "bad":
            raise ValueError(pod.node_name)
        return [pod.node_name]

    lister = Lister(indexes={"node": picky})
    lister.put(pod("1", "a", "x"))
    with pytest.raises(ValueError, match="bad"):
        lister.put(pod("1", "a", "bad"))
    assert names(lister.by_index("node", "x")) == ["a"]


def test_a_handler_that_fails_keeps_no_change_from_those_after_it(
    lister: Lister[objects.Pod],
) -> None:
    def broken(_old: objects.Pod | None, _new: objects.Pod | None) -> None:
        raise RuntimeError("a bug")

    heard: list[tuple[bool, bool]] = []
    lister.add_handler(broken)
    lister.add_handler(lambda old, new: heard.append((old is not None, new is not None)))
    with pytest.raises(RuntimeError, match="a bug"):
        lister.put(pod("1", "a", "x"))
    with pytest.raises(RuntimeError, match="a bug"):
        lister.drop("1")
    assert heard == [(False, True), (True, False)]


Step = tuple[str, str, str]
steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop"]), st.sampled_from("123"),
              st.sampled_from(["", "x", "y"])),
    max_size=30,
)  # fmt: skip


@hypothesis.given(steps)
def test_an_index_is_always_what_a_new_computation_gives(taken: list[Step]) -> None:
    lister = Lister(indexes={"node": by_node})
    for what, uid, node in taken:
        if what == "put":
            lister.put(pod(uid, f"p{uid}", node))
        else:
            lister.drop(uid)
        fresh: dict[str, set[str]] = {}
        for found in lister:
            for value in by_node(found):
                fresh.setdefault(value, set()).add(found.uid)
        kept = {v: {p.uid for p in lister.by_index("node", v)} for v in lister.index_values("node")}
        assert kept == fresh
