"""HAMi's regions of both versions are read and written, also damaged ones."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.monitor import hami
from hami.monitor.containers import Key
from hami.node.files import UntrustedFileError
from hami.node.state_reading import UnreadableError
from hami.wire import hami_region
from hami.wire.errors import WireError
from hami.wire.hami_region import V1, Version
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER

BOTH = pytest.mark.parametrize("version", regions.VERSIONS.values(), ids=regions.VERSIONS)
REFUSED = (UnreadableError, WireError, UntrustedFileError)


@BOTH
def test_a_region_has_cards_limits_and_active_processes(tmp_path: Path, version: Version) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(
        regions.region(
            version,
            [CARD, OTHER],
            regions.process(version, 7, used=[(1, 2, 3, 4, 10), (0, 0, 5, 0, 5)], sm=[30, 1]),
            regions.process(version, 8, used=[(9, 9, 9, 9, 9)], sm=[99], status=0),
            regions.process(version, 9, used=[(1, 1, 1, 1, 4)], sm=[12], status=2),
            limits=[GIB, 0],
            cores=[30, 0],
            priority=0,
            recent_kernel=-1,
        )
    )
    found = hami.read_region(path)
    first, second = found.devices
    assert (first.uuid, first.limit, first.share.core_limit) == (CARD, GIB, 30)
    assert (second.uuid, second.limit, second.share.core_limit) == (OTHER, 0, None)
    assert (first.used, first.context, first.module, first.data, first.offset) == (14, 2, 3, 4, 5)
    assert (first.core_used, second.core_used, second.used) == (42, 1, 5)
    assert found.pids == {7, 9}
    assert (found.priority, found.recent_kernel, found.utilization_switch) == (0, -1, 1)


def test_the_last_kernel_is_in_version_one_only(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(regions.region(V1, [CARD], last_kernel_time=1234))
    assert hami.read_region(path).last_kernel_time == 1234
    path.write_bytes(regions.region(V1, [CARD], last_kernel_time=-5))
    assert hami.read_region(path).last_kernel_time == 0
    path.write_bytes(regions.region(hami_region.V0, [CARD]))
    assert hami.read_region(path).last_kernel_time == 0


def test_a_card_without_a_readable_name_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(regions.region(V1, [b"", b"\xff\xfe", b"GPU\n1", OTHER]))
    assert [(each.index, each.uuid) for each in hami.read_region(path).devices] == [(3, OTHER)]


@BOTH
def test_counts_out_of_range_are_cut(tmp_path: Path, version: Version) -> None:
    path = tmp_path / "a.cache"
    slot = regions.process(version, 7)
    path.write_bytes(regions.region(version, [CARD], slot, device_num=(1 << 64) - 1))
    assert len(hami.read_region(path).devices) == 1
    path.write_bytes(regions.region(version, [CARD], slot, proc_num=(1 << 31) - 1))
    assert hami.read_region(path).pids == {7}
    path.write_bytes(regions.region(version, [CARD], slot, proc_num=-1))
    assert hami.read_region(path).pids == frozenset()


@BOTH
def test_what_is_no_region_is_refused(tmp_path: Path, version: Version) -> None:
    path, good = tmp_path / "a.cache", regions.region(version, [CARD])
    for bad in (b"", good[:8], b"\0" + good[1:], good[:5000], good[: version.region.size - 1]):
        path.write_bytes(bad)
        with pytest.raises(REFUSED):
            hami.read_region(path)
    path.write_bytes(regions.region(V1, [CARD], major_version=2))
    with pytest.raises(WireError, match="version"):
        hami.read_region(path)


def test_links_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(regions.region(V1, [CARD]))
    (tmp_path / "link").symlink_to(real)
    os.mkfifo(tmp_path / "pipe")
    before = real.read_bytes()
    for name in ("link", "pipe", "missing"):
        with pytest.raises(UntrustedFileError):
            hami.read_region(tmp_path / name)
        with pytest.raises(UntrustedFileError):
            hami.write_region(tmp_path / name, recent_kernel=-1, utilization_switch=0)
    assert real.read_bytes() == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.sampled_from(list(regions.VERSIONS.values())),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=64)), max_size=5),
    st.binary(min_size=56, max_size=56),
)
def test_garbage_is_refused_or_read_within_its_range(
    tmp_path: Path, version: Version, writes: list[tuple[int, bytes]], tail: bytes
) -> None:
    data = bytearray(regions.region(version, [CARD], regions.process(version, 7)))
    for offset, noise in writes:
        data[offset : offset + len(noise)] = noise
    offset, length = version.tail
    data[offset : offset + length] = tail[:length]
    path = tmp_path / "a.cache"
    path.write_bytes(data)
    try:
        found = hami.read_region(path)
    except REFUSED:
        return
    assert len(found.devices) <= 16
    assert len(found.pids) <= 1024
    assert all(
        device.used >= 0 and 0 < (device.share.core_limit or 100) <= 100 for device in found.devices
    )


@BOTH
def test_an_answer_changes_two_numbers_and_nothing_else(tmp_path: Path, version: Version) -> None:
    path = tmp_path / "a.cache"
    before = regions.region(version, [CARD], regions.process(version, 7), recent_kernel=2)
    path.write_bytes(before)
    hami.write_region(path, recent_kernel=-1, utilization_switch=0)
    expected = bytearray(before)
    struct.pack_into("<ii", expected, version.offset("utilization_switch"), 0, -1)
    assert path.read_bytes() == bytes(expected)
    hami.write_region(path, recent_kernel=None, utilization_switch=1)
    assert hami.read_region(path).recent_kernel == -1
    assert hami.read_region(path).utilization_switch == 1


def test_nothing_is_written_into_what_is_no_region(tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(bytes(V1.region.size))
    with pytest.raises(WireError):
        hami.write_region(path, recent_kernel=-1, utilization_switch=1)
    assert path.read_bytes() == bytes(V1.region.size)
    path.write_bytes(regions.region(V1, [CARD])[:-100])
    with pytest.raises(WireError):
        hami.write_region(path, recent_kernel=-1, utilization_switch=1)


def test_folders_are_known_by_their_names(tmp_path: Path) -> None:
    node = nodes.layout(tmp_path)
    uid = nodes.uid_of("a")
    for name in (f"{uid}_main", f"{uid}_my_app", "nothing", "_main", f"{uid}_", "../x"):
        (node.hami_containers / name).mkdir(exist_ok=True)
    found = {folder.key for folder in hami.folders(node)}
    assert found == {Key(uid, "main"), Key(uid, "my_app")}


def test_the_region_is_chosen_as_hami_does(tmp_path: Path) -> None:
    assert hami.region_path(tmp_path) is None
    (tmp_path / "libvgpu.so.1").touch()
    (tmp_path / "notes").touch()
    assert hami.region_path(tmp_path) is None
    (tmp_path / "b.cache").touch()
    assert hami.region_path(tmp_path) == tmp_path / "b.cache"
    (tmp_path / "c.cache").touch()
    with pytest.raises(UnreadableError, match="more than 2 files"):
        hami.region_path(tmp_path)


def test_a_folder_that_a_container_filled_is_not_read_to_its_end(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}").touch()
    with pytest.raises(UnreadableError, match="more than 64 entries"):
        hami.region_path(tmp_path)


def test_only_old_folders_are_cleared_and_links_in_them_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(bytes(MIB))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(precious)
    now = time.time()
    assert not hami.remove_folder(folder, older_than=now - 100)
    assert (folder / "link").exists()
    os.utime(folder, (now - 200, now - 200))
    assert hami.remove_folder(folder, older_than=now - 100)
    assert not folder.exists()
    assert (precious / "file").exists()
