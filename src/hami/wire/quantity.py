"""Kubernetes quantities, and names of extended resources.

A quantity is a decimal number with a suffix: none, `n u m k M G T P E`, the binary
`Ki Mi Gi Ti Pi Ei`, or an exponent (`1e3`). `1E` is exa, `1E3` an exponent. Values are fractions,
so `16.0Gi` and `2000m` are whole numbers, and `1.5` is not silently one or two. HAMi refuses the
first two because Go keeps them in another form; no writer relies on that. Every user can write a
quantity, so the work is bounded: texts and exponents beyond real use are refused before any
arithmetic.

Operators may rename every resource (`nvidia.com/gpumem`) in device-config.yaml. A name that
Kubernetes would refuse is found when the file is read, and not when the first pod asks for it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from hami.wire import errors, objects, text_values

INT64_MAX = 2**63 - 1

_LONGEST_TEXT = 128
_LARGEST_EXPONENT = 400  # a double, which most writers have, ends at 308
_SHORT_INTEGER = 18  # digits that fit 64 bits whatever they are
_SPACE = " \t\r\n"

_NUMBER = r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
_SUFFIX = r"(?:[eE](?P<exponent>[+-]?[0-9]{1,9})|(?P<unit>[numkMGTPE]|[KMGTPE]i)?)"
_QUANTITY = re.compile(_NUMBER + _SUFFIX, re.ASCII)
_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_REMEDY = "write a Kubernetes quantity such as 4096, 500m or 16Gi"

_LONGEST_PREFIX = 253 - len("requests.")  # Kubernetes puts `requests.` in front for quotas
_LONGEST_NAME = 63
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_QUOTA_PREFIX = "limits."
_EXAMPLE = "write for example nvidia.com/gpu"


def parse(amount: objects.Amount, *, what: str) -> Fraction:
    """Read a quantity exactly; `what` names it in a WireError."""
    if isinstance(amount, bool):
        raise errors.WireError(what, amount, "is a boolean, not a quantity", _REMEDY)
    if isinstance(amount, int):
        return Fraction(amount)
    # The shortest text of a double is what its writer meant: 0.1 is a tenth.
    text = amount.strip(_SPACE) if isinstance(amount, str) else repr(amount)
    if len(text) > _LONGEST_TEXT:
        raise errors.WireError(
            what, amount, f"is longer than {_LONGEST_TEXT} characters, too long for a quantity"
        )
    found = _QUANTITY.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        raise errors.WireError(what, amount, "is not a quantity", _REMEDY)
    part = found["part"] or ""
    value = Fraction(int(found["whole"] + part), 10 ** len(part))
    if found["exponent"]:
        exponent = int(found["exponent"])
        if abs(exponent) > _LARGEST_EXPONENT:
            raise errors.WireError(
                what, amount, f"has an exponent beyond {_LARGEST_EXPONENT}", _REMEDY
            )
        value *= Fraction(10) ** exponent
    elif found["unit"]:
        value *= _UNITS[found["unit"]]
    return -value if found["sign"] == "-" else value


def is_zero(amount: objects.Amount) -> bool:
    """Return whether an amount is 0; what is no quantity is not."""
    try:
        return parse(amount, what="") == 0
    except errors.WireError:
        return False


def exact_integer(
    amount: objects.Amount,
    *,
    what: str,
    low: int = 0,
    high: int = text_values.INT32_MAX,
    remedy: str = "",
) -> int:
    """Read a quantity that must be a whole number from `low` to `high`."""
    plain = _plain_integer(amount)
    if plain is None:
        value = parse(amount, what=what)
        if value.denominator != 1:
            raise errors.WireError(what, amount, "is not a whole number", remedy)
        plain = value.numerator
    if plain < low:
        raise errors.WireError(what, amount, f"is less than the smallest value {low}", remedy)
    if plain > high:
        raise errors.WireError(what, amount, f"is more than the largest value {high}", remedy)
    return plain


def rounded_up(amount: objects.Amount, *, what: str) -> int:
    """Read a quantity as Go's Quantity.Value(): away from zero, and no further than 64 bits."""
    plain = _plain_integer(amount)
    if plain is None:
        value = parse(amount, what=what)
        plain = -(-abs(value.numerator) // value.denominator)
        plain = -plain if value < 0 else plain
    return max(-INT64_MAX, min(plain, INT64_MAX))


def _plain_integer(amount: objects.Amount) -> int | None:
    """Read digits only, as nearly every quantity is, without the cost of a fraction."""
    if isinstance(amount, str):
        if len(amount) <= _SHORT_INTEGER and amount.isascii() and amount.isdigit():
            return int(amount)
        return None
    return amount if type(amount) is int else None


def check_resource_name(name: str, *, what: str) -> str:
    """Return `name` if Kubernetes takes it as an extended resource."""
    prefix, slash, local = name.partition("/")
    if not slash:
        rule = "has no domain before a slash"
    elif len(prefix) > _LONGEST_PREFIX:
        rule = f"has a domain of more than {_LONGEST_PREFIX} characters"
    elif not _PREFIX.fullmatch(prefix):
        rule = "has a domain that is not lower-case letters, digits, - and . in DNS form"
    elif prefix.endswith("kubernetes.io"):
        # As Kubernetes does: mykubernetes.io counts as its own, too.
        rule = "has a domain that ends in kubernetes.io, which is kept for Kubernetes itself"
    elif prefix.startswith("requests."):
        rule = "begins with requests., which is kept for quotas"
    elif len(local) > _LONGEST_NAME:
        rule = f"has more than {_LONGEST_NAME} characters after the slash"
    elif not _NAME.fullmatch(local):
        rule = "must have letters, digits, - _ . after the slash, a letter or digit at both ends"
    else:
        return name
    raise errors.WireError(what, name, rule, _EXAMPLE)


def quota_key(resource: str) -> str:
    """Return the key that limits `resource` in a ResourceQuota."""
    return _QUOTA_PREFIX + resource


def resource_of_quota_key(key: str) -> str | None:
    """Return the resource that a ResourceQuota key limits; None if it is another kind of key."""
    return key.removeprefix(_QUOTA_PREFIX) if key.startswith(_QUOTA_PREFIX) else None
