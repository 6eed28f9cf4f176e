"""Containers and usage from the agent's files, also with bad ones among them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from hami.monitor import hami
from hami.monitor.collect import Collector
from hami.monitor.containers import Container, Key, PreparedContainers, Unreadable
from hami.monitor.hami import HamiContainers
from hami.monitor.pods import Pods
from hami.monitor.usage import ContainerUsage, UsageReader
from hami.node.layout import NodeLayout
from hami.wire import state_file
from hami.wire.hami_region import V1
from hami.wire.shares import Share
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER


def prepared(node: NodeLayout, unreadable: Unreadable | None = None) -> PreparedContainers:
    return PreparedContainers(node, unreadable or nodes.unreadable()[0])


def found(node: NodeLayout) -> dict[str, Container]:
    return {container.pod: container for container in prepared(node).read()}


def usage_of(
    node: NodeLayout, container: Container, unreadable: Unreadable | None = None
) -> ContainerUsage | None:
    return UsageReader(node, unreadable or nodes.unreadable()[0]).usage(container)


def grant(memory: int, cores: int = 0) -> Share:
    return Share(card=CARD, vendor="NVIDIA", memory_mib=memory, cores=cores)


def test_a_policy_makes_a_limited_container(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB, OTHER: 2 * GIB}, cores=30)
    one = found(node)["a"]
    assert one.key == Key(nodes.uid_of("a"), "main")
    assert (one.namespace, one.limited, one.allocation_ids) == (
        "team",
        True,
        (nodes.allocation_of("a"),),
    )
    assert one.shares == (nodes.share(CARD, GIB, 30), nodes.share(OTHER, 2 * GIB, 30))


def test_a_policy_without_core_limit_is_a_share_without_one(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB}, cores=100)
    (share,) = found(node)["a"].shares
    assert (share, share.core_limit) == (nodes.share(CARD, GIB), None)


def test_a_record_makes_containers_without_a_policy(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.write_record(node, nodes.record("whole", [grant(24 * 1024, 100)]))
    one = found(node)["whole"]
    assert not one.limited
    assert one.shares == (nodes.share(CARD, 24 * GIB, 100),)
    assert usage_of(node, one) is None


def test_series_end_with_the_record(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    nodes.prepare(node, "b", {CARD: GIB})
    node.record(nodes.uid_of("a")).unlink()  # the folder of its allocation is still there
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
    reader = prepared(node)
    assert [each.shares[0].memory_bytes for each in reader.read()] == [GIB]
    path = nodes.write_policy(node, "a", {CARD: 2 * GIB})
    os.utime(path, (1, 1))
    assert [each.shares[0].memory_bytes for each in reader.read()] == [2 * GIB]


def test_a_damaged_policy_leaves_what_the_record_says(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    nodes.prepare(node, "b", {CARD: GIB})
    node.policy(nodes.allocation_of("a")).write_bytes(b"no policy")
    containers = found(node)
    assert containers["a"].shares == (nodes.share(CARD, GIB),)
    assert containers["a"].limited
    assert containers["b"].limited


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
    reader = prepared(node, unreadable)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [each.pod for each in reader.read()] == ["a"]
    assert nodes.counts(counter) == {"content": 6}
    assert len(caplog.records) == 2  # once for each, not once for each read
    assert node.record(nodes.uid_of("a")).exists()


def test_foreign_names_are_left_alone(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    (node.allocations / "not-a-token").mkdir()
    (node.ledger / ".draft").touch()
    (node.ledger / "notes.txt").touch()
    assert not found(node)


def test_use_is_summed_over_living_processes(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    path = nodes.prepare(node, "a", {CARD: GIB, OTHER: GIB})
    path.write_bytes(
        nodes.state(
            [OTHER, CARD],  # the container's own order need not be the policy's
            nodes.entry(
                1,
                nodes.usage(overhead=3, linear=10),
                nodes.usage(vmm=100),
                last_kernel_time=50,
            ),
            nodes.entry(2, nodes.usage(pool=7, pending=1), last_kernel_time=40),
            nodes.entry(3, nodes.usage(linear=1000)),  # dead
        )
    )
    [one] = prepared(node).read()
    with nodes.held(path, 0, 1):
        sums = usage_of(node, one)
    assert sums is not None
    other, card = sums.cards[OTHER], sums.cards[CARD]
    assert (other.used, other.context, other.data, other.module) == (21, 3, 18, None)
    assert (card.used, card.data) == (100, 100)
    assert (set(sums.pids), sums.last_kernel_time) == ({1, 2}, 50)


def test_a_container_that_has_not_started_uses_nothing(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    [one] = prepared(node).read()
    sums = usage_of(node, one)
    assert sums is not None
    assert (sums.cards, sums.pids) == ({}, frozenset())


def test_after_a_reboot_nothing_is_known(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    path = nodes.prepare(node, "a", {CARD: GIB})
    path.unlink()
    unreadable, counter = nodes.unreadable()
    [one] = prepared(node, unreadable).read()
    assert usage_of(node, one, unreadable) is None
    assert nodes.counts(counter) == {}


def test_two_allocations_of_one_container_are_one_container(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    first, second = nodes.allocation_of("1"), nodes.allocation_of("2")
    nodes.write_record(node, nodes.record("a", [grant(1024)], allocation_ids=[first, second]))
    for each, age in ((first, 1), (second, 2)):
        path = nodes.write_policy(node, "a", {CARD: age * GIB}, allocation_id=each)
        os.utime(path, (age, age))
        node.state(each).parent.mkdir()
        node.state(each).write_bytes(nodes.state([CARD], nodes.entry(1, nodes.usage(linear=age))))
    [one] = prepared(node).read()
    assert set(one.allocation_ids) == {first, second}
    assert one.shares == (nodes.share(CARD, 2 * GIB),)  # the younger one's
    with nodes.held(node.state(first), 0), nodes.held(node.state(second), 0):
        sums = usage_of(node, one)
    assert sums is not None
    assert sums.cards[CARD].used == 3


def test_one_bad_state_costs_its_own_container_only(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    bad = nodes.prepare(node, "bad", {CARD: GIB})
    good = nodes.prepare(node, "good", {CARD: GIB})
    good.write_bytes(nodes.state([CARD], nodes.entry(1, nodes.usage(linear=5))))
    unreadable, counter = nodes.unreadable()
    containers = {each.pod: each for each in prepared(node, unreadable).read()}
    contents = {"truncated": good.read_bytes()[:1000], "content": b"\xff" * state_file.SIZE}
    with nodes.held(good, 0):
        for reason in (*contents, "no_file"):
            bad.unlink()
            if reason in contents:
                bad.write_bytes(contents[reason])
            else:
                bad.symlink_to(good)
            sums = usage_of(node, containers["good"], unreadable)
            assert sums is not None
            assert sums.cards[CARD].used == 5
            assert usage_of(node, containers["bad"], unreadable) is None
    assert nodes.counts(counter) == dict.fromkeys((*contents, "no_file"), 1.0)


def test_hamis_containers_need_a_pod(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    for name in ("known", "deleted"):
        folder = node.hami_containers / f"{nodes.uid_of(name)}_main"
        folder.mkdir()
        (folder / "x.cache").write_bytes(
            regions.region(
                V1,
                [CARD],
                regions.process(V1, 7, used=[(0, 0, 6, 0, 6)], sm=[20]),
                limits=[MIB - 1],
            )
        )
    (node.hami_containers / f"{nodes.uid_of('known')}_empty").mkdir()
    reader = HamiContainers(node, nodes.pods(nodes.pod("known")), nodes.unreadable()[0])
    [each] = reader.read()
    one = reader.container(each)
    assert one is not None
    assert (one.namespace, one.pod, one.shares) == ("team", "known", (nodes.share(CARD, MIB),))
    card = hami.usage_of(each.region).cards[CARD]
    assert (card.used, card.compute, card.limit) == (6, 20, MIB - 1)


def has_ended(node: NodeLayout, pods: Pods) -> bool:
    unreadable, _ = nodes.unreadable()
    reader = prepared(node, unreadable)
    collector = Collector(
        node="n1",
        prepared=reader,
        usage=UsageReader(node, unreadable),
        hami_containers=HamiContainers(node, pods, unreadable),
        audit=None,  # type: ignore[arg-type]  # nothing is collected
        pods=pods,
    )
    [one] = reader.read()
    return collector.has_ended(one)


@pytest.mark.parametrize(
    ("pods", "ended"),
    [
        (nodes.pods(synced=False), False),  # no list of pods yet
        (nodes.pods(nodes.pod("a")), False),
        (nodes.pods(nodes.pod("a", ended=["main"])), True),
        (nodes.pods(nodes.pod("a", ended=["other"])), False),
        (nodes.pods(nodes.pod("a", phase="Failed")), True),
        (nodes.pods(), True),
    ],
)
def test_the_api_server_decides_when_a_container_has_ended(
    tmp_path: Path, pods: Pods, ended: bool
) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    os.utime(node.policy(nodes.allocation_of("a")), (1, 1))
    assert has_ended(node, pods) == ended


def test_a_pod_that_the_agent_knew_first_has_not_ended(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    nodes.prepare(node, "a", {CARD: GIB})
    assert not has_ended(node, nodes.pods())
