"""One pod's record in the node's ledger: its frozen grant and its allocations.

One JSON file per pod UID on persistent disk. The agent writes it before a container may start; the
monitor reads it to map a process to its container. A record that does not decode affects its own
pod only.

Some JSON keys are older than the names used here (`rename`). They stay as they are, because files
of earlier versions are on nodes.
"""

from __future__ import annotations

import msgspec

from hami.wire import annotation_keys, codec, errors, shares
from hami.wire.objects import ContainerKind
from hami.wire.shares import PodShares, Share

VERSION = 1


class AllocationRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"allocation_id": "token", "container_index": "slot"},
):
    """One answer to kubelet's Allocate: the container, and the device ids it was given."""

    #: 32 hexadecimal digits; names the container's policy file, state file and CDI spec.
    allocation_id: str
    container: str
    #: Index among the pod's containers, init containers first.
    container_index: int
    #: kubelet's ids; their names need not be those of the granted cards.
    device_ids: tuple[str, ...] = ()
    #: True: a CDI spec carries the container's edits. False: the answer to kubelet did.
    cdi: bool = True


class ContainerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a container's spec that its share depends on.

    Kept here because a container may restart while the API server is unreachable.
    """

    name: str
    kind: ContainerKind
    #: 0 is high, 1 is low.
    priority: int = 1
    #: True: the administrator lets it run without the limiter.
    exempt: bool = False


class LedgerRecord(
    msgspec.Struct, frozen=True, kw_only=True, rename={"allocations": "tokens", "reported": "told"}
):
    """A pod's grant as it was when its first container started, and what was made from it."""

    version: int = VERSION
    uid: str
    namespace: str
    name: str
    #: The grant as it was signed: the annotation `hami.io/vgpu-devices-allocated`.
    devices: str
    mac: str = ""
    #: Every container of the pod, in the order of the grant.
    containers: tuple[ContainerRecord, ...]
    #: The last resize that was applied, in the form of `devices`; empty: none.
    resize: str = ""
    #: Generation of the policy files: rises with every change of the shares.
    generation: int = 1
    allocations: tuple[AllocationRecord, ...] = ()
    #: True once the pod's annotations say that its cards are allocated.
    reported: bool = False
    #: Unix seconds.
    created: float = 0.0
    #: What else was signed: device lists of other vendors by annotation key, MIG placements.
    others: dict[str, str] = {}
    placements: str = ""
    #: The sequence number of the last resize; 0: it had none. No older order is applied again.
    resize_seq: int = 0
    #: What a smaller resize has not released: a device list with the larger amounts; empty: all is.
    unreleased: str = ""

    @property
    def device_lists(self) -> dict[str, str]:
        """Return the device lists that were signed, by annotation key."""
        return {annotation_keys.SIGNED_DEVICES: self.devices, **self.others}

    @property
    def shares(self) -> PodShares:
        """Return the current shares of each container, in container order."""
        return shares.decode(self.resize or self.devices, what=f"grant of pod {self.uid}")

    @property
    def held(self) -> PodShares:
        """Return what the pod counts with: its processes may still hold what it had before."""
        return shares.decode(self.unreleased, what=self.uid) if self.unreleased else self.shares

    @property
    def cards(self) -> frozenset[str]:
        """Return the UUIDs of the cards of which the pod has a share; they never change."""
        return frozenset(share.card for granted in self.shares for share in granted)

    def shares_of(self, container_index: int) -> tuple[Share, ...]:
        """Return the current shares of one container; empty: it has none."""
        granted = self.shares
        return granted[container_index] if container_index < len(granted) else ()

    def allocation(self, allocation_id: str) -> AllocationRecord | None:
        return next(
            (each for each in self.allocations if each.allocation_id == allocation_id), None
        )


def encode(record: LedgerRecord) -> bytes:
    return codec.encode(record)


def decode(data: bytes, *, what: str) -> LedgerRecord:
    """Read a record; WireError names the file and what is wrong."""
    record = codec.decode(data, LedgerRecord, what=what)
    if record.version != VERSION:
        raise errors.WireError(
            f"{what}: version",
            record.version,
            f"is not {VERSION}",
            "run the version of hami that wrote it",
        )
    shares.decode(record.devices, what=f"{what}: devices")
    for field in ("resize", "unreleased"):
        if value := getattr(record, field):
            shares.decode(value, what=f"{what}: {field}")
    for allocation in record.allocations:
        if not 0 <= allocation.container_index < len(record.containers):
            raise errors.WireError(
                f"{what}: slot",
                allocation.container_index,
                f"is not the index of one of its {len(record.containers)} containers",
            )
    return record
