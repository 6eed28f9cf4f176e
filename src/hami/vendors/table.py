"""The built-in rows: `rows.toml`, read once.

A row is data that we ship, so a broken one is our mistake and stops the program at once, with the
place and the rule in the message. `hami.vendors.device_config` lays the user's file over them.
"""

from __future__ import annotations

import collections
import functools
import importlib.resources
import tomllib

import msgspec

from hami.vendors import row

_FILE = "rows.toml"


class TableError(ValueError):
    """The table of built-in vendors is broken."""


@functools.cache
def built_in() -> tuple[row.Vendor, ...]:
    """Return the shipped vendors in the order in which they are judged."""
    text = importlib.resources.files("hami.vendors").joinpath(_FILE).read_text("utf-8")
    return parse(text, source=_FILE)


def parse(text: str, *, source: str) -> tuple[row.Vendor, ...]:
    """Read a table of rows; `source` names it in errors."""
    try:
        tables = msgspec.convert(tomllib.loads(text), dict[str, tuple[row.Vendor, ...]])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TableError(f"{source}: {error}") from error
    vendors = tables.pop("vendor", ())
    if tables or not vendors:
        raise TableError(f"{source}: every row is a [[vendor]], and there is at least one")
    for vendor in vendors:
        if not (vendor.word and vendor.section and vendor.resources.count):
            raise TableError(
                f"{source}: vendor {vendor.word!r} needs word, section and resources.count; "
                "write all three, none empty"
            )
    _refuse_doubles("word", [vendor.word for vendor in vendors], source)
    _refuse_doubles("resource", [n for v in vendors for n in v.resources.named()], source)
    return vendors


def _refuse_doubles(what: str, names: list[str], source: str) -> None:
    doubled = [name for name, times in collections.Counter(names).items() if times > 1]
    if doubled:
        raise TableError(
            f"{source}: {what} {doubled[0]!r} stands twice; each {what} belongs to one place only"
        )
