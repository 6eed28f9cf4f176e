"""The handshake: requests, and answers that come, are late or are missing."""

from __future__ import annotations

import datetime as dt

import pytest

from hami.wire import node_marks

NOW = dt.datetime(2025, 10, 20, 3, 7, 2)  # noqa: DTZ001  handshakes carry local time

CASES: dict[str, tuple[str | None, bool]] = {
    "never asked": (None, True),
    "empty": ("", True),
    "answered": ("Reported_2025-10-20 03:06:00", True),
    "deleted, in old plugins": ("Deleted_2025-10-20 03:06:00", True),
    "any other text": ("hello", True),
    "other case": ("requesting_2020-01-01 00:00:00", True),
    "asked just now": ("Requesting_2025-10-20 03:07:02", False),
    "asked long ago": ("Requesting_2020-01-01 00:00:00", False),
    "asked in the future": ("Requesting_2999-01-01 00:00:00", False),
    "a fraction, as Go accepts": ("Requesting_2020-01-01 00:00:00.5", False),
    "a second part": ("Requesting_2020-01-01 00:00:00_x", False),
    "no time": ("Requesting", False),
    "empty time": ("Requesting_", False),
    "unreadable time": ("Requesting_yesterday", False),
}


@pytest.mark.parametrize(("value", "answered"), CASES.values(), ids=CASES)
def test_a_plugin_has_answered_when_our_request_was_overwritten(
    value: str | None,
    answered: bool,
) -> None:
    assert node_marks.handshake_answered(value) is answered


def test_a_request_carries_the_local_time_in_whole_seconds() -> None:
    assert (
        node_marks.handshake_request(NOW.replace(microsecond=999_999))
        == "Requesting_2025-10-20 03:07:02"
    )
