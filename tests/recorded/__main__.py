"""Commands: record HAMi's answers to random cases, or compare them with ours.

Both need HAMi's own code as a program, which HAMI_HARNESS names.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys

from tests.recorded import cases, comparing, fleets, harness, recordings, replay
from tests.recorded.fleets import Document

SEED = 22
DRAWN_FOR_EACH = 5
"""So many cases are drawn for each that is recorded, to have rare ones."""


RARE = {"cambricon": ((100, 3049),)}
"""Seed and number of cases that are recorded too, because what they show is rarely drawn."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, count, what in (
        ("record", 220, "write new recordings"),
        ("compare", 10_000, "compare random cases; exit code 1 if any differs"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("vendors", nargs="*", metavar="VENDOR", help=", ".join(fleets.VENDORS))
        command.add_argument(
            "--cases", type=int, default=count, help="of each vendor (%(default)s)"
        )
        command.add_argument("--seed", type=int, default=SEED, help="of the cases (%(default)s)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.vendors) - set(fleets.VENDORS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: write some of {', '.join(fleets.VENDORS)}")
    run = record if options.command == "record" else compare
    results = [
        run(vendor, options.seed, options.cases) for vendor in options.vendors or fleets.VENDORS
    ]
    return int(any(results))


def record(vendor: str, seed: int, count: int) -> int:
    """Record cases of a vendor; return 0."""
    drawn = harness.answers(cases.cases(vendor, seed, count * DRAWN_FOR_EACH))
    chosen = recordings.choose(((each, _traits(*each)) for each in drawn), count)
    rare = [cases.draw(vendor, *which) for which in RARE.get(vendor, ())]
    chosen += harness.answers(rare)
    path = recordings.write(vendor, chosen)
    ends = collections.Counter(recordings.ending(facts) for _, facts in chosen)
    _say(f"{vendor}: {dict(ends)}, {path.stat().st_size} bytes")
    return 0


def _traits(case: Document, facts: Document) -> set[str]:
    """Return what a case shows: its ending and reasons, and what is meant to be different."""
    meant = comparing.Comparison(case, facts, replay.answer(case)).meant
    return {*recordings.traits(facts), *(each.name for each in meant)}


def compare(vendor: str, seed: int, count: int) -> int:
    """Compare cases of a vendor; return how many differ."""
    ends: collections.Counter[str] = collections.Counter()
    meant: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    smallest: dict[str, tuple[str, comparing.Difference]] = {}
    differing = 0
    for case, facts in harness.answers(cases.cases(vendor, seed, count)):
        ends[recordings.ending(facts)] += 1
        comparison = comparing.Comparison(case, facts, replay.answer(case))
        meant.update(each.name for each in comparison.meant)
        differing += bool(comparison.found)
        for difference in comparison.found:
            kind = _kind(difference)
            kinds[kind] += 1
            text = json.dumps(case)
            if kind not in smallest or len(text) < len(smallest[kind][0]):
                smallest[kind] = (text, difference)
    _say(f"{vendor}: {count} cases, {dict(ends)}, meant {dict(meant)}, {differing} differ")
    for kind, (text, difference) in smallest.items():
        _say(f"  {kind}, {kinds[kind]} times; the smallest case: {text}")
        _say(f"    HAMi: {_short(difference.theirs)}")
        _say(f"    ours: {_short(difference.ours)}")
    return differing


def _kind(difference: comparing.Difference) -> str:
    return difference.kind.partition(" node-")[0]


def _short(value: object) -> str:
    return json.dumps(value)[:1000]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
