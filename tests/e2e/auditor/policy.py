"""The auditor's own reader of hami's policy file (native/libvgpu/abi.h).

It says for whom a token's folder is and what that container may have. The library obeys it, so a
file that the library would refuse is malformed here as well: its container has no card. So is one
that names no owner, or limits to no whole MiB: hami's agent writes none like it.

Limits of MIG slices are not judged yet, only whose the file is.
"""

from __future__ import annotations

import re
import struct
import zlib

from tests.e2e.auditor.claims import Claim
from tests.e2e.auditor.malformed import MalformedError

MAGIC = b"AMIPOLY1"
VERSION = 1
MOST_CARDS = 16

_HEAD = struct.Struct("<8s I I Q I I i I 64s 64s 256s 64s")
_CARD = struct.Struct("<96s Q Q I I 40s")
_TAIL = struct.Struct("<120s I I")
_CHECKSUM = struct.Struct("<I")
SIZE = _HEAD.size + MOST_CARDS * _CARD.size + _TAIL.size

_TEXT = re.compile(rb"([!-~]*)\0+")
_MIB = 2**20
_WHOLE = 100


def read(content: bytes) -> Claim:
    """Check a policy file as the library does, and return what it says."""
    if len(content) != SIZE:
        raise MalformedError(f"has {len(content)} bytes, not {SIZE}")
    magic, version, size, generation, _flags, count, _priority, _, *texts = _HEAD.unpack_from(
        content
    )
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        raise MalformedError(
            f"begins with {magic!r}, version {version}, size {size}, "
            f"not {MAGIC!r}, {VERSION}, {SIZE}"
        )
    (said,) = _CHECKSUM.unpack(content[-_CHECKSUM.size :])
    real = zlib.crc32(content[: -_CHECKSUM.size])
    if said != real:
        raise MalformedError(f"its checksum is {said:#010x}, that of its bytes {real:#010x}")
    if generation < 1:
        raise MalformedError("its generation is 0; the first is 1")
    if not 1 <= count <= MOST_CARDS:
        raise MalformedError(f"it gives {count} cards, not 1 to {MOST_CARDS}")
    uid, namespace, name, container = (_text(one, "an owner") for one in texts)
    if not (uid and namespace and name and container):
        raise MalformedError(
            f"it is for UID {uid!r}, pod {namespace!r}/{name!r}, container {container!r}: "
            "all four must be said"
        )
    owner = Claim(uid=uid, pod=f"{namespace}/{name}", container=container)
    return _with_cards(owner, content, count)


def _with_cards(owner: Claim, content: bytes, count: int) -> Claim:
    cards, memory, cores = [], [], []
    for index in range(count):
        uuid, limit, _context, percent, *_ = _CARD.unpack_from(
            content, _HEAD.size + index * _CARD.size
        )
        card = _text(uuid, f"card {index}")
        if not card or card in cards:
            raise MalformedError(f"card {index} is {card!r}: not named, or named twice")
        if limit % _MIB:
            raise MalformedError(f"card {card} is limited to {limit} bytes, which is no whole MiB")
        if percent > _WHOLE:
            raise MalformedError(f"card {card} is limited to {percent} % of its cores")
        cards.append(card)
        memory.append(limit // _MIB)
        cores.append(percent % _WHOLE)
    if any(card.startswith("MIG-") for card in cards):
        return owner
    return Claim(
        uid=owner.uid,
        pod=owner.pod,
        container=owner.container,
        cards=tuple(cards),
        memory=tuple(memory),
        card_cores=tuple(cores),
    )


def _text(field: bytes, what: str) -> str:
    found = _TEXT.fullmatch(field)
    if found is None:
        raise MalformedError(f"{what} is {field!r}, no printable ASCII that ends in NULs")
    return found[1].decode()
