"""State files: read whole or in part, and cut to range whatever they hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.wire import file_layout, state_file
from hami.wire.errors import WireError

U64 = (1 << 64) - 1


def changed(data: bytes, layout: file_layout.Layout, field: str, value: bytes) -> bytes:
    offset, size = layout.places[field]
    assert len(value) == size
    return data[:offset] + value + data[offset + size :]


def entry(pid: int, *usage: bytes, **fields: int) -> bytes:
    return file_layout.PROCESS_ENTRY.pack(pid=pid, usage=b"".join(usage), **fields)


def state(*entries: bytes, cards: int = 1, used: int | None = None) -> bytes:
    return file_layout.STATE.pack(
        magic=file_layout.STATE_MAGIC,
        version=1,
        size=state_file.SIZE,
        nonce=5,
        boot_id=b"boot",
        policy_generation=3,
        device_count=cards,
        slots_used=len(entries) if used is None else used,
        recoveries=2,
        devices=file_layout.STATE_CARD.pack(uuid=b"GPU-7", used=70, limit=100, refused=4),
        slots=b"".join(entries),
    )


def test_a_state_has_cards_and_processes() -> None:
    usage = file_layout.PROCESS_USAGE.pack(
        overhead=1, linear=2, managed=4, pool=8, vmm=16, array=32, graph=64, pending=128, peak=999
    )
    found = state_file.decode(
        state(
            entry(41, usage, epoch=6, host_pid=4100, start_time=77, status=1), entry(0), entry(43)
        )
    )
    assert (found.nonce, found.boot_id, found.policy_generation, found.recoveries) == (
        5,
        "boot",
        3,
        2,
    )
    [card] = found.cards
    assert (card.uuid, card.used, card.limit, card.refused) == ("GPU-7", 70, 100, 4)
    first, second = found.processes
    assert (first.index, first.pid, first.host_pid, first.epoch) == (0, 41, 4100, 6)
    assert (second.index, second.pid) == (2, 43)
    assert first.usage[0].total == 255
    assert first.usage[0].peak == 999


def test_counts_out_of_range_are_cut() -> None:
    found = state_file.decode(state(entry(1), cards=(1 << 32) - 1, used=(1 << 32) - 1))
    assert len(found.cards) == 16
    assert [each.pid for each in found.processes] == [1]
    assert len(found.processes[0].usage) == 16


def test_entries_beyond_the_used_ones_and_negative_pids_do_not_count() -> None:
    found = state_file.decode(state(entry(-3), entry(1, host_pid=-9), entry(2), used=2))
    assert [(each.index, each.pid, each.host_pid) for each in found.processes] == [(1, 1, 0)]


def test_a_longer_state_file_is_fine() -> None:
    assert state_file.decode(state(entry(1)) + bytes(4096)) == state_file.decode(state(entry(1)))


def test_text_that_is_none_is_shown_escaped() -> None:
    data = bytearray(state())
    offset = file_layout.STATE.places["devices"][0]
    data[offset : offset + 96] = b"\xff" * 96  # not even an end
    assert state_file.decode(bytes(data)).cards[0].uuid == "\\xff" * 96


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "0 bytes is shorter than 1657904 bytes"),
        (state()[:-1], "is shorter than 1657904 bytes"),
        (bytes(state_file.SIZE), "state file: magic: 0 is not"),
        (changed(state(), file_layout.STATE, "version", b"\2\0\0\0"), "version: 2 is not 1"),
        (changed(state(), file_layout.STATE, "size", bytes(4)), "size: 0 is not 1657904"),
    ],
)
def test_a_file_that_is_no_state_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        state_file.decode(data)


@given(st.binary(min_size=1, max_size=4000))
def test_noise_behind_the_size_is_read(noise: bytes) -> None:
    data = state(entry(1))
    found = state_file.decode(data[:16] + noise + data[16 + len(noise) :])
    assert len(found.cards) <= 16
    assert len(found.processes) <= 1024


def used_part(data: bytes) -> bytes:
    return data[: state_file.bytes_used(data[: state_file.HEAD_SIZE])]


@given(st.lists(st.integers(-2, 3), max_size=8), st.integers(0, (1 << 32) - 1))
def test_the_used_part_is_read_as_the_whole(pids: list[int], more: int) -> None:
    usage = file_layout.PROCESS_USAGE.pack(linear=U64, peak=U64)
    data = state(*(entry(pid, usage) for pid in pids), used=min(len(pids) + more, U64 >> 32))
    part = used_part(data)
    assert state_file.decode(part, file_size=len(data)) == state_file.decode(data)
    if len(pids) + more < 100:
        assert len(part) < len(data) / 5


def test_numbers_as_large_as_they_can_be_are_read() -> None:
    usage = file_layout.PROCESS_USAGE.pack(overhead=U64, linear=U64, peak=U64)
    [found] = state_file.decode(state(entry(1, usage))).processes
    assert found.usage[0].total == 2 * U64


@pytest.mark.parametrize(
    ("data", "file_size", "rule"),
    [
        (used_part(state(entry(1)))[:-1], state_file.SIZE, "is shorter than 4736 bytes"),
        (used_part(state(entry(1))), state_file.SIZE - 1, "is shorter than 1657904 bytes"),
        (state()[: state_file.HEAD_SIZE - 1], state_file.SIZE, "is shorter than"),
    ],
)
def test_a_part_that_is_too_short_is_refused(data: bytes, file_size: int, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        state_file.decode(data, file_size=file_size)
