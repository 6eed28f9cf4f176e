"""Times of the API: written in UTC from any zone, and read back unchanged."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox import api_objects

HOURS = st.integers(-12, 14)


@given(st.integers(0, 4_000_000_000), HOURS)
def test_a_time_is_the_same_in_every_zone(seconds: int, hours: int) -> None:
    zone = dt.timezone(dt.timedelta(hours=hours))
    text = api_objects.stamp(dt.datetime.fromtimestamp(seconds, zone))

    assert text.endswith("Z")
    assert text == api_objects.stamp_at(seconds + 0.25)
    assert api_objects.read(text).timestamp() == seconds
