"""Policy files: read as they were written, and refused if they break a rule."""

from __future__ import annotations

import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.wire import file_layout, policy_file
from hami.wire.errors import WireError
from hami.wire.policy_file import Flag, Policy
from hami.wire.shares import Share

U64 = (1 << 64) - 1


def share(card: str = "GPU-7", *, memory_mib: int = 4096, cores: int = 0) -> Share:
    return Share(card=card, vendor="NVIDIA", memory_mib=memory_mib, cores=cores)


def policy(*shares: Share, **fields: int | str | Flag | dict[str, int]) -> Policy:
    return Policy(**{"generation": 1, "shares": shares or (share(),), **fields})  # type: ignore[arg-type]


def changed(data: bytes, layout: file_layout.Layout, field: str, value: bytes) -> bytes:
    offset, size = layout.places[field]
    assert len(value) == size
    return data[:offset] + value + data[offset + size :]


def sealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


CARDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=95)
SHARES = st.lists(
    st.builds(share, CARDS, memory_mib=st.integers(0, U64 >> 20), cores=st.integers(0, 99)),
    min_size=1,
    max_size=16,
    unique_by=lambda share: share.card,
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    shares = draw(SHARES)
    return Policy(
        generation=draw(st.integers(1, U64)),
        shares=tuple(shares),
        flags=draw(st.sampled_from([Flag(bits) for bits in (0, 1, 2, 3, 4, 5)])),
        priority=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        pod_uid="0d3c1f8e-6c3a-4a62-9d4c-0123456789ab",
        pod_namespace="n" * 63,
        pod_name="p" * 253,
        container="c" * 63,
        context_bytes={each.card: draw(st.integers(1, U64)) for each in shares[::2]},
    )


@given(policies())
def test_a_policy_is_read_as_it_was_written(wanted: Policy) -> None:
    data = policy_file.encode(wanted)
    assert len(data) == policy_file.SIZE
    assert policy_file.decode(data) == wanted


def test_the_file_is_what_the_library_expects() -> None:
    data = policy_file.encode(
        policy(share(cores=30), flags=Flag.OVERSUBSCRIBE, context_bytes={"GPU-7": 9})
    )
    assert data[:8] == b"AMIPOLY1"
    assert struct.unpack_from("<IIQII", data, 8) == (1, len(data), 1, 1, 1)
    assert data[488:584] == b"GPU-7".ljust(96, b"\0")
    assert struct.unpack_from("<QQI", data, 584) == (4 << 30, 9, 30)
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (policy(generation=0), "generation: 0 is not 1 to"),
        (policy(generation=U64 + 1), "generation: "),
        (policy(priority=1 << 31), "priority: "),
        (policy(*(share(str(n)) for n in range(17))), "number of cards: 17 is not 1 to 16"),
        (Policy(generation=1, shares=()), "number of cards: 0 is not 1 to 16"),
        (policy(share("")), "'' is empty; name the card by NVML's UUID"),
        (policy(share("GPU-é")), "is not at most 95 printable ASCII characters"),
        (policy(share("G\n")), "is not at most 95 printable ASCII characters"),
        (policy(share("G" * 96)), "is not at most 95 printable ASCII characters"),
        (policy(share(), share()), "'GPU-7' is there twice"),
        (policy(share(memory_mib=-1)), "memory_mib: -1 is not 0 to"),
        (policy(context_bytes={"GPU-7": U64 + 1}), "context_bytes: "),
        (policy(share(cores=-1)), "cores: -1 is not 0 to"),
        (policy(pod_name="p" * 256), "policy pod_name: "),
        (
            policy(flags=Flag.FORCE_CORES | Flag.IGNORE_CORES),
            "both forces and ignores cores; set one",
        ),
    ],
)
def test_a_policy_that_cannot_hold_is_not_written(wrong: Policy, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)):
        policy_file.encode(wrong)


@pytest.mark.parametrize(("cores", "written"), [(0, 0), (1, 1), (99, 99), (100, 0), (150, 0)])
def test_no_core_limit_is_written_as_zero(cores: int, written: int) -> None:
    data = policy_file.encode(policy(share(cores=cores)))
    assert struct.unpack_from("<I", data, 600) == (written,)
    assert policy_file.decode(data).shares == (share(cores=written),)


GOOD = policy_file.encode(policy())


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "0 bytes is shorter than 3176 bytes"),
        (GOOD[:-1], "3175 bytes is shorter than 3176 bytes"),
        (GOOD + b"\0", "3177 bytes is longer than 3176 bytes"),
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
        (sealed(GOOD[:600] + b"\x65" + GOOD[601:]), "core_limit: 101 is not 0 to 100"),
    ],
)
def test_a_bad_policy_file_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=re.escape(rule)) as caught:
        policy_file.decode(data)
    assert str(caught.value).startswith("policy")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_no_changed_byte_passes(position: int, change: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= change
    with pytest.raises(WireError):
        policy_file.decode(bytes(data))


def test_a_limit_that_is_no_whole_mib_is_rounded_up() -> None:
    for limit, mib in ((1, 1), ((1 << 20) + 1, 2), (U64, 1 << 44), (0, 0)):
        data = sealed(GOOD[:584] + struct.pack("<Q", limit) + GOOD[592:])
        assert policy_file.decode(data).shares == (share(memory_mib=mib),)


def test_flags_of_a_newer_agent_are_left_out() -> None:
    data = sealed(changed(GOOD, file_layout.POLICY, "flags", b"\x01\0\0\x80"))
    assert policy_file.decode(data).flags == Flag.OVERSUBSCRIBE
