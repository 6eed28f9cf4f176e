"""Field types and schemas of kinds; bring an object into stored form.

The types are in `fields/*.txt`: what a value is, and how lists and maps are merged.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
import functools
import importlib.resources
import re
from collections.abc import Callable, Iterator
from typing import Any

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import pod_rules

SCALARS = frozenset(
    {"string", "int", "long", "bool", "time", "micro", "quantity", "intstr", "bytes", "any"}
)
#: What every object has besides its own fields.
_ROOT = "  apiVersion,kind string\n  metadata:1 ObjectMeta always"


@dataclasses.dataclass(slots=True, eq=False)
class Shape:
    """The type of one field, with what merging has to know about it."""

    what: str  # a scalar, or `struct`, `map`, `list`
    name: str = ""  # of a struct
    fields: dict[str, Shape] = dataclasses.field(default_factory=dict)  # of a struct
    numbers: dict[str, str] = dataclasses.field(default_factory=dict)  # of the fields, in protobuf
    item: Shape | None = None  # of a map or a list
    keys: tuple[str, ...] = ()  # that tell a list's elements apart
    is_set: bool = False
    merge_key: str = ""  # of a strategic merge, if the elements are objects
    merges: bool = False  # whether a strategic merge joins lists
    atomic: bool = False
    always: bool = False
    absent: str | None = None  # what a missing key means
    open: bool = False  # takes undeclared fields, as a custom resource does

    @property
    def of(self) -> Shape:
        """Return the type of the elements of a list or a map."""
        assert self.item is not None, f"{self.what} has no elements"
        return self.item

    def keeps_zero(self, name: str) -> bool:
        """Return whether a zero in a struct's field differs from leaving it out."""
        number = self.numbers.get(name, "")
        return not number or number.endswith("*")

    def field(self, name: str) -> Shape | None:
        """Return the type of a field, or of a map's value."""
        if self.what == "struct":
            return self.fields.get(name) or (ANY if self.open else None)
        return self.item if self.what == "map" else None


ANY = Shape("any")


def of(kind: Kind) -> Shape:
    """Return the type of a kind's objects."""
    return _custom() if kind.custom else root(kind.group, kind.kind)


@functools.cache
def root(group: str, kind: str) -> Shape:
    """Return the type of a kind by name; one that is not described keeps whatever it has."""
    types = _types()
    return types.get(f"{group}/{kind}") or types.get(kind) or _custom()


@functools.cache
def _custom() -> Shape:
    types = _types()
    fields = {"apiVersion": Shape("string"), "kind": Shape("string")}
    metadata = dataclasses.replace(types["ObjectMeta"], always=True)
    return Shape("struct", fields={**fields, "metadata": metadata}, open=True)


@functools.cache
def _types() -> dict[str, Shape]:
    blocks = dict(_blocks())
    types = {
        header.split()[0]: Shape("struct", name=header.split()[0], atomic="atomic" in header)
        for header in blocks
    }
    for header, lines in blocks.items():
        struct = types[header.split()[0]]
        for line in lines:
            names, written, *notes = line.split()
            for numbered in names.split(","):
                name, _, number = numbered.partition(":")
                struct.fields[name] = _noted(_parsed(written, types), notes)
                struct.numbers[name] = number
    return types


def _blocks() -> Iterator[tuple[str, list[str]]]:
    folder = importlib.resources.files(__package__) / "fields"
    found = (each for each in folder.iterdir() if each.name.endswith(".txt"))
    for file in sorted(found, key=lambda each: each.name):
        header, lines = "", list[str]()
        for line in (*file.read_text("utf-8").splitlines(), "end"):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if line.startswith(" "):
                lines.append(line)
                continue
            if header:
                yield header, lines
            header = line.removeprefix("kind ")
            lines = _ROOT.splitlines() if line.startswith("kind ") else []


def _parsed(written: str, types: dict[str, Shape]) -> Shape:
    if written in SCALARS:
        return Shape(written)
    if written[0] in "[{":
        return Shape("list" if written[0] == "[" else "map", item=_parsed(written[1:-1], types))
    return types[written]


def _noted(shape: Shape, notes: list[str]) -> Shape:
    changes: dict[str, object] = {}
    for note in notes:
        word, _, value = note.partition("=")
        if word == "by":
            keys = tuple(value.split(","))
            changes |= {"keys": keys, "merge_key": keys[0], "merges": True}
        elif word == "merge":
            changes |= {"merge_key": "" if value == "-" else value, "merges": value != "-"}
        elif word == "set":
            changes |= {"is_set": True, "merges": True}
        elif word == "else":
            changes["absent"] = value
        else:
            changes[word] = True
    # The copy shares its dict of fields, which may not be filled yet.
    return dataclasses.replace(shape, **changes) if changes else shape  # type: ignore[arg-type]


_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICROS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(?!\d)", re.ASCII)
_MICROS_UTC = re.compile(_MICROS.pattern + "Z", re.ASCII)
_INT32, _INT64 = 2**31, 2**63
#: An empty list there is kept: it drops the record of owners.
_KEPT_EMPTY = "managedFields"


class ShapeError(ValueError):
    """A value has another type than its field; worded as Go's decoder words it."""


def settle(kind: Kind, obj: Object) -> list[str]:
    """Bring an object into stored form, in place; return the paths of unknown fields.

    Call it on every decoded body, every patched object and every object that a webhook changed.
    Unknown fields, nulls and empty maps and lists go; quantities and times become canonical; what
    Go always writes (`spec: {}`) is there. Raises ShapeError for values of a wrong type.
    """
    return settle_shape(of(kind), obj)


def settle_shape(shape: Shape, obj: Object) -> list[str]:
    """Do the same for any struct, such as the options or the Scale of a request."""
    unknown: list[str] = []
    _struct(shape, obj, "", unknown)
    return unknown


def _value(shape: Shape, value: Any, path: str, unknown: list[str]) -> Any:
    """Return the settled value, or None if nothing of it is kept."""
    match shape.what:
        case "struct":
            return _struct(shape, value, path, unknown)
        case "list":
            return _list(shape, value, path, unknown)
        case "map":
            return _map(shape, value, path, unknown)
        case _:
            return _SCALARS[shape.what](value, path)


def _struct(shape: Shape, value: Any, path: str, unknown: list[str]) -> Object:
    if not isinstance(value, dict):
        raise _mismatch(value, path, shape.name or "map[string]interface {}")
    found: Object = value
    for name in tuple(found):
        inner, field = found[name], shape.field(name)
        if field is None:
            unknown.append(f"{path}.{name}" if path else str(name))
        elif inner is not None:
            kept = _value(field, inner, f"{path}.{name}" if path else name, unknown)
            if _is_written(shape, name, kept) or field is ANY:
                found[name] = kept
                continue
        del found[name]
    for name, field in shape.fields.items():
        if field.always and field.what == "struct" and name not in found:
            found[name] = _struct(field, {}, f"{path}.{name}", unknown)
    return found


def _is_written(shape: Shape, name: str, value: Any) -> bool:
    """Return whether Go writes the value: neither empty nor a zero without meaning."""
    if isinstance(value, dict | list):
        return True
    return bool(value) or (value is not None and shape.keeps_zero(name))


def _list(shape: Shape, value: Any, path: str, unknown: list[str]) -> list[Any] | None:
    if not isinstance(value, list):
        raise _mismatch(value, path, f"[]{_go_name(shape.of)}")
    found = []
    for index, item in enumerate(value):
        inner = {} if item is None and shape.of.what == "struct" else item
        found.append(_value(shape.of, inner, f"{path}[{index}]", unknown))
    return found if found or shape.always or path.endswith(_KEPT_EMPTY) else None


def _map(shape: Shape, value: Any, path: str, unknown: list[str]) -> Object | None:
    if not isinstance(value, dict):
        raise _mismatch(value, path, f"map[string]{_go_name(shape.of)}")
    found: Object = {}
    for name, item in value.items():
        if shape.of.what == "quantity":
            found[name] = _quantity(item, f"{path}.{name}", pod_rules.MILLI)
        elif item is None:
            found[name] = "" if shape.of.what in {"string", "bytes"} else None
        else:
            found[name] = _value(shape.of, item, f"{path}.{name}", unknown)
    return found or None


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _mismatch(value, path, "string")
    return value


def _bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, path, "bool")
    return value


def _integer(value: Any, path: str, bound: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
        raise _mismatch(value, path, name)
    return value


def _int_or_string(value: Any, path: str) -> int | str:
    return value if isinstance(value, str) else _integer(value, path, _INT32, "intstr.IntOrString")


def _quantity(value: Any, path: str, least: int = pod_rules.NANO) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ShapeError(f"{path}: {pod_rules.RULE}")
    try:
        return pod_rules.canonical(value, least=least)
    except ValueError as error:
        raise ShapeError(str(error)) from None


def _bytes(value: Any, path: str) -> str:
    text = _string(value, path)
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ShapeError(f"illegal base64 data in {path}: {text[:40]!r}") from None
    return text


def _time(value: Any, path: str) -> str | None:
    text = _string(value, path)
    return text if _SECONDS.fullmatch(text) else _rewritten(text, "seconds")


def _micro_time(value: Any, path: str) -> str | None:
    text = _string(value, path)
    if text and not _MICROS.match(text):
        layout = "2006-01-02T15:04:05.000000Z07:00"
        raise ShapeError(f'parsing time "{text}" as "{layout}": cannot parse "{text}"')
    return text if _MICROS_UTC.fullmatch(text) else _rewritten(text, "microseconds")


def _rewritten(text: str, unit: str) -> str | None:
    if not text:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ShapeError(
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}"'
        )
    return moment.astimezone(dt.UTC).isoformat(timespec=unit).replace("+00:00", "Z")


_SCALARS: dict[str, Callable[[Any, str], Any]] = {
    "string": _string,
    "bool": _bool,
    "int": lambda value, path: _integer(value, path, _INT32, "int32"),
    "long": lambda value, path: _integer(value, path, _INT64, "int64"),
    "intstr": _int_or_string,
    "quantity": _quantity,
    "bytes": _bytes,
    "time": _time,
    "micro": _micro_time,
    "any": lambda value, _path: value,
}
_GO_NAMES = {"int": "int32", "long": "int64", "bytes": "uint8", "any": "interface {}"}


def _go_name(shape: Shape) -> str:
    return shape.name or _GO_NAMES.get(shape.what, shape.what)


def _mismatch(value: Any, path: str, wanted: str) -> ShapeError:
    match value:
        case bool():
            found = "bool"
        case int() | float():
            found = (
                "number" if wanted == "string" or isinstance(value, float) else f"number {value}"
            )
        case str():
            found = "string"
        case list():
            found = "array"
        case None:
            found = "null"
        case _:
            found = "object"
    where = f"field {path}" if path else "value"
    return ShapeError(f"json: cannot unmarshal {found} into Go struct {where} of type {wanted}")
