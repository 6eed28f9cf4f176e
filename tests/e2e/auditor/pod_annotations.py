"""The auditor's own reading of what stands on pods.

The formats are on the pages docs/designs/006-hami-protocol.md and docs/designs/002-grants.md.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import re
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.e2e.auditor import malformed
from tests.e2e.auditor.malformed import MalformedError

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
NODE = "hami.io/vgpu-node"
TIMES = ("hami.io/vgpu-time", "hami.io/bind-time")
PHASE = "hami.io/bind-phase"
MAC = "hami.io/grant-mac"
MIG = "hami.io/vgpu-mig-allocations"

PHASES = frozenset({"allocating", "success", "failed"})

_LISTS = re.compile(r"hami\.io/(.+-devices-(allocated|to-allocate)|kunlun-allocated)")
_MAC = re.compile(
    r"v1:([0-9a-f]{8}):[A-Za-z0-9_-]{43}"
    r"|v3:([0-9a-f]{8}):[A-Za-z0-9_-]{86}:[A-Za-z0-9_-]{43}"
)
_FIELDS = 4
_WORD = "NVIDIA"
_MOST_CORES = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """A part of a card: memory in MiB, cores in percent, 0 for no limit."""

    card: str
    memory: int
    cores: int


Slot = tuple[Grant, ...]
Slots = tuple[Slot, ...]
"""By container: init containers first, an empty slot for one without cards."""


def is_device_list(key: str) -> bool:
    """Return whether the key is a device list, of whatever vendor."""
    return _LISTS.fullmatch(key) is not None


def device_list(key: str, value: str) -> Slots:
    """Read a device list. NVIDIA's must be exactly what we write; others' may have more fields."""
    if not value:
        return ()
    if not value.endswith(";"):
        raise MalformedError("does not end with ';' as each container's slot does")
    strict = key in (ALLOCATED, TO_ALLOCATE)
    return tuple(_slot(text, strict=strict) for text in value[:-1].split(";"))


def _slot(text: str, *, strict: bool) -> Slot:
    if not text:
        return ()
    if not text.endswith(":"):
        raise MalformedError(f"slot {text!r} does not end with ':' as each card's record does")
    return tuple(_grant(record, strict=strict) for record in text[:-1].split(":"))


def _grant(record: str, *, strict: bool) -> Grant:
    fields = record.split(",")
    if len(fields) < _FIELDS or (strict and len(fields) > _FIELDS):
        raise MalformedError(f"record {record!r} has {len(fields)} fields, not {_FIELDS}")
    card, word, memory, cores = fields[:_FIELDS]
    if not card:
        raise MalformedError(f"record {record!r} names no card")
    if strict and word != _WORD:
        raise MalformedError(f"record {record!r} is of type {word!r}, not {_WORD}")
    most = _MOST_CORES if strict else malformed.INT32_MAX
    return Grant(card, malformed.decimal(memory, "memory"), malformed.decimal(cores, "cores", most))


def unix_seconds(value: str) -> int:
    return malformed.decimal(value, "time", highest=9_999_999_999)


def mac_key_id(value: str) -> str:
    """Judge the shape of a grant's code, v1 or v3; return the key's id."""
    found = _MAC.fullmatch(value)
    if found is None:
        raise MalformedError(
            "is neither v1:<8 hex digits>:<43 characters of base64url> nor "
            "v3:<8 hex digits>:<86 characters>:<43 characters>"
        )
    return found[1] or found[2]


def mac(key: bytes, *, uid: str, node: str, devices: str) -> str:
    """Return the code that a grant must carry, as docs/designs/002-grants.md says it."""
    text = f"v1\n{uid}\n{node}\n{devices}".encode(errors="surrogatepass")
    code = _base64(hmac.new(key, text, hashlib.sha256).digest())
    return f"v1:{hashlib.sha256(key).hexdigest()[:8]}:{code}"


def mac_v3(secret: bytes, *, uid: str, node: str, devices: str, placements: str = "") -> str:
    """Return the code of form v3, from the signing key that only schedulers have."""
    parts = ("grant", uid, node, placements, ALLOCATED, devices)
    encoded = [part.encode(errors="surrogatepass") for part in parts]
    text = b"".join(str(len(part)).encode() + b":" + part + b"," for part in encoded)
    seed, key = (
        hmac.new(secret, f"hami grant v3 {use}".encode(), hashlib.sha256).digest()
        for use in ("ed25519", "hmac")
    )
    private = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes_raw()
    head = f"v3:{hashlib.sha256(public).hexdigest()[:8]}:{_base64(private.sign(text))}"
    check = hmac.new(key, head.encode() + b"\n" + text, hashlib.sha256).digest()
    return f"{head}:{_base64(check)}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def mac_holds(keys: Iterable[bytes], value: str, *, uid: str, node: str, devices: str) -> bool:
    """Judge a code by the keys of a cluster: those of v1, and signing keys."""
    form = mac_v3 if value.startswith("v3:") else mac
    return any(value == form(key, uid=uid, node=node, devices=devices) for key in keys)


def mig_allocations(value: str) -> None:
    """Judge which MIG slices a pod was given, by shape only: slices are not counted yet."""
    seen: set[tuple[int, int]] = set()
    for item in malformed.objects(malformed.parse_json(value)):
        place = (malformed.integer(item, "containerIndex"), malformed.integer(item, "deviceIndex"))
        if place in seen:
            raise MalformedError(f"has container {place[0]}, device {place[1]} twice")
        seen.add(place)
        for name in ("gpuUUID", "profile"):
            if not malformed.string(item, name):
                raise MalformedError(f"{name} of {place} is missing")
        placement = item.get("placement")
        if not isinstance(placement, dict):
            raise MalformedError(f"placement {malformed.shown(placement)} is no object")
        malformed.integer(placement, "start")
        malformed.integer(placement, "size", lowest=1)
        runtime = {"migUUID", "gpuInstanceID", "computeInstanceID"} & set(item)
        if len(runtime) not in (0, 3):
            raise MalformedError(f"of {place} has only {sorted(runtime)} of its runtime identity")
