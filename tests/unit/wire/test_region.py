"""Policy files round-trip and bad ones are refused; a state file is never believed beyond range."""

from __future__ import annotations

import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.wire import file_layout, region
from hami.wire.errors import WireError

U64 = (1 << 64) - 1


def device(uuid: str = "GPU-7", **fields: int) -> region.PolicyDevice:
    return region.PolicyDevice(uuid=uuid, **{"memory_limit": 4 << 30, **fields})


def policy(*devices: region.PolicyDevice, **fields: int | str | region.Flag) -> region.Policy:
    return region.Policy(**{"generation": 1, "devices": devices or (device(),), **fields})  # type: ignore[arg-type]


def changed(data: bytes, layout: file_layout.Layout, field: str, value: bytes) -> bytes:
    offset, size = layout.places[field]
    assert len(value) == size
    return data[:offset] + value + data[offset + size :]


def sealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


POLICIES = st.builds(
    region.Policy,
    generation=st.integers(1, U64),
    devices=st.lists(
        st.builds(
            region.PolicyDevice,
            uuid=st.text(
                st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=95
            ),
            memory_limit=st.integers(0, U64),
            context_bytes=st.integers(0, U64),
            core_limit=st.integers(0, 100),
        ),
        min_size=1,
        max_size=16,
        unique_by=lambda device: device.uuid,
    ).map(tuple),
    flags=st.sampled_from([region.Flag(bits) for bits in (0, 1, 2, 3, 4, 5)]),
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
    pod_uid=st.just("0d3c1f8e-6c3a-4a62-9d4c-0123456789ab"),
    pod_namespace=st.just("n" * 63),
    pod_name=st.just("p" * 253),
    container=st.just("c" * 63),
)


@given(POLICIES)
def test_a_policy_is_read_as_it_was_written(wanted: region.Policy) -> None:
    data = region.encode_policy(wanted)
    assert len(data) == region.POLICY_SIZE
    assert region.decode_policy(data) == wanted


def test_the_file_is_what_the_library_expects() -> None:
    data = region.encode_policy(policy(device(core_limit=30), flags=region.Flag.OVERSUBSCRIBE))
    assert data[:8] == b"AMIPOLY1"
    assert struct.unpack_from("<IIQII", data, 8) == (1, len(data), 1, 1, 1)
    assert data[488:584] == b"GPU-7".ljust(96, b"\0")
    assert struct.unpack_from("<QQI", data, 584) == (4 << 30, 0, 30)
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (policy(generation=0), "generation: 0 is not 1 to"),
        (policy(generation=U64 + 1), "generation: "),
        (policy(priority=1 << 31), "priority: "),
        (policy(*(device(str(n)) for n in range(17))), "number of devices: 17 is not 1 to 16"),
        (region.Policy(generation=1, devices=()), "number of devices: 0 is not 1 to 16"),
        (policy(device("")), "'' is empty; name the card by NVML's UUID"),
        (policy(device("GPU-é")), "is not at most 95 printable ASCII characters"),
        (policy(device("G\n")), "is not at most 95 printable ASCII characters"),
        (policy(device("G" * 96)), "is not at most 95 printable ASCII characters"),
        (policy(device(), device()), "'GPU-7' is there twice"),
        (policy(device(memory_limit=-1)), "memory_limit: -1 is not 0 to"),
        (policy(device(context_bytes=U64 + 1)), "context_bytes: "),
        (policy(device(core_limit=101)), "core_limit: 101 is not 0 to 100"),
        (policy(pod_name="p" * 256), "policy pod_name: "),
        (
            policy(flags=region.Flag.FORCE_CORES | region.Flag.IGNORE_CORES),
            "both forces and ignores cores; set one",
        ),
    ],
)
def test_a_policy_that_cannot_hold_is_not_written(wrong: region.Policy, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        region.encode_policy(wrong)


GOOD = region.encode_policy(policy())


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "0 bytes is shorter than 3176 bytes"),
        (GOOD[:-1], "3175 bytes is shorter than 3176 bytes"),
        (GOOD + b"\0", "3177 bytes has not 3176 bytes"),
        (sealed(b"\0" + GOOD[1:]), "magic: "),
        (
            sealed(changed(GOOD, file_layout.POLICY, "version", b"\2\0\0\0")),
            "version: 2 is not 1",
        ),
        (sealed(changed(GOOD, file_layout.POLICY, "size", b"\1\0\0\0")), "size: 1 is not 3176"),
        (changed(GOOD, file_layout.POLICY, "priority", b"\1\0\0\0"), "is not the checksum"),
        (sealed(changed(GOOD, file_layout.POLICY, "device_count", bytes(4))), "is not 1 to 16"),
        (sealed(changed(GOOD, file_layout.POLICY, "device_count", b"\x11\0\0\0")), "17 is not 1"),
        (sealed(changed(GOOD, file_layout.POLICY, "device_count", b"\2\0\0\0")), "'' is empty"),
    ],
)
def test_a_bad_policy_file_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)) as caught:
        region.decode_policy(data)
    assert str(caught.value).startswith("policy")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_changed_byte_passes(position: int, change: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= change
    with pytest.raises(WireError):
        region.decode_policy(bytes(data))


def test_flags_of_a_newer_agent_are_left_out() -> None:
    data = sealed(changed(GOOD, file_layout.POLICY, "flags", b"\x01\0\0\x80"))
    assert region.decode_policy(data).flags == region.Flag.OVERSUBSCRIBE


def slot(pid: int, *usage: bytes, **fields: int) -> bytes:
    return file_layout.SLOT.pack(pid=pid, usage=b"".join(usage), **fields)


def state(*slots: bytes, devices: int = 1, slots_used: int | None = None) -> bytes:
    return file_layout.STATE.pack(
        magic=file_layout.STATE_MAGIC,
        version=1,
        size=region.STATE_SIZE,
        nonce=5,
        boot_id=b"boot",
        policy_generation=3,
        device_count=devices,
        slots_used=len(slots) if slots_used is None else slots_used,
        recoveries=2,
        devices=file_layout.STATE_DEVICE.pack(uuid=b"GPU-7", used=70, limit=100, refused=4),
        slots=b"".join(slots),
    )


def test_a_state_tells_cards_and_processes() -> None:
    usage = file_layout.USAGE.pack(
        overhead=1, linear=2, managed=4, pool=8, vmm=16, array=32, graph=64, pending=128, peak=999
    )
    found = region.decode_state(
        state(slot(41, usage, epoch=6, host_pid=4100, start_time=77, status=1), slot(0), slot(43))
    )
    assert (found.nonce, found.boot_id, found.policy_generation, found.recoveries) == (
        5,
        "boot",
        3,
        2,
    )
    [card] = found.devices
    assert (card.uuid, card.used, card.limit, card.refused) == ("GPU-7", 70, 100, 4)
    first, second = found.slots
    assert (first.index, first.pid, first.host_pid, first.epoch) == (0, 41, 4100, 6)
    assert (second.index, second.pid) == (2, 43)
    assert first.usage[0].total == 255
    assert first.usage[0].peak == 999


def test_counts_out_of_range_are_cut() -> None:
    found = region.decode_state(state(slot(1), devices=(1 << 32) - 1, slots_used=(1 << 32) - 1))
    assert len(found.devices) == 16
    assert [slot.pid for slot in found.slots] == [1]
    assert len(found.slots[0].usage) == 16


def test_slots_beyond_the_used_ones_and_negative_pids_do_not_count() -> None:
    found = region.decode_state(state(slot(-3), slot(1, host_pid=-9), slot(2), slots_used=2))
    assert [(slot.index, slot.pid, slot.host_pid) for slot in found.slots] == [(1, 1, 0)]


def test_a_longer_state_file_is_fine() -> None:
    assert region.decode_state(state(slot(1)) + bytes(4096)) == region.decode_state(state(slot(1)))


def test_text_that_is_none_is_shown_escaped() -> None:
    data = bytearray(state())
    offset = file_layout.STATE.places["devices"][0]
    data[offset : offset + 96] = b"\xff" * 96  # not even an end
    assert region.decode_state(bytes(data)).devices[0].uuid == "\\xff" * 96


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "0 bytes is shorter than 1657904 bytes"),
        (state()[:-1], "is shorter than 1657904 bytes"),
        (bytes(region.STATE_SIZE), "state file: magic: 0 is not"),
        (changed(state(), file_layout.STATE, "version", b"\2\0\0\0"), "version: 2 is not 1"),
        (changed(state(), file_layout.STATE, "size", bytes(4)), "size: 0 is not 1657904"),
    ],
)
def test_what_is_no_state_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        region.decode_state(data)


@given(st.binary(min_size=1, max_size=4000))
def test_whatever_stands_behind_the_size_is_read(noise: bytes) -> None:
    data = state(slot(1))
    found = region.decode_state(data[:16] + noise + data[16 + len(noise) :])
    assert len(found.devices) <= 16
    assert len(found.slots) <= 1024


def used_part(data: bytes) -> bytes:
    return data[: region.state_bytes_used(data[: region.STATE_HEAD_SIZE])]


@given(st.lists(st.integers(-2, 3), max_size=8), st.integers(0, (1 << 32) - 1))
def test_the_used_part_tells_as_much_as_the_whole(pids: list[int], more: int) -> None:
    usage = file_layout.USAGE.pack(linear=U64, peak=U64)
    data = state(*(slot(pid, usage) for pid in pids), slots_used=min(len(pids) + more, U64 >> 32))
    part = used_part(data)
    assert region.decode_state(part, file_size=len(data)) == region.decode_state(data)
    if len(pids) + more < 100:
        assert len(part) < len(data) / 5


def test_numbers_as_large_as_they_can_be_are_read() -> None:
    usage = file_layout.USAGE.pack(overhead=U64, linear=U64, peak=U64)
    [found] = region.decode_state(state(slot(1, usage))).slots
    assert found.usage[0].total == 2 * U64


@pytest.mark.parametrize(
    ("data", "file_size", "rule"),
    [
        (used_part(state(slot(1)))[:-1], region.STATE_SIZE, "is shorter than 4736 bytes"),
        (used_part(state(slot(1))), region.STATE_SIZE - 1, "is shorter than 1657904 bytes"),
        (state()[: region.STATE_HEAD_SIZE - 1], region.STATE_SIZE, "is shorter than"),
    ],
)
def test_a_part_that_is_too_short_is_refused(data: bytes, file_size: int, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        region.decode_state(data, file_size=file_size)
