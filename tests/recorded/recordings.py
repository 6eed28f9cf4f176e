"""The recorded cases of each vendor: compressed lines of JSON beside this file."""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
from collections.abc import Iterable, Iterator

from tests.recorded.fleets import Document

FOLDER = pathlib.Path(__file__).with_name("data")
Recorded = tuple[Document, Document]
"""A case and HAMi's facts about it."""

EACH = 8
"""Cases that show a reason or an ending, where so many were drawn."""


def read(vendor: str) -> list[Recorded]:
    """Return a vendor's recorded cases."""
    with gzip.open(_path(vendor), "rt") as lines:
        return [(line["case"], line["hami"]) for line in map(json.loads, lines)]


def write(vendor: str, recorded: Iterable[Recorded]) -> pathlib.Path:
    """Write a vendor's cases; the same cases make the same file."""
    lines = (
        json.dumps({"case": case, "hami": facts}, separators=(",", ":"), sort_keys=True) + "\n"
        for case, facts in recorded
    )
    path = _path(vendor)
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return path


def choose(drawn: Iterable[tuple[Recorded, set[str]]], count: int) -> list[Recorded]:
    """Choose cases to record: some with each trait first, then the next ones."""
    seen: collections.Counter[str] = collections.Counter()
    first: list[Recorded] = []
    others: list[Recorded] = []
    for (case, facts), shown in drawn:
        rare = any(seen[trait] < EACH for trait in shown)
        (first if rare else others).append((case, facts))
        seen.update(shown)
    chosen = (first + others)[:count]
    return sorted(chosen, key=lambda each: int(each[0]["id"]))


def ending(facts: Document) -> str:
    """Return how a case ends with HAMi: denied, passed, error, panic, placed or refused."""
    for end in ("panic", "denied", "passed", "error"):
        if facts.get(end):
            return end
    fits = any("answers" in outcome for outcome in facts["nodes"].values())
    return "placed" if fits else "refused"


def traits(facts: Document) -> Iterator[str]:
    """Return the ending of a case, its reasons, and whether there are ties."""
    end = ending(facts)
    yield f"{end} {facts.get('denied', '')}"
    if "mended" in facts:
        yield "mended"
    for outcome in facts.get("nodes", {}).values():
        if len(outcome.get("answers", ())) > 1:
            yield "tie"
        for reason in outcome.get("reasons", ()):
            for part in reason.split(", "):
                yield f"{end} {part.split(' ')[-1]}"


def _path(vendor: str) -> pathlib.Path:
    return FOLDER / f"{vendor}.jsonl.gz"
