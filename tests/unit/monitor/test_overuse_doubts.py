"""Pods of which it is not certain that they have too much are left as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.monitor.driver import CardSample, DriverSample
from hami.wire import annotation_keys, pod_marks, policy_file
from hami.wire.pod_marks import Overuse
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER
from tests.unit.monitor.test_audit import ID, prepared
from tests.unit.monitor.test_driver import card
from tests.unit.monitor.test_overuse import Node, running, using
from tests.unit.scheduler.conftest import Times


@pytest.fixture
def times() -> Times:
    """Return clocks that the test moves."""
    return Times()


def resize(node: Node, limit: int, generation: int) -> None:
    """Write another limit for the pod, as the agent does after a signed resize."""
    path = nodes.write_policy(node.desk.node, "a", {CARD: limit})
    policy = policy_file.decode(path.read_bytes())
    renamed = path.with_name("new")
    renamed.write_bytes(policy_file.encode(msgspec.structs.replace(policy, generation=generation)))
    renamed.rename(path)


async def test_a_shrunk_pod_keeps_what_it_had_and_may_take_no_more(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk, limit=4 * GIB)
        using(node, 3 * GIB)
        await node.audit(2)
        resize(node, GIB, 2)
        await node.audit(3)
        assert node.mark("a") is None
        using(node, 2 * GIB)
        await node.audit(2)
        assert node.mark("a") is None
        using(node, 3 * GIB)  # no library would have given that back
        await node.audit(2)
        mark = node.mark("a")
        assert mark is not None
        assert (mark.used, mark.limit) == (3 * GIB, GIB)


async def test_a_resized_pod_within_its_limit_is_marked_when_it_leaves_it(
    tmp_path: Path, times: Times
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        prepared(node.desk, limit=4 * GIB)
        resize(node, GIB, 2)
        await node.audit()
        using(node, 2 * GIB)
        await node.audit(2)
        assert node.mark("a") is not None


async def test_a_container_that_is_not_named_yet_is_not_taken_for_another(
    tmp_path: Path, times: Times
) -> None:
    """A second container, with a card of another plugin, whose status has not arrived."""
    pod: dict[str, Any] = nodes.pod("a", containers=("main", "side"))
    for container in pod["spec"]["containers"]:
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    async with running(tmp_path, times, pod) as node:
        nodes.prepare(node.desk.node, "a", {OTHER: GIB})
        node.desk.process(100, pod="a")
        node.desk.sampler.on_card = {100: 2 * GIB}
        await node.audit(3)
        assert node.mark("a") is None


@pytest.mark.parametrize("amount", ["0", 0, "0m"])
async def test_a_request_for_no_device_is_none(
    tmp_path: Path, times: Times, amount: str | int
) -> None:
    pod: dict[str, Any] = nodes.pod("sneaky", containers=("x",), ids={"x": ID})
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    async with running(tmp_path, times, pod) as node:
        node.desk.process(100, pod="sneaky")
        node.desk.sampler.on_card = {100: MIB}
        await node.audit(2)
        assert node.mark("sneaky") is not None


def listing(node: Node, *uuids: str) -> None:
    """Let the driver list these cards; it answers for one of them."""
    took = node.desk.sampler.take
    here = (dataclasses.replace(card(i), uuid=uuid) for i, uuid in enumerate(uuids))
    cards = tuple(CardSample(card=each) for each in here)

    def take() -> DriverSample:
        return msgspec.structs.replace(took(), cards=cards)

    node.desk.sampler.take = take  # type: ignore[method-assign]


async def test_a_card_that_does_not_answer_the_second_question_keeps_the_mark(
    tmp_path: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, times, nodes.pod("a")) as node:
        listing(node, CARD)
        nodes.prepare(node.desk.node, "a", {OTHER: GIB})
        using(node, MIB)
        await node.audit(2)
        marked = node.text("a")
        assert marked is not None
        with monkeypatch.context() as patched:
            patched.setattr(node.desk.sampler, "still_there", lambda _: {})
            await node.audit(2)
        assert node.text("a") == marked


async def test_a_card_that_was_not_sampled_keeps_the_mark_and_a_card_of_no_node_does_not(
    tmp_path: Path, times: Times
) -> None:
    def marked(name: str, on: str, **fields: str) -> dict[str, object]:
        values = {"uid": nodes.uid_of(name), "node": "n1", "since": "then", "seen": "then"}
        mark = Overuse(**(values | fields), card=on, used=1)  # type: ignore[arg-type]
        return nodes.pod(name, annotations={annotation_keys.OVERUSE: pod_marks.encode(mark)})

    made = (
        marked("silent", OTHER),
        marked("forged", "GPU-that-nobody-has"),
        marked("copied", OTHER, uid="of another pod"),
        marked("moved", OTHER, node="n2"),
    )
    async with running(tmp_path, times, *made) as node:
        listing(node, CARD, OTHER)
        await node.audit()
        assert node.text("silent") is not None
        assert [node.text(name) for name in ("forged", "copied", "moved")] == [None] * 3
