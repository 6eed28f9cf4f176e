"""Quantities in their one canonical form."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.wire import quantity
from hami_sandbox.apiserver.schema import pod_rules


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("100m", "100m"),
        ("1000", "1k"),
        ("1000k", "1M"),
        ("12345", "12345"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("10e3", "10e3"),
        ("1e4", "10e3"),
        ("1e0", "1"),
        ("2048Mi", "2Gi"),
        ("0.5Gi", "512Mi"),
        ("1Ki", "1Ki"),
        ("1025", "1025"),
        ("0.5Ki", "512"),
        ("1023Mi", "1023Mi"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-1.5", "-1500m"),
        ("1u", "1u"),
        ("0.1n", "1n"),
        (3, "3"),
        (0.1, "100m"),
    ],
)
def test_a_quantity_has_one_form(written: str | float, read: str) -> None:
    assert pod_rules.canonical(written) == read


@pytest.mark.parametrize("written", ["", "x", "1 Gi", "1Zi", "--1", "."])
def test_what_is_no_quantity_is_refused_in_the_words_of_the_server(written: str) -> None:
    with pytest.raises(ValueError, match="quantities must match the regular expression"):
        pod_rules.canonical(written)


_texts = st.builds(
    lambda sign, whole, part, unit: f"{sign}{whole}.{part:03}{unit}",
    st.sampled_from(["", "-"]),
    st.integers(0, 10**12),
    st.integers(0, 999),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3"]),
)


@given(_texts)
def test_the_canonical_form_is_canonical(text: str) -> None:
    once = pod_rules.canonical(text)
    assert pod_rules.canonical(once) == once


@given(_texts)
def test_nothing_is_lost_but_what_is_less_than_the_least(text: str) -> None:
    before = quantity.parse(text, what="before")
    after = quantity.parse(pod_rules.canonical(text), what="after")
    least = Fraction(1) if text.endswith("i") and abs(before) >= 1024 else Fraction(1, 10**9)
    assert 0 <= abs(after) - abs(before) < least
