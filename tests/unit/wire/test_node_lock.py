"""The text of HAMi's node lock."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, node_marks

TIME = dt.datetime(2025, 10, 20, 3, 7, 2, tzinfo=dt.UTC)


def test_the_documented_lock_is_read_and_written_byte_for_byte() -> None:
    text = "2025-10-20T03:07:02Z,team-a,train-0"
    lock = node_marks.Lock(TIME, "team-a", "train-0")
    assert node_marks.decode_lock(text) == lock
    assert node_marks.encode_lock(lock) == text


def test_the_older_form_is_a_bare_time() -> None:
    assert node_marks.decode_lock("2025-10-20T03:07:02Z") == node_marks.Lock(TIME)
    assert node_marks.encode_lock(node_marks.Lock(TIME)) == "2025-10-20T03:07:02Z"


@pytest.mark.parametrize(
    ("namespace", "name", "want"),
    [
        ("team-a", "train-0", True),
        ("team-a", "train-1", False),
        ("team-b", "train-0", False),
        ("train-0", "team-a", False),
        ("", "", False),
    ],
)
def test_a_lock_is_held_by_its_pod_alone(namespace: str, name: str, *, want: bool) -> None:
    assert node_marks.Lock(TIME, "team-a", "train-0").held_by(namespace, name) is want


def test_a_lock_of_the_older_form_has_no_owner() -> None:
    assert not node_marks.decode_lock("2025-10-20T03:07:02Z").held_by("", "")


TIMES = {
    "UTC": ("2025-10-20T03:07:02Z", "2025-10-20T03:07:02Z"),
    "east": ("2025-10-20T08:37:02+05:30", "2025-10-20T08:37:02+05:30"),
    "west": ("2025-10-19T23:07:02-04:00", "2025-10-19T23:07:02-04:00"),
    "zero offset": ("2025-10-20T03:07:02+00:00", "2025-10-20T03:07:02Z"),
    "milliseconds": ("2025-10-20T03:07:02.5Z", "2025-10-20T03:07:02Z"),
    "nanoseconds": ("2025-10-20T03:07:02.123456789+00:00", "2025-10-20T03:07:02Z"),
    "endless fraction": (f"2025-10-20T03:07:02.{'1' * 9999}Z", "2025-10-20T03:07:02Z"),
}


@pytest.mark.parametrize(("read", "written"), TIMES.values(), ids=TIMES)
def test_times_are_written_as_go_writes_them(read: str, written: str) -> None:
    lock = node_marks.decode_lock(read)
    assert node_marks.encode_lock(lock) == written
    assert abs(lock.time - TIME) < dt.timedelta(seconds=1)


MALFORMED = {
    "empty": "",
    "words": "locked",
    "two parts": "2025-10-20T03:07:02Z,team-a",
    "four parts": "2025-10-20T03:07:02Z,team-a,train-0,x",
    "no pod": "2025-10-20T03:07:02Z,team-a,",
    "no namespace": "2025-10-20T03:07:02Z,,train-0",
    "no owner at all": "2025-10-20T03:07:02Z,,",
    "no time": ",team-a,train-0",
    "no zone": "2025-10-20T03:07:02",
    "lower case": "2025-10-20t03:07:02z",
    "a space": "2025-10-20 03:07:02Z",
    "a date": "2025-10-20",
    "no such day": "2025-02-30T03:07:02Z",
    "year zero": "0000-01-01T00:00:00Z",
    "second 60": "2025-10-20T03:07:60Z",
    "zone of a day": "2025-10-20T03:07:02+24:00",
    "zone of 60 minutes": "2025-10-20T03:07:02+01:60",
    "unix seconds": "1705054796",
    "line break": "2025-10-20T03:07:02Z\n",
    "other digits": "٢٠٢٥-10-20T03:07:02Z",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_lock_is_an_error_with_a_remedy(text: str) -> None:
    with pytest.raises(errors.WireError, match=r"^node lock: .*mutex\.lock"):
        node_marks.decode_lock(text)


UNWRITABLE = {
    "naive time": node_marks.Lock(TIME.replace(tzinfo=None), "ns", "pod"),
    "comma in the name": node_marks.Lock(TIME, "ns", "po,d"),
    "comma in the namespace": node_marks.Lock(TIME, "n,s", "pod"),
    "no name": node_marks.Lock(TIME, "ns", ""),
    "no namespace": node_marks.Lock(TIME, "", "pod"),
}


@pytest.mark.parametrize("lock", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_lock_that_could_not_be_read_back_is_not_written(lock: node_marks.Lock) -> None:
    with pytest.raises(errors.WireError):
        node_marks.encode_lock(lock)


_ZONES = st.integers(-23 * 60, 23 * 60).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
_NAMES = st.text("abc-.019", min_size=1, max_size=8)


@settings(deadline=None)
@given(st.datetimes(timezones=_ZONES), st.tuples(_NAMES, _NAMES) | st.just(("", "")))
def test_any_lock_survives(time: dt.datetime, owner: tuple[str, str]) -> None:
    lock = node_marks.Lock(time.replace(microsecond=0), *owner)
    read = node_marks.decode_lock(node_marks.encode_lock(lock))
    assert read == lock
    assert read.time.utcoffset() == lock.time.utcoffset()


LOCK = "2025-10-20T03:07:02Z,team-a,train-0"


@pytest.mark.parametrize(
    ("value", "lock", "want"),
    [
        (node_marks.encode_owner("u-0", LOCK), LOCK, "u-0"),
        (node_marks.encode_owner("u-0", LOCK), LOCK.replace("02Z", "03Z"), ""),
        (node_marks.encode_owner("u-0", LOCK), "", ""),
        ("", LOCK, ""),
        ("u-0", LOCK, ""),
        ("u-0,", "", ""),
    ],
)
def test_an_owner_counts_for_the_lock_that_it_was_written_with(
    value: str, lock: str, want: str
) -> None:
    assert node_marks.owner_uid(value, lock) == want
