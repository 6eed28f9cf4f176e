"""The recorded history of pods and nodes.

One JSON object per line, in the order of the watch:

    {"time": 1785320000.25, "type": "ADDED", "object": {"kind": "Pod", ...}}

- `time`: unix seconds as a number, when the recorder saw it; for messages only, order counts;
- `type`: `ADDED`, `MODIFIED`, `DELETED` with the object as the watch sent it, or `LIST` with a
  whole PodList or NodeList: what is not in it is gone. A recorder begins with one, and writes
  another one after each gap (410). `BOOKMARK` is skipped;
- `object`: with `kind`, as watch events and lists of the API server have it.

It is the watch and not the audit log, because the watch has every version of an object whole and in
the order of the database; an audit log has requests, in the order of their ends. A last line
without its end is the recorder at work and is left out; anything else that does not parse is
reported.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.e2e.auditor import malformed
from tests.e2e.auditor.evidence import Json
from tests.e2e.auditor.malformed import MalformedError

CHANGES = ("ADDED", "MODIFIED", "DELETED")
LIST = "LIST"
BOOKMARK = "BOOKMARK"


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    time: float
    type: str
    object: Json

    @property
    def kind(self) -> str:
        """Pod or Node; of a list, what it is a list of."""
        return str(self.object.get("kind", "")).removesuffix("List")


def line(time: float, kind: str, thing: Json) -> str:
    """Return what a recorder writes for one event."""
    return json.dumps({"time": time, "type": kind, "object": thing}, separators=(",", ":")) + "\n"


def read(text: str) -> tuple[list[Sighting], list[tuple[int, str]]]:
    """Return what was seen, and the lines (from 1) that do not parse with the reason."""
    sightings: list[Sighting] = []
    bad: list[tuple[int, str]] = []
    *lines, _torn = text.split("\n")
    for number, content in enumerate(lines, 1):
        try:
            sightings.append(_sighting(malformed.parse_json(content)))
        except MalformedError as error:
            bad.append((number, f"{malformed.shown(content)!r}: {error}"))
    return sightings, bad


def _sighting(item: Any) -> Sighting:
    if not isinstance(item, dict):
        raise MalformedError("is no object")
    time, kind, thing = item.get("time"), item.get("type"), item.get("object")
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise MalformedError(f"time {malformed.shown(time)} is no number")
    if kind not in (*CHANGES, LIST, BOOKMARK):
        raise MalformedError(f"type {malformed.shown(kind)} is none of a timeline")
    if not isinstance(thing, dict) or "kind" not in thing:
        raise MalformedError("object is no object with a kind")
    return Sighting(float(time), kind, thing)
