"""The text that a signature covers: a grant, or an order to resize one.

Form `v3` signs a list of texts, each with its length in bytes before it, so that a signed text has
one reading. A grant is `grant`, pod UID, node, MIG placements, then key and value of every vendor's
device list, sorted by key. An order is `resize`, pod UID, node, sequence number and device list.
The first word keeps one from being replayed as the other.

MIG placements are card, profile, start and size of each slice, with its container and device. The
instance that a device plugin makes from one is added to the same annotation later; it is not
covered.

An order is written `2;<sequence number>;<device list>`. The agent keeps the highest number that it
has applied, so an older order is never applied again. Orders of form `v1` are a device list alone.
They have the number 0: they count only until the first numbered one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.wire import annotation_keys, errors, mig, objects, signature, text_values

V1, V3 = "v1", "v3"
#: The newest first.
FORMS = (V3, V1)

_ORDER = "2"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's device lists on its node."""

    uid: str
    node: str
    #: By annotation key; vendors that gave it nothing are absent.
    devices: Mapping[str, str]
    #: See `placements`.
    placements: str = ""

    def text_v1(self) -> str | None:
        """Return what form v1 signs after UID and node: NVIDIA's device list.

        None: it has none, or has cards of another vendor beside, which form v1 does not cover.
        """
        found = self.devices.get(annotation_keys.SIGNED_DEVICES)
        return found if len(self.devices) == 1 else None

    def text(self) -> bytes:
        """Return what form v3 signs; WireError: not valid text."""
        lists = [part for item in sorted(self.devices.items()) for part in item]
        return _joined("grant", self.uid, self.node, self.placements, *lists)


class Resize(msgspec.Struct, frozen=True, kw_only=True):
    """An order to change the shares of a running pod."""

    uid: str
    node: str
    devices: str
    #: 0: an order of form v1, which has no number.
    seq: int = 0

    def text_v1(self) -> str | None:
        return None if self.seq else signature.resize(self.devices)

    def text(self) -> bytes:
        if not self.seq:
            raise errors.WireError("resize order", self.devices, "has no sequence number")
        return _joined("resize", self.uid, self.node, str(self.seq), self.devices)


Signed = Grant | Resize


def of_pod(pod: objects.Pod, node: str, keys: Iterable[str]) -> Grant:
    """Return a pod's grant as its annotations have it; `keys`: every vendor's device list."""
    found = {key: value for key in keys if (value := pod.annotation(key))}
    allocations = pod.annotation(annotation_keys.MIG_ALLOCATIONS)
    return Grant(uid=pod.uid, node=node, devices=found, placements=placements(allocations))


def placements(allocations: str) -> str:
    """Return the MIG placements in the annotation as one text; what is unreadable, as it is."""
    if not allocations:
        return ""
    try:
        found = mig.decode_allocations(allocations)
        bare = (
            msgspec.structs.replace(each, mig_uuid=None, gpu_instance=None, compute_instance=None)
            for each in found
        )
        return mig.encode_allocations(
            sorted(bare, key=lambda each: (each.container_index, each.device_index))
        )
    except errors.WireError:
        return allocations


def encode_order(seq: int, devices: str) -> str:
    """Write an order: the value of `hami.io/vgpu-resize`."""
    return f"{_ORDER};{seq};{devices}"


def decode_order(value: str, *, what: str) -> tuple[int, str]:
    """Return number and device list of an order; 0: it has none, and is of form v1."""
    form, _, rest = value.partition(";")
    if form != _ORDER:
        return 0, value
    number, _, devices = rest.partition(";")
    if not (number.isascii() and number.isdigit()) or number.startswith("0") or len(number) > 18:  # noqa: PLR2004 - below 2**63
        rule = "is not 2;<sequence number>;<device list>, with a number from 1 on"
        raise errors.WireError(what, value, rule)
    return int(number), devices


def encode_forms(forms: Iterable[tuple[str, str]]) -> str:
    """Write the (form, key id) pairs that an agent can verify, for its Node."""
    return ",".join(f"{form}:{key}" for form, key in forms)


def decode_forms(value: str) -> frozenset[tuple[str, str]]:
    """Read what a Node's agent can verify; empty: it does not say, as agents before v3."""
    pairs = (part.partition(":") for part in text_values.comma_list(value))
    return frozenset((form, key) for form, _, key in pairs)


def _joined(*parts: str) -> bytes:
    for what, part in (("pod UID", parts[1]), ("node name", parts[2])):
        if not part:
            raise errors.WireError(what, part, "is empty: nothing to grant to")
    text = "".join([f"{len(part)}:{part}," for part in parts])
    if text.isascii():  # as nearly every one is: a character is a byte
        return text.encode()
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError as error:
        raise errors.WireError("grant", parts, f"is not valid text: {error.reason}") from error
    return b"".join(b"%d:%b," % (len(part), part) for part in encoded)
