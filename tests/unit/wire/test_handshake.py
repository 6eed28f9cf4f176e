"""The handshake: requests, and answers that come, are late or are missing."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import node_marks

NOW = dt.datetime(2025, 10, 20, 3, 7, 2)  # noqa: DTZ001  handshakes carry local time

ALIVE = node_marks.PluginHealth(healthy=True, refresh=False)
SPOKEN = node_marks.PluginHealth(healthy=True, refresh=True)
DEAD = node_marks.PluginHealth(healthy=False, refresh=False)

CASES: dict[str, tuple[str | None, int, node_marks.PluginHealth]] = {
    "never asked": (None, 0, SPOKEN),
    "empty": ("", 0, SPOKEN),
    "answered": ("Reported_2025-10-20 03:06:00", 0, SPOKEN),
    "deleted, in old plugins": ("Deleted_2025-10-20 03:06:00", 0, SPOKEN),
    "any other text": ("hello", 0, SPOKEN),
    "other case": ("requesting_2020-01-01 00:00:00", 0, SPOKEN),
    "asked just now": ("Requesting_2025-10-20 03:07:02", 0, ALIVE),
    "asked 59 s ago": ("Requesting_2025-10-20 03:06:03", 0, ALIVE),
    "asked 60 s ago": ("Requesting_2025-10-20 03:06:02", 0, DEAD),
    "asked 60 s ago, kubelet has cards": ("Requesting_2025-10-20 03:06:02", 1, ALIVE),
    "asked long ago": ("Requesting_2020-01-01 00:00:00", 0, DEAD),
    "asked long ago, kubelet has cards": ("Requesting_2020-01-01 00:00:00", 10, ALIVE),
    "asked in the future": ("Requesting_2999-01-01 00:00:00", 0, ALIVE),
    "asked at the end of time": ("Requesting_9999-12-31 23:59:59", 0, ALIVE),
    "a fraction, as Go accepts": ("Requesting_2020-01-01 00:00:00.5", 0, DEAD),
    "a second part is not looked at": ("Requesting_2020-01-01 00:00:00_x", 0, DEAD),
    "no time": ("Requesting", 0, ALIVE),
    "empty time": ("Requesting_", 0, ALIVE),
    "unreadable time": ("Requesting_yesterday", 0, ALIVE),
    "no such day": ("Requesting_2025-02-30 00:00:00", 0, ALIVE),
    "no such month": ("Requesting_2020-13-01 00:00:00", 0, ALIVE),
    "other layout": ("Requesting_2020-01-01T00:00:00Z", 0, ALIVE),
    "other digits": ("Requesting_٢٠٢٠-01-01 00:00:00", 0, ALIVE),
}


@pytest.mark.parametrize(("value", "allocatable", "want"), CASES.values(), ids=CASES)
def test_a_plugin_is_judged_by_its_annotation(
    value: str | None, allocatable: int, want: node_marks.PluginHealth
) -> None:
    assert node_marks.evaluate_handshake(value, now=NOW, allocatable=allocatable) == want


def test_a_request_carries_the_local_time_in_whole_seconds() -> None:
    assert (
        node_marks.handshake_request(NOW.replace(microsecond=999_999))
        == "Requesting_2025-10-20 03:07:02"
    )


@settings(deadline=None)
@given(st.datetimes(max_value=NOW), st.integers(0, 3600))
def test_a_request_holds_for_a_minute_and_no_longer(asked: dt.datetime, seconds: int) -> None:
    asked = asked.replace(microsecond=0)
    now = asked + dt.timedelta(seconds=seconds)
    health = node_marks.evaluate_handshake(
        node_marks.handshake_request(asked), now=now, allocatable=0
    )
    assert health == (ALIVE if seconds < 60 else DEAD)
