"""A ledger record's bytes: files of earlier versions are on nodes."""

from __future__ import annotations

from hami.node import ledger_record
from hami.node.ledger_record import AllocationRecord, ContainerRecord, LedgerRecord
from hami.wire.objects import ContainerKind

ALLOCATION_ID = "a" * 32
RECORD = LedgerRecord(
    uid="uid-1",
    namespace="team",
    name="p",
    devices="GPU-1,NVIDIA,1000,30:;",
    mac="m",
    containers=(ContainerRecord(name="main", kind=ContainerKind.APP, priority=0, exempt=True),),
    resize="GPU-1,NVIDIA,2000,30:;",
    generation=2,
    allocations=(
        AllocationRecord(
            allocation_id=ALLOCATION_ID,
            container="main",
            container_index=0,
            device_ids=("GPU-1-0",),
            cdi=False,
        ),
    ),
    reported=True,
    created=1.5,
)
#: Written by the version before allocations, indexes and reports had their names in the code.
WRITTEN = (
    b'{"version":1,"uid":"uid-1","namespace":"team","name":"p","devices":"GPU-1,NVIDIA,1000,30:;",'
    b'"mac":"m","containers":[{"name":"main","kind":2,"priority":0,"exempt":true}],'
    b'"resize":"GPU-1,NVIDIA,2000,30:;","generation":2,'
    b'"tokens":[{"token":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","container":"main","slot":0,'
    b'"device_ids":["GPU-1-0"],"cdi":false}],"told":true,"created":1.5}'
)


def test_a_record_is_written_with_the_same_bytes() -> None:
    newer = b',"others":{},"placements":"","resize_seq":0,"unreleased":""}'
    assert ledger_record.encode(RECORD) == WRITTEN.removesuffix(b"}") + newer


def test_a_record_of_an_earlier_version_is_read() -> None:
    assert ledger_record.decode(WRITTEN, what="record") == RECORD
