"""`python -m tests.selection SUITE`: say whether a suite has to run, and why.

Exit code 3 means that it may be left out. Any other code, an error of this program included, means
that it runs.
"""

from __future__ import annotations

import pathlib
import sys

from tests.selection.base import Repository
from tests.selection.suites import SUITES, judge

ROOT = pathlib.Path(__file__).parents[2]
LEFT_OUT = 3


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in SUITES:
        sys.stderr.write(f"python -m tests.selection SUITE; SUITE: one of {', '.join(SUITES)}\n")
        return 2
    (name,) = arguments
    repository = Repository(ROOT)
    base = repository.base()
    changed = repository.changed(base.commit) if base.commit else set[str]()
    choice = judge(SUITES[name], base, changed, ROOT)
    sys.stdout.write(f"{name}: {'runs' if choice.run else 'is left out'}: {choice.why}\n")
    return 0 if choice.run else LEFT_OUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
