"""The policy file of a container: its limits on each card.

The node agent writes it, libvgpu in the container obeys it, and the monitor reads it. It is mounted
read-only and carries a checksum; a policy that the library would refuse or misread is refused when
it is written. Limits are whole MiB here, because shares are; the file has bytes.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections import Counter
from collections.abc import Mapping

import msgspec

from hami.wire import errors, file_layout
from hami.wire.file_layout import MAX_CARDS, POLICY, POLICY_CARD
from hami.wire.shares import Share

SIZE = POLICY.size

_U64 = (1 << 64) - 1
_MAX_MIB = _U64 >> 20
_MAX_PERCENT = 100
_CHECKSUM = POLICY.places["crc32"][0]
_WHAT = "policy file"
_REMEDY = "restart the agent on this node; it writes the file again"


class Flag(enum.IntFlag):
    """Bits of a policy."""

    OVERSUBSCRIBE = 1 << 0
    FORCE_CORES = 1 << 1
    IGNORE_CORES = 1 << 2


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one container."""

    #: Rises with every change: running processes take over only a higher one.
    generation: int
    #: In the order in which the container sees its cards, each card once. 0 MiB is no limit.
    shares: tuple[Share, ...]
    flags: Flag = Flag(0)
    #: 0 is high, 1 is low.
    priority: int = 0
    pod_uid: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    container: str = ""
    #: Bytes that a context costs, by card; of a missing card it is not known.
    context_bytes: Mapping[str, int] = {}


def encode(policy: Policy) -> bytes:
    """Write a policy file; raise WireError for what the library would refuse or misread."""
    what = "policy"
    _in_range(what, "generation", policy.generation, 1, _U64)
    _in_range(what, "priority", policy.priority, -(1 << 31), (1 << 31) - 1)
    if Flag.FORCE_CORES in policy.flags and Flag.IGNORE_CORES in policy.flags:
        raise errors.WireError(what, policy.flags, "both forces and ignores cores", "set one")
    _check_cards([share.card for share in policy.shares])
    packed = POLICY.pack(
        magic=file_layout.POLICY_MAGIC,
        version=file_layout.POLICY_VERSION,
        size=SIZE,
        generation=policy.generation,
        flags=int(policy.flags),
        device_count=len(policy.shares),
        priority=policy.priority,
        devices=b"".join(
            _encode_card(share, policy.context_bytes.get(share.card, 0)) for share in policy.shares
        ),
        **{
            name: _text(POLICY, f"policy {name}", name, getattr(policy, name))
            for name in ("pod_uid", "pod_namespace", "pod_name", "container")
        },
    )
    body = packed[:_CHECKSUM]
    return body + struct.pack("<I", zlib.crc32(body))


def decode(data: bytes) -> Policy:
    """Read a policy file as strictly as the library does; raise WireError if it breaks a rule.

    A limit that is no whole number of MiB, which `encode` never writes, is rounded up.
    """
    if len(data) < SIZE:
        raise errors.WireError(_WHAT, data, f"is shorter than {SIZE} bytes", _REMEDY)
    fields = POLICY.unpack(data)
    file_layout.check_header(
        _WHAT,
        fields,
        magic=file_layout.POLICY_MAGIC,
        version=file_layout.POLICY_VERSION,
        size=SIZE,
        remedy=_REMEDY,
    )
    if len(data) != SIZE:
        raise errors.WireError(_WHAT, data, f"is longer than {SIZE} bytes", _REMEDY)
    checksum = zlib.crc32(data[:_CHECKSUM])
    if fields["crc32"] != checksum:
        raise errors.WireError(
            _WHAT, fields["crc32"], f"is not the checksum of its bytes, {checksum}", _REMEDY
        )
    count = int(fields["device_count"])
    _in_range(_WHAT, "device_count", count, 1, MAX_CARDS)
    rows = list(POLICY_CARD.rows(data, POLICY.places["devices"][0], count))
    found = tuple(map(_decode_card, rows))
    _check_cards([share.card for share in found])
    return Policy(
        generation=int(fields["generation"]),
        shares=found,
        flags=Flag(int(fields["flags"]) & sum(Flag)),
        priority=int(fields["priority"]),
        pod_uid=file_layout.text(fields["pod_uid"]),
        pod_namespace=file_layout.text(fields["pod_namespace"]),
        pod_name=file_layout.text(fields["pod_name"]),
        container=file_layout.text(fields["container"]),
        context_bytes={
            share.card: int(row["context_bytes"])
            for share, row in zip(found, rows, strict=True)
            if row["context_bytes"]
        },
    )


def _encode_card(share: Share, context_bytes: int) -> bytes:
    what = f"policy card {errors.shorten(share.card)}"
    _in_range(what, "memory_mib", share.memory_mib, 0, _MAX_MIB)
    _in_range(what, "context_bytes", context_bytes, 0, _U64)
    _in_range(what, "cores", share.cores, 0, _U64)
    return POLICY_CARD.pack(
        uuid=_text(POLICY_CARD, "policy card", "uuid", share.card),
        memory_limit=share.memory_bytes,
        context_bytes=context_bytes,
        core_limit=share.core_limit or 0,
    )


def _decode_card(row: dict[str, int | bytes]) -> Share:
    card, cores = file_layout.text(row["uuid"]), int(row["core_limit"])
    _in_range(f"{_WHAT}, card {errors.shorten(card)}", "core_limit", cores, 0, _MAX_PERCENT)
    return Share.from_limits(card, memory_bytes=int(row["memory_limit"]), cores=cores)


def _check_cards(cards: list[str]) -> None:
    _in_range("policy", "number of cards", len(cards), 1, MAX_CARDS)
    for card, count in Counter(cards).items():
        if not card:
            raise errors.WireError("policy card", card, "is empty", "name the card by NVML's UUID")
        if count > 1:
            raise errors.WireError(
                "policy", card, "is there twice", "add up the container's shares of one card"
            )


def _in_range(what: str, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise errors.WireError(f"{what}: {name}", value, f"is not {low} to {high}", "correct it")


def _text(layout: file_layout.Layout, what: str, name: str, value: str) -> bytes:
    room = layout.places[name][1] - 1  # a NUL ends it
    if not value.isascii() or not (value.isprintable() or not value) or len(value) > room:
        raise errors.WireError(
            what, value, f"is not at most {room} printable ASCII characters", "correct it"
        )
    return value.encode()
