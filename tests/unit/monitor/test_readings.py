"""What the agent's files say of the node's containers, and what one bad file costs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from hami.monitor import usage
from hami.monitor.containers import Container, Key
from hami.monitor.pods import Pods
from hami.monitor.usage import Readings
from hami.node.layout import NodeLayout
from hami.wire import state_file
from hami.wire.hami_region import V1
from hami.wire.shares import Share
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER


def readings(node: NodeLayout, pods: Pods | None = None) -> Readings:
    return Readings(node, pods or nodes.pods(synced=False), nodes.unreadable()[0])


def found(node: NodeLayout) -> dict[str, Container]:
    return {container.pod: container for container in readings(node).prepared()}


def grant(memory: int, cores: int = 0) -> Share:
    return Share(card=CARD, vendor="NVIDIA", memory_mib=memory, cores=cores)


def test_a_policy_tells_a_limited_container(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB, OTHER: 2 * GIB}, cores=30)
    one = found(node)["a"]
    assert one.key == Key(nodes.uid_of("a"), "main")
    assert (one.namespace, one.limited, one.tokens) == ("team", True, (nodes.token_of("a"),))
    assert one.shares == (nodes.share(CARD, GIB, 30), nodes.share(OTHER, 2 * GIB, 30))


def test_a_policy_without_core_limit_is_a_share_without_one(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB}, cores=100)
    (share,) = found(node)["a"].shares
    assert (share, share.core_limit) == (nodes.share(CARD, GIB), None)


def test_a_record_tells_containers_without_a_policy(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.write_record(node, nodes.record("whole", [grant(24 * 1024, 100)]))
    one = found(node)["whole"]
    assert not one.limited
    assert one.shares == (nodes.share(CARD, 24 * GIB, 100),)
    assert readings(node).use(one) is None


def test_series_end_with_the_record(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    nodes.prepare(node, "b", {CARD: GIB})
    node.record(nodes.uid_of("a")).unlink()  # the folder of its token is still there
    assert found(node).keys() == {"b"}


def test_without_a_ledger_policies_count(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.write_policy(node, "a", {CARD: GIB})
    assert not found(node)
    node.ledger.rmdir()
    assert found(node).keys() == {"a"}


def test_a_changed_policy_is_read_again(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    looking = readings(node)
    assert [each.shares[0].memory_bytes for each in looking.prepared()] == [GIB]
    path = nodes.write_policy(node, "a", {CARD: 2 * GIB})
    os.utime(path, (1, 1))
    assert [each.shares[0].memory_bytes for each in looking.prepared()] == [2 * GIB]


def test_a_damaged_policy_leaves_what_the_record_says(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    nodes.prepare(node, "b", {CARD: GIB})
    node.policy(nodes.token_of("a")).write_bytes(b"no policy")
    looked = found(node)
    assert looked["a"].shares == (nodes.share(CARD, GIB),)
    assert looked["a"].limited
    assert looked["b"].limited


def test_a_damaged_record_costs_its_pod_nothing_that_the_policy_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    nodes.write_record(node, nodes.record("whole", [grant(1024)]))
    for name in ("a", "whole"):
        path = node.record(nodes.uid_of(name))
        path.write_bytes(path.read_bytes()[:40])
    unreadable, counter = nodes.unreadable()
    looking = Readings(node, nodes.pods(), unreadable)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [each.pod for each in looking.prepared()] == ["a"]
    assert nodes.counts(counter) == {"content": 6}
    assert len(caplog.records) == 2  # once for each, not once a look
    assert node.record(nodes.uid_of("a")).exists()


def test_foreign_names_are_left_alone(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    (node.tokens / "not-a-token").mkdir()
    (node.ledger / ".draft").touch()
    (node.ledger / "notes.txt").touch()
    assert not found(node)


def test_use_is_summed_over_living_processes(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    path = nodes.prepare(node, "a", {CARD: GIB, OTHER: GIB})
    path.write_bytes(
        nodes.state(
            [OTHER, CARD],  # the container's own order need not be the policy's
            nodes.slot(
                1,
                nodes.usage(overhead=3, linear=10),
                nodes.usage(vmm=100),
                last_kernel_time=50,
            ),
            nodes.slot(2, nodes.usage(pool=7, pending=1), last_kernel_time=40),
            nodes.slot(3, nodes.usage(linear=1000)),  # dead
        )
    )
    looking = readings(node)
    [one] = looking.prepared()
    with nodes.held(path, 0, 1):
        told = looking.use(one)
    assert told is not None
    other, card = told.cards[OTHER], told.cards[CARD]
    assert (other.used, other.context, other.data, other.module) == (21, 3, 18, None)
    assert (card.used, card.data) == (100, 100)
    assert (set(told.pids), told.last_kernel_time) == ({1, 2}, 50)


def test_a_container_that_has_not_started_uses_nothing(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    looking = readings(node)
    [one] = looking.prepared()
    told = looking.use(one)
    assert told is not None
    assert (told.cards, told.pids) == ({}, frozenset())


def test_after_a_reboot_nothing_is_known(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    path = nodes.prepare(node, "a", {CARD: GIB})
    path.unlink()
    unreadable, counter = nodes.unreadable()
    looking = Readings(node, nodes.pods(), unreadable)
    [one] = looking.prepared()
    assert looking.use(one) is None
    assert nodes.counts(counter) == {}


def test_two_tokens_of_one_container_are_one_container(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    first, second = nodes.token_of("1"), nodes.token_of("2")
    nodes.write_record(node, nodes.record("a", [grant(1024)], tokens=[first, second]))
    for token, age in ((first, 1), (second, 2)):
        path = nodes.write_policy(node, "a", {CARD: age * GIB}, token=token)
        os.utime(path, (age, age))
        node.state(token).parent.mkdir()
        node.state(token).write_bytes(nodes.state([CARD], nodes.slot(1, nodes.usage(linear=age))))
    looking = readings(node)
    [one] = looking.prepared()
    assert set(one.tokens) == {first, second}
    assert one.shares == (nodes.share(CARD, 2 * GIB),)  # the younger one's
    with nodes.held(node.state(first), 0), nodes.held(node.state(second), 0):
        told = looking.use(one)
    assert told is not None
    assert told.cards[CARD].used == 3


def test_one_bad_state_costs_its_own_container_only(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    bad = nodes.prepare(node, "bad", {CARD: GIB})
    good = nodes.prepare(node, "good", {CARD: GIB})
    good.write_bytes(nodes.state([CARD], nodes.slot(1, nodes.usage(linear=5))))
    unreadable, counter = nodes.unreadable()
    looking = Readings(node, nodes.pods(), unreadable)
    containers = {each.pod: each for each in looking.prepared()}
    contents = {"truncated": good.read_bytes()[:1000], "content": b"\xff" * state_file.SIZE}
    with nodes.held(good, 0):
        for reason in (*contents, "no_file"):
            bad.unlink()
            if reason in contents:
                bad.write_bytes(contents[reason])
            else:
                bad.symlink_to(good)
            told = looking.use(containers["good"])
            assert told is not None
            assert told.cards[CARD].used == 5
            assert looking.use(containers["bad"]) is None
    assert nodes.counts(counter) == dict.fromkeys((*contents, "no_file"), 1.0)


def test_hamis_containers_need_a_pod(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    for name in ("known", "gone"):
        folder = node.hami_containers / f"{nodes.uid_of(name)}_main"
        folder.mkdir()
        (folder / "x.cache").write_bytes(
            regions.region(
                V1,
                [CARD],
                regions.process(V1, 7, used=[(0, 0, 6, 0, 6)], sm=[20]),
                limits=[MIB],
            )
        )
    (node.hami_containers / f"{nodes.uid_of('known')}_empty").mkdir()
    looking = readings(node, nodes.pods(nodes.pod("known")))
    [each] = looking.hami()
    one = looking.named(each)
    assert one is not None
    assert (one.namespace, one.pod, one.shares) == ("team", "known", (nodes.share(CARD, MIB),))
    card = usage.of_region(each.region).cards[CARD]
    assert (card.used, card.compute) == (6, 20)


@pytest.mark.parametrize(
    ("pods", "over"),
    [
        (nodes.pods(synced=False), False),  # nobody has said anything yet
        (nodes.pods(nodes.pod("a")), False),
        (nodes.pods(nodes.pod("a", ended=["main"])), True),
        (nodes.pods(nodes.pod("a", ended=["other"])), False),
        (nodes.pods(nodes.pod("a", phase="Failed")), True),
        (nodes.pods(), True),
    ],
)
def test_the_api_server_says_when_a_container_is_over(
    tmp_path: Path, pods: Pods, over: bool
) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    os.utime(node.policy(nodes.token_of("a")), (1, 1))
    looking = readings(node, pods)
    [one] = looking.prepared()
    assert looking.over(one) == over


def test_a_pod_that_the_agent_knew_first_is_not_over(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    looking = readings(node, nodes.pods())
    [one] = looking.prepared()
    assert not looking.over(one)
