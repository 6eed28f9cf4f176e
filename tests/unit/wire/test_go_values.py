"""Values that Go defines read as Go reads them."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, text_values


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_writes_true_in_six_ways(text: str) -> None:
    assert text_values.parse_bool(text, what="numa-bind") is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_go_writes_false_in_six_ways(text: str) -> None:
    assert text_values.parse_bool(text, what="numa-bind") is False


@pytest.mark.parametrize("text", ["", "yes", "tRUE", " true", "true\n", "2", "on"])
def test_other_words_are_no_boolean(text: str) -> None:
    with pytest.raises(errors.WireError, match=r"^numa-bind: .* write true or false$"):
        text_values.parse_bool(text, what="numa-bind")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
    ],
)
def test_integers_of_32_bits_are_read(text: str, want: int) -> None:
    assert text_values.parse_int32(text, what="x") == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1.0",
        "1e3",
        " 1",
        "1\n",
        "0x1",
        "1_0",
        "٣",
        "2147483648",
        "-2147483649",
        "9" * 5000,
    ],
)
def test_other_text_is_no_integer_of_32_bits(text: str) -> None:
    with pytest.raises(errors.WireError):
        text_values.parse_int32(text, what="x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("5m", 300),
        ("28s", 28),
        ("1h30m", 5400),
        ("100ms", 0.1),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("-1m", -60),
        ("+1m", 60),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("1ns", 1e-9),
        ("1m1m", 120),
        ("2562047h47m16.854775807s", (2**63 - 1) / 1e9),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert text_values.parse_duration(text, what="timeout") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        "5",
        "m",
        ".s",
        "5 m",
        "5m ",
        "5d",
        "1h-5m",
        "--5m",
        "9223372037s",
        "3000000h",
        "٣s",
    ],
)
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(errors.WireError, match=r"^timeout: .*5m or 1h30m$"):
        text_values.parse_duration(text, what="timeout")


@pytest.mark.parametrize("text", ["1" * 1_000_000 + "s", "0s" * 500_000, "0." + "1" * 1_000_000])
@pytest.mark.timeout(10)
def test_endless_durations_are_refused_and_not_computed(text: str) -> None:
    with pytest.raises(errors.WireError):
        text_values.parse_duration(text, what="timeout")


@settings(deadline=None)
@given(st.timedeltas(dt.timedelta(0), dt.timedelta(days=30000)))
def test_any_duration_survives_its_parts(span: dt.timedelta) -> None:
    hours, rest = divmod(span, dt.timedelta(hours=1))
    minutes, rest = divmod(rest, dt.timedelta(minutes=1))
    text = f"{hours}h{minutes}m{rest // dt.timedelta(microseconds=1)}us"
    assert text_values.parse_duration(text, what="x") == pytest.approx(span.total_seconds())
