"""HAMi's regions get feedback; folders of deleted pods are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hami.monitor import hami
from hami.monitor.hami import HamiContainers, HamiFeedback
from hami.monitor.pods import Pods
from hami.node.layout import NodeLayout
from hami.wire.hami_region import V0, V1, Version
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, OTHER


def feedback(node: NodeLayout, pods: Pods) -> HamiFeedback:
    unreadable, _ = nodes.unreadable()
    return HamiFeedback(
        node,
        containers=HamiContainers(node, pods, unreadable),
        pods=pods,
        unreadable=unreadable,
        keep_for=300,
    )


def region(node: NodeLayout, name: str, version: Version = V1, **fields: Any) -> Path:
    folder = node.hami_containers / f"{nodes.uid_of(name)}_main"
    folder.mkdir()
    path = folder / "x.cache"
    path.write_bytes(regions.region(version, [CARD], **fields))
    return path


def numbers(path: Path) -> tuple[int, int]:
    found = hami.read_region(path)
    return found.recent_kernel, found.utilization_switch


@pytest.mark.parametrize("version", [V0, V1])
def test_the_lower_priority_waits(tmp_path: Path, version: Version) -> None:
    node = nodes.layout(tmp_path)
    high = region(node, "high", version, priority=0, recent_kernel=2)
    low = region(node, "low", V1, priority=1, recent_kernel=2)
    keeping = feedback(node, nodes.pods(nodes.pod("high"), nodes.pod("low")))
    keeping.update()
    assert (numbers(high), numbers(low)) == ((1, 0), (-1, 1))
    keeping.update()  # nothing was launched meanwhile
    assert (numbers(high), numbers(low)) == ((0, 0), (0, 0))


def test_a_region_counts_with_what_its_pods_spec_and_grant_say(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    region(node, "high", priority=0, recent_kernel=2)
    low = region(node, "low", priority=1, recent_kernel=2)
    for card, allowed, expected in (
        (CARD, "0", -1),
        (CARD, "1", 1),
        (CARD, "", 1),
        (OTHER, "0", 1),
    ):
        pods = nodes.hami_pod("high", card, priority=allowed), nodes.hami_pod("low", CARD)
        low.write_bytes(regions.region(V1, [CARD], priority=1, recent_kernel=2))
        feedback(node, nodes.pods(*pods)).update()
        assert numbers(low)[0] == expected
        region_of_high = node.hami_containers / f"{nodes.uid_of('high')}_main" / "x.cache"
        region_of_high.write_bytes(regions.region(V1, [CARD], priority=0, recent_kernel=2))


def test_a_priority_from_elsewhere_is_taken_from_the_region(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    region(node, "high", priority=0, recent_kernel=2)
    low = region(node, "low", priority=1, recent_kernel=2)
    high: dict[str, Any] = nodes.hami_pod("high", CARD, priority="1")
    source = {"configMapKeyRef": {"name": "c", "key": "k"}}
    high["spec"]["containers"][0]["env"] = [{"name": "CUDA_TASK_PRIORITY", "valueFrom": source}]
    feedback(node, nodes.pods(high, nodes.hami_pod("low", CARD))).update()
    assert numbers(low)[0] == -1


def test_what_does_not_change_is_not_written(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    path = region(node, "a", recent_kernel=0, utilization_switch=0)
    os.utime(path, (1, 1))
    feedback(node, nodes.pods(nodes.pod("a"))).update()
    assert path.stat().st_mtime == 1


def test_one_bad_region_costs_no_other_container_its_feedback(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    good = region(node, "good", recent_kernel=2)
    bad = region(node, "bad")
    bad.unlink()
    os.mkfifo(bad)
    feedback(node, nodes.pods(nodes.pod("good"), nodes.pod("bad"))).update()
    assert numbers(good) == (1, 0)


def aged(path: Path, seconds: float = 1000) -> None:
    old = time.time() - seconds
    os.utime(path, (old, old))


async def test_folders_of_deleted_pods_are_removed(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    there, deleted, fresh = (region(node, name).parent for name in ("there", "deleted", "fresh"))
    odd = node.hami_containers / "odd"
    odd.mkdir()
    for folder in (there, deleted, odd):
        aged(folder)
    nodes.prepare(node, "ours", {CARD: GIB})
    aged(node.allocation_folder(nodes.allocation_of("ours")))
    await feedback(node, nodes.pods(nodes.pod("there"))).remove_old()
    assert not deleted.exists()
    assert there.exists()
    assert fresh.exists()
    assert odd.exists()
    assert node.policy(nodes.allocation_of("ours")).exists()


async def test_nothing_is_removed_before_all_pods_are_known(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    deleted = region(node, "deleted").parent
    aged(deleted)
    await feedback(node, nodes.pods(synced=False)).remove_old()
    assert deleted.exists()


async def test_a_link_in_place_of_a_folder_is_left_alone(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    link = node.hami_containers / f"{nodes.uid_of('deleted')}_main"
    link.symlink_to(precious)
    old = time.time() - 1000
    os.utime(link, (old, old), follow_symlinks=False)
    await feedback(node, nodes.pods()).remove_old()
    assert (precious / "file").exists()
