"""Records of the node's ledger, with as little as a test has to say."""

from __future__ import annotations

from collections.abc import Sequence

from hami.node.ledger_record import AllocationRecord, ContainerRecord, LedgerRecord
from hami.wire import shares
from hami.wire.objects import ContainerKind
from hami.wire.shares import Share

Part = tuple[str, int, int]
"""Card, MiB, percent."""
APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def devices(slots: Sequence[Sequence[Part]]) -> str:
    return shares.encode(
        [
            Share(card=uuid, vendor="NVIDIA", memory_mib=memory, cores=cores)
            for uuid, memory, cores in slot
        ]
        for slot in slots
    )


def record(
    uid: str,
    *containers: tuple[ContainerKind, Sequence[Part]],
    allocations: Sequence[AllocationRecord] = (),
    **more: object,
) -> LedgerRecord:
    return LedgerRecord(
        uid=uid,
        namespace="team",
        name=f"pod-{uid}",
        devices=devices([parts for _, parts in containers]),
        containers=tuple(
            ContainerRecord(name=f"c{at}", kind=kind) for at, (kind, _) in enumerate(containers)
        ),
        allocations=tuple(allocations),
        **more,  # type: ignore[arg-type]
    )


def allocation(letter: str, container_index: int = 0, *device_ids: str) -> AllocationRecord:
    return AllocationRecord(
        allocation_id=letter * 32,
        container=f"c{container_index}",
        container_index=container_index,
        device_ids=device_ids,
    )
