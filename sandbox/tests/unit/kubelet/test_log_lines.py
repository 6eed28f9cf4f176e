"""The part of a log file that is shown."""

from __future__ import annotations

import pytest

from hami_sandbox.kubelet import log_server
from hami_sandbox.kubelet.log_server import Wanted

LINES = [
    b"2026-01-01T00:00:01.000000001Z stdout F one",
    b"2026-01-01T00:00:02.000000001Z stderr P tw",
    b"2026-01-01T00:00:02.000000002Z stderr F o",
    b"torn",
    b"2026-01-01T00:00:03.000000001Z stdout F  three ",
]
SECOND = 1767225602.0


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Wanted(), b"one\ntwo\n three \n"),
        (Wanted(tail=1), b" three \n"),
        (Wanted(tail=0), b""),
        (Wanted(since=SECOND), b"two\n three \n"),
        (Wanted(stream="stdout"), b"one\n three \n"),
        (Wanted(timestamps=True, tail=1), b"2026-01-01T00:00:03.000000001Z  three \n"),
    ],
)
def test_what_is_asked_for(wanted: Wanted, text: bytes) -> None:
    assert b"".join(log_server.last(LINES, wanted)) == text
