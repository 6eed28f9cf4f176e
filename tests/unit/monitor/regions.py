"""HAMi's regions, written field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hami.wire.hami_region import MAGIC, V0, V1, Version

VERSIONS = {"v1": V1, "v0": V0}


def process(
    version: Version,
    pid: int,
    *,
    used: Sequence[tuple[int, int, int, int, int]] = (),
    sm: Sequence[int] = (),
    status: int = 1,
) -> bytes:
    """Make a slot; `used` has context, module, data, offset and total of each card."""
    names = ("context", "module", "data", "offset", "total")
    return version.process.pack(
        pid=pid,
        status=status,
        used=b"".join(version.used.pack(**dict(zip(names, each, strict=True))) for each in used),
        device_util=b"".join(version.util.pack(sm=each) for each in sm),
    )


def region(
    version: Version,
    uuids: Sequence[bytes | str],
    *processes: bytes,
    limits: Sequence[int] = (),
    cores: Sequence[int] = (),
    **fields: int,
) -> bytes:
    names = [each.encode() if isinstance(each, str) else each for each in uuids]
    made: dict[str, int | bytes] = {
        "device_num": len(names),
        "proc_num": len(processes),
        "utilization_switch": 1,
        "recent_kernel": 2,
        "priority": 1,
    }
    if version is V1:
        made |= {"major_version": 1, "minor_version": 2}
    return (
        version.region.pack(
            initialized_flag=MAGIC,
            uuids=b"".join(name.ljust(96, b"\0") for name in names),
            limit=struct.pack(f"<{len(limits)}Q", *limits),
            sm_limit=struct.pack(f"<{len(cores)}Q", *cores),
            procs=b"".join(processes),
            **(made | fields),
        )
        + b"\0"
    )
