"""Kubernetes quantities are read exactly, and hostile ones cheaply."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, objects, quantity

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
    "e3": Fraction(10**3),
    "E3": Fraction(10**3),
    "e+3": Fraction(10**3),
    "e-3": Fraction(1, 10**3),
    "E-03": Fraction(1, 10**3),
}
NUMBERS = {
    "0": Fraction(0),
    "7": Fraction(7),
    "+7": Fraction(7),
    "-7": Fraction(-7),
    ".5": Fraction(1, 2),
    "5.": Fraction(5),
    "-.25": Fraction(-1, 4),
    "0016.0": Fraction(16),
    "12.345": Fraction(12345, 1000),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("number", NUMBERS)
def test_every_number_form_takes_every_suffix(number: str, suffix: str) -> None:
    assert quantity.parse(number + suffix, what="memory") == NUMBERS[number] * SUFFIXES[suffix]


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        (3, Fraction(3)),
        (-3, Fraction(-3)),
        (10**30, Fraction(10**30)),
        (0.1, Fraction(1, 10)),
        (1e22, Fraction(10**22)),
        (-2.5, Fraction(-5, 2)),
        (" 16Gi\n", Fraction(2**34)),
    ],
)
def test_json_numbers_and_padded_text_are_quantities(
    amount: objects.Amount, want: Fraction
) -> None:
    assert quantity.parse(amount, what="memory") == want


MALFORMED: dict[str, objects.Amount] = {
    "nothing": "",
    "only a sign": "-",
    "only a point": ".",
    "only a suffix": "Gi",
    "only an exponent": "e3",
    "a capital K": "1K",
    "a lower-case g": "1g",
    "a half suffix": "1i",
    "suffix and exponent": "1Gie3",
    "a fractional exponent": "1e1.5",
    "an empty signed exponent": "1e+",
    "two points": "1.2.3",
    "two signs": "--1",
    "an inner space": "1 Gi",
    "hexadecimal": "0x10",
    "an underscore": "1_000",
    "other digits": "٣",
    "a wide digit": "１",  # noqa: RUF001  a digit to Python, not to Kubernetes
    "a boolean": True,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "words": "lots",
    "a line break inside": "1\n2",
}


@pytest.mark.parametrize("amount", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_quantity_is_an_error_that_says_where(amount: objects.Amount) -> None:
    with pytest.raises(errors.WireError, match=r"^container main, memory: "):
        quantity.parse(amount, what="container main, memory")
    with pytest.raises(errors.WireError):
        quantity.exact_integer(amount, what="memory")
    with pytest.raises(errors.WireError):
        quantity.rounded_up(amount, what="memory")


HOSTILE: dict[str, objects.Amount] = {
    "a huge exponent": "1e999999999",
    "a tiny exponent": "1e-999999999",
    "an endless exponent": "1e" + "9" * 100_000,
    "a megabyte of digits": "1" * 1_000_000,
    "a megabyte of decimals": "0." + "1" * 1_000_000,
    "a megabyte of suffixes": "1" + "Gi" * 500_000,
    "more digits than int() reads": "7" * 5_000,
}


@pytest.mark.parametrize("amount", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.timeout(10)
def test_hostile_text_is_refused_and_not_computed_with_a_short_message(
    amount: objects.Amount,
) -> None:
    with pytest.raises(errors.WireError) as caught:
        quantity.exact_integer(amount, what="memory")
    assert len(str(caught.value)) < 300


def test_a_number_too_long_to_print_is_refused_by_its_size() -> None:
    with pytest.raises(errors.WireError, match="a number of 19932 bits is more than"):
        quantity.exact_integer(10**6000, what="memory")


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        ("16.0Gi", None),
        ("16.0Ki", 16384),
        ("2000m", 2),
        ("1e3", 1000),
        ("0.5k", 500),
        ("4096", 4096),
        ("4k", 4000),
        (2.0, 2),
        ("-0", 0),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("10" + "0" * 29, None),
        ("1.5", None),
        ("500m", None),
        ("-1", None),
        (-1, None),
        (1.5, None),
    ],
)
def test_an_exact_integer_is_judged_by_its_value_not_its_form(
    amount: objects.Amount, want: int | None
) -> None:
    if want is not None:
        assert quantity.exact_integer(amount, what="count") == want
    else:
        with pytest.raises(errors.WireError):
            quantity.exact_integer(amount, what="count")


def test_bounds_belong_to_the_range_and_are_named_when_passed() -> None:
    def percentage(amount: str) -> int:
        return quantity.exact_integer(
            amount, what="percentage", low=1, high=100, remedy="write 1 to 100"
        )

    assert (percentage("1"), percentage("100")) == (1, 100)
    with pytest.raises(errors.WireError, match=r"percentage: '101' .* 100; write 1 to 100$"):
        percentage("101")
    with pytest.raises(errors.WireError, match=r"percentage: '0' .* 1; write 1 to 100$"):
        percentage("0")
    with pytest.raises(errors.WireError, match=r"'1.5' is not a whole number; write 1 to 100$"):
        percentage("1.5")


def test_sixteen_gibi_written_with_a_point_is_whole_where_it_fits() -> None:
    assert quantity.exact_integer("16.0Gi", what="memory", high=2**40) == 2**34


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        ("1", 1),
        ("1.1", 2),
        ("100m", 1),
        ("1n", 1),
        ("0", 0),
        ("-1.1", -2),
        ("10E", 2**63 - 1),
        ("-10E", -(2**63 - 1)),
        ("1e300", 2**63 - 1),
        (10**30, 2**63 - 1),
        ("99999999999999999999", 2**63 - 1),
        (0.5, 1),
    ],
)
def test_rounding_up_goes_away_from_zero_and_stays_in_64_bits(
    amount: objects.Amount, want: int
) -> None:
    assert quantity.rounded_up(amount, what="allocatable") == want


@settings(deadline=None)
@given(
    st.integers(-(10**20), 10**20), st.integers(0, 20), st.sampled_from([s for s in SUFFIXES if s])
)
def test_any_decimal_with_any_suffix_has_its_mathematical_value(
    digits: int, places: int, suffix: str
) -> None:
    text = f"{abs(digits):0{places + 1}}"
    text = f"{text[: len(text) - places]}.{text[len(text) - places :]}{suffix}"
    sign = "-" if digits < 0 else ""
    want = Fraction(digits, 10**places) * SUFFIXES[suffix]
    assert quantity.parse(sign + text, what="x") == want
    assert quantity.rounded_up(sign + text, what="x") in range(-(2**63) + 1, 2**63)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_json_double_means_what_its_shortest_text_says(number: float) -> None:
    assert quantity.parse(number, what="x") == Fraction(repr(number))
