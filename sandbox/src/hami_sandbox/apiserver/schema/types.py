"""The types of fields, read from `fields/*.txt`: what a value is, how lists and maps are merged."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from collections.abc import Iterator

from hami_sandbox.apiserver.kind import Kind

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
    open: bool = False  # takes fields that nobody declared, as a custom resource does

    @property
    def of(self) -> Shape:
        """Return the type of the elements of a list or a map."""
        assert self.item is not None, f"{self.what} has no elements"
        return self.item

    def keeps_zero(self, name: str) -> bool:
        """Say whether a struct's field that is zero is more than one that is left out."""
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
