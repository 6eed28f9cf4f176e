"""The one error of everything that reads bytes, text or objects from outside.

Decoders raise `WireError` and nothing else, so that a caller can treat one bad pod or node as that
pod's or node's problem. The message names the object, the value, the rule that it breaks and the
remedy. Values are cut, because an annotation may be a megabyte long. Bytes are whole documents:
only their length is shown, because they may hold secrets.
"""

from __future__ import annotations

_SHOWN = 80
_SHOWN_BITS = 256  # beyond some thousand digits Python refuses to write a number at all


def shorten(value: object) -> str:
    """Quote `value` for a message, cut to a readable length."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    text = value if isinstance(value, str) else repr(value)
    quoted = repr(text[: _SHOWN + 1]) if isinstance(value, str) else text[: _SHOWN + 1]
    if len(text) <= _SHOWN:
        return quoted
    return f"{quoted[:_SHOWN]}… ({len(text)} characters)"


class WireError(ValueError):
    """Something from outside breaks a rule of the wire."""

    def __init__(self, what: str, value: object, rule: str, remedy: str = "") -> None:
        self.what = what
        self.value = shorten(value)
        self.rule = rule
        self.remedy = remedy
        message = f"{what}: {self.value} {rule}"
        super().__init__(f"{message}; {remedy}" if remedy else message)
