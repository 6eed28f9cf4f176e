"""A cache with indexes that are never behind."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.kube.store import Cache
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
def cache() -> Cache[objects.Pod]:
    return Cache(indexes={"node": by_node})


def test_objects_are_found_by_key_uid_and_index(cache: Cache[objects.Pod]) -> None:
    one, other = pod("1", "a", "x"), pod("2", "b", "x")
    cache.put(one)
    cache.put(other)
    assert cache.get("n/a") is one
    assert cache.by_uid("2") is other
    assert cache.by_index("node", "x") == [one, other]
    assert list(cache.values("node")) == ["x"]
    assert (len(cache), names(cache), "1" in cache) == (2, ["a", "b"], True)


def test_an_object_that_moves_leaves_its_old_place(cache: Cache[objects.Pod]) -> None:
    cache.put(pod("1", "a", "x"))
    cache.put(pod("1", "a", "y"))
    assert cache.by_index("node", "x") == []
    assert names(cache.by_index("node", "y")) == ["a"]
    cache.drop("1")
    assert list(cache.values("node")) == []
    assert cache.get("n/a") is None


def test_the_end_of_an_object_takes_nothing_from_its_successor(cache: Cache[objects.Pod]) -> None:
    cache.put(pod("old", "a"))
    cache.put(pod("new", "a"))
    cache.drop("old")
    found = cache.get("n/a")
    assert found is not None
    assert found.uid == "new"


def test_subscribers_hear_of_every_change_after_it_and_until_they_leave(
    cache: Cache[objects.Pod],
) -> None:
    heard: list[tuple[str, str, int]] = []

    def hear(old: objects.Pod | None, new: objects.Pod | None) -> None:
        heard.append((old.node_name if old else "-", new.node_name if new else "-", len(cache)))

    leave = cache.subscribe(hear)
    cache.put(pod("1", "a", "x"))
    cache.put(pod("1", "a", "y"))
    cache.put(pod("2", "b", "z"))
    cache.retain({"2"})
    cache.drop("unknown")
    leave()
    cache.drop("2")
    assert heard == [("-", "x", 1), ("x", "y", 1), ("-", "z", 2), ("y", "-", 1)]


def test_an_index_function_that_fails_changes_nothing() -> None:
    def picky(pod: objects.Pod) -> Iterable[str]:
        if pod.node_name == "bad":
            raise ValueError(pod.node_name)
        return [pod.node_name]

    cache = Cache(indexes={"node": picky})
    cache.put(pod("1", "a", "x"))
    with pytest.raises(ValueError, match="bad"):
        cache.put(pod("1", "a", "bad"))
    assert names(cache.by_index("node", "x")) == ["a"]


Step = tuple[str, str, str]
steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "retain"]), st.sampled_from("123"),
              st.sampled_from(["", "x", "y"])),
    max_size=30,
)  # fmt: skip


@hypothesis.given(steps)
def test_an_index_is_always_what_one_would_compute_anew(taken: list[Step]) -> None:
    cache = Cache(indexes={"node": by_node})
    for what, uid, node in taken:
        if what == "put":
            cache.put(pod(uid, f"p{uid}", node))
        elif what == "drop":
            cache.drop(uid)
        else:
            cache.retain({uid})
        fresh: dict[str, set[str]] = {}
        for found in cache:
            for value in by_node(found):
                fresh.setdefault(value, set()).add(found.uid)
        kept = {v: {p.uid for p in cache.by_index("node", v)} for v in cache.values("node")}
        assert kept == fresh
