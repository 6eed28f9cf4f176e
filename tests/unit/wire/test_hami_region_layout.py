"""Offsets of HAMi's region are those that its own monitor reads."""

from __future__ import annotations

import pytest

from hami.wire import hami_region as layouts
from hami.wire.file_layout import Layout


@pytest.mark.parametrize(
    ("layout", "size", "offsets"),
    [
        (
            layouts.REGION_V1,
            2008952,
            {
                "major_version": 4,
                "owner_pid": 16,
                "sem": 24,
                "device_num": 56,
                "uuids": 64,
                "limit": 1600,
                "sm_limit": 1728,
                "procs": 1856,
                "proc_num": 2008896,
                "utilization_switch": 2008900,
                "recent_kernel": 2008904,
                "priority": 2008908,
                "last_kernel_time": 2008912,
            },
        ),
        (
            layouts.PROCESS_V1,
            1960,
            {"used": 8, "monitorused": 1032, "device_util": 1160, "status": 1928, "seqlock": 1936},
        ),
        (
            layouts.REGION_V0,
            1197896,
            {
                "device_num": 48,
                "uuids": 56,
                "limit": 1592,
                "sm_limit": 1720,
                "procs": 1848,
                "proc_num": 1197880,
                "utilization_switch": 1197884,
                "recent_kernel": 1197888,
                "priority": 1197892,
            },
        ),
        (
            layouts.PROCESS_V0,
            1168,
            {"used": 8, "monitorused": 648, "device_util": 776, "status": 1160},
        ),
    ],
)
def test_fields_lie_where_hami_has_them(layout: Layout, size: int, offsets: dict[str, int]) -> None:
    assert layout.size == size
    assert {name: layout.places[name][0] for name in offsets} == offsets
