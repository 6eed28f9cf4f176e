"""decode_go: null and missing values are zero, and errors name the place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.wire import codec
from hami.wire.errors import WireError


class Inner(codec.Object, frozen=True):
    size: int = 0


class Outer(codec.Object, frozen=True):
    name: str
    inner: Inner
    scores: dict[str, int]
    parts: tuple[Inner, ...] = (Inner(7),)
    instance: int | None = None
    anything: dict[str, Any] = msgspec.field(default_factory=dict)


ZERO = Outer(name="", inner=Inner(), scores={})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[]", []),
        ("[{}]", [ZERO]),
        ("[null]", [ZERO]),
        ('[{"name":null,"inner":null,"scores":null,"parts":null,"instance":null}]', [ZERO]),
        (
            '[{"name":"a","inner":{"size":null},"scores":{"b":null},"parts":[null,{"size":1}]}]',
            [Outer("a", Inner(), {"b": 0}, (Inner(), Inner(1)))],
        ),
        (
            '[{"anything":{"a":null,"b":[null]},"unknown":1e999}]',
            [Outer("", Inner(), {}, anything={"a": None, "b": [None]})],
        ),
    ],
)
def test_null_and_missing_values_are_zero(text: str, want: list[Outer]) -> None:
    assert codec.decode_go(text, list[Outer], what="list") == want


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("null", "Expected `array`, got `null`"),
        ("[1]", r"Expected `object`, got `int` - at `\$\[0\]`"),
        ('[{"inner":[]}]', r"Expected `object`, got `array` - at `\$\[0\].inner`"),
        ('[{"scores":{"a":"1"}}]', r"Expected `int`, got `str` - at `\$\[0\].scores\[...\]`"),
        ("[{}", "truncated"),
        ('["\ud800", {}]', "does not decode"),
    ],
)
def test_other_values_are_refused_by_place(text: str, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        codec.decode_go(text, list[Outer], what="list")
