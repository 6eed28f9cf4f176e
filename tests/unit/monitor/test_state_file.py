"""State files of a tenant, with any content: read safely, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.node import files, state_reading
from hami.node.state_reading import UnreadableError
from hami.wire import file_layout, state_file
from hami.wire.errors import WireError
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB

REFUSED = (UnreadableError, WireError, files.UntrustedFileError)


def state_with(path: Path, *entries: bytes, **fields: int) -> Path:
    path.write_bytes(nodes.state([CARD], *entries, **fields))
    return path


def pids(path: Path) -> list[int]:
    found = state_reading.read_state(path)
    assert found is not None
    return [process.pid for process in found.processes]


def test_a_process_entry_counts_while_its_process_lives(tmp_path: Path) -> None:
    path = state_with(tmp_path / "state", *(nodes.entry(pid) for pid in (7, 8, 9)))
    assert pids(path) == []
    with nodes.held(path, 0, 2):
        assert pids(path) == [7, 9]
        with nodes.held(path, 1):
            assert pids(path) == [7, 8, 9]
        assert pids(path) == [7, 9]
    assert pids(path) == []


def test_a_lock_on_an_entry_that_is_not_in_use_counts_nothing(tmp_path: Path) -> None:
    path = state_with(tmp_path / "state", nodes.entry(7), nodes.entry(8), slots_used=1)
    with nodes.held(path, 0, 1, 500):
        assert pids(path) == [7]


def test_the_reader_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = state_with(tmp_path / "state", nodes.entry(7))
    assert pids(path) == []
    with nodes.held(path, 0):  # would be refused
        assert pids(path) == [7]


def test_a_file_that_no_process_has_used_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert state_reading.read_state(path) is None
    path.touch()
    assert pids(path) == []


def test_a_file_grown_to_a_tebibyte_is_read_as_far_as_it_is_used(tmp_path: Path) -> None:
    path = state_with(tmp_path / "state", nodes.entry(7, nodes.usage(linear=GIB)))
    os.truncate(path, 1 << 40)
    with nodes.held(path, 0):
        found = state_reading.read_state(path)
    assert found is not None
    assert [process.usage[0].total for process in found.processes] == [GIB]


@pytest.mark.parametrize("size", [1, 100, 300, 5000, state_file.SIZE - 1])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = state_with(tmp_path / "state", nodes.entry(7))
    os.truncate(path, size)
    with nodes.held(path, 0), pytest.raises(UnreadableError) as caught:
        state_reading.read_state(path)
    assert caught.value.reason == "truncated"


def test_a_file_cut_off_under_the_reader_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state_with(tmp_path / "state", nodes.entry(7))
    read_at = files.read_at

    def cut_off(handle: int, size: int, offset: int) -> bytes:
        found = read_at(handle, size, offset)
        os.truncate(path, 100)
        return found

    monkeypatch.setattr(files, "read_at", cut_off)
    with pytest.raises(UnreadableError, match="cut off"):
        state_reading.read_state(path)


def test_no_other_kind_of_file_is_opened(tmp_path: Path) -> None:
    real = state_with(tmp_path / "real", nodes.entry(7))
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(files.UntrustedFileError):
            state_reading.read_state(tmp_path / name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 6000), st.binary(min_size=1, max_size=64)), max_size=6),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_garbage_is_refused_or_read_within_its_range(
    tmp_path: Path, writes: list[tuple[int, bytes]], devices: int, used: int
) -> None:
    path = state_with(
        tmp_path / "state", nodes.entry(7), nodes.entry(8), device_count=devices, slots_used=used
    )
    with path.open("r+b") as file:
        for offset, data in writes:
            file.seek(offset)
            file.write(data)
    with nodes.held(path, 0, 1):
        try:
            found = state_reading.read_state(path)
        except REFUSED:
            return
    assert found is not None
    assert len(found.processes) <= 2
    assert all(0 <= use.total <= 8 * ((1 << 64) - 1) for s in found.processes for use in s.usage)
    assert len(found.cards) <= file_layout.MAX_CARDS
