"""What the node's ledger knows of one pod: its grant, frozen, and a token for each container.

One JSON file per pod UID on persistent disk. The agent writes it before a container may start; the
monitor reads it to know whose a process is. A record that does not decode concerns its own pod
only.
"""

from __future__ import annotations

import msgspec

from hami.wire import codec, errors, shares
from hami.wire.objects import ContainerKind
from hami.wire.shares import PodShares, Share

VERSION = 1


class AllocationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to kubelet: a container, and what it was prepared with."""

    token: str
    container: str
    #: Position among the pod's containers, init containers first.
    slot: int
    #: kubelet's ids; their names need not be those of the granted cards.
    device_ids: tuple[str, ...] = ()
    #: Whether a CDI spec carries its edits; else kubelet's own answer does.
    cdi: bool = True


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What of a container's spec matters to its share; the spec may be gone when it restarts."""

    name: str
    kind: ContainerKind
    #: 0 is high, 1 is low.
    priority: int = 1
    #: Whether the administrator lets it run without the limiter.
    exempt: bool = False


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    uid: str
    namespace: str
    name: str
    #: The grant as it was signed: `hami.io/vgpu-devices-allocated`.
    devices: str
    mac: str = ""
    #: Every container of the pod, in the order of the slots.
    containers: tuple[ContainerRecord, ...]
    #: The last change of the share that was taken over; empty: none.
    resize: str = ""
    #: Of the policy files: rises with every change of the share.
    generation: int = 1
    tokens: tuple[AllocationRecord, ...] = ()
    #: Whether the pod's annotations say that its cards are allocated.
    told: bool = False
    #: Unix seconds.
    created: float = 0.0

    @property
    def slots(self) -> PodShares:
        """What each container has now."""
        return shares.decode(self.resize or self.devices, what=f"grant of pod {self.uid}")

    def grants_of(self, slot: int) -> tuple[Share, ...]:
        slots = self.slots
        return slots[slot] if slot < len(slots) else ()

    def token(self, token: str) -> AllocationRecord | None:
        return next((each for each in self.tokens if each.token == token), None)


def encode(record: LedgerRecord) -> bytes:
    return codec.encode(record)


def decode(data: bytes, *, what: str) -> LedgerRecord:
    """Read a record; WireError names the file and what is wrong."""
    record = codec.decode(data, LedgerRecord, what=what)
    if record.version != VERSION:
        raise errors.WireError(
            f"{what}: version", record.version, f"is not {VERSION}", "run the hami that wrote it"
        )
    shares.decode(record.devices, what=f"{what}: devices")
    if record.resize:
        shares.decode(record.resize, what=f"{what}: resize")
    for token in record.tokens:
        if not 0 <= token.slot < len(record.containers):
            raise errors.WireError(
                f"{what}: slot", token.slot, f"is none of its {len(record.containers)} containers"
            )
    return record
