"""The highest priority delays others on a card: only listed pods may have it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door

TASK_PRIORITY = "CUDA_TASK_PRIORITY"


def highest(**spec: Any) -> Document:
    return pods.pod(pods.container(gpu=1, priority=0), **spec)


def test_it_is_refused_by_default() -> None:
    message = Door().refuses(highest(namespace="team-a"))
    assert message.startswith("container main: nvidia.com/priority '0' is (or counts as)")
    assert "which namespace team-a may not have; write 1 or more, or have" in message
    assert "--high-priority-namespaces or --high-priority-classes" in message
    assert "scheduler.admissionWebhook.highPriority" in message


def test_the_namespace_may_come_from_the_review() -> None:
    document = highest()
    del document["metadata"]["namespace"]
    assert "namespace default may" in Door().refuses(document)
    door = Door(high_priority_namespaces=frozenset({"team-a"}))
    assert door.send(document, namespace="team-a").allowed
    assert "namespace team-b may" in door.send(document, namespace="team-b").message
    document["metadata"]["namespace"] = "team-a"
    assert door.send(document, namespace="team-b").allowed


@pytest.mark.parametrize("namespaces", [{"team-a"}, {"*"}, {"team-b", "team-a"}])
def test_it_is_given_to_listed_namespaces(namespaces: set[str]) -> None:
    door = Door(high_priority_namespaces=frozenset(namespaces))
    through = door.passes(highest(namespace="team-a"))
    assert pods.env(through) == [{"name": TASK_PRIORITY, "value": "0"}]


def test_it_is_not_given_to_other_namespaces() -> None:
    door = Door(high_priority_namespaces=frozenset({"team-a"}))
    assert "namespace team-b may not have" in door.refuses(highest(namespace="team-b"))


def test_it_is_given_to_pods_of_listed_priority_classes() -> None:
    door = Door(high_priority_classes=frozenset({"urgent"}))
    assert door.send(highest(priorityClassName="urgent")).allowed
    for other in ("batch", "", None):
        assert not door.send(highest(priorityClassName=other)).allowed


@pytest.mark.parametrize(
    "value",
    [
        *("0", "00", " 0 ", "", "-1", "-0", "+0", "0.5", "high", "0x1", "1e3", "1 2", "٣"),
        # In 32 bits these are 0, or may be.
        *("4294967296", "2147483648", "9999999999", "1" * 5000),
    ],
)
def test_a_variable_that_the_library_may_take_for_it_is_refused(value: str) -> None:
    document = pods.pod(pods.container(gpu=1, env={TASK_PRIORITY: value}))
    message = Door().refuses(document)
    assert "the highest priority" in message
    assert len(message) < 1000


def test_a_variable_from_elsewhere_might_be_it_and_is_refused() -> None:
    document = pods.pod(pods.container(gpu=1, env={TASK_PRIORITY: None}))
    assert "nvidia.com/priority from elsewhere is (or counts as)" in Door().refuses(document)
    assert Door(high_priority_namespaces=frozenset("*")).send(document).allowed


@pytest.mark.parametrize("value", ["1", "007", " 2 ", "2147483647"])
def test_other_numbers_are_free(value: str) -> None:
    assert Door().send(pods.pod(pods.container(gpu=1, env={TASK_PRIORITY: value}))).allowed


def test_it_is_found_in_every_container_with_cards_and_in_no_other() -> None:
    sly = pods.container("sly", env={TASK_PRIORITY: "0"})
    document = pods.pod(pods.container(gpu=1), init=[sly])
    assert Door().send(document).allowed
    sly["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert Door().refuses(document).startswith("container sly: ")


def test_where_the_resource_has_no_name_the_variable_is_named() -> None:
    door = Door(vendor=pods.renamed(priority=""))
    document = pods.pod(pods.container(gpu=1, env={TASK_PRIORITY: "0"}))
    assert f"container main: {TASK_PRIORITY} '0' is" in door.refuses(document)
