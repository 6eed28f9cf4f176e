"""The mutants of a run: all, or some of those that a change concerns.

`make mutants` runs all. In `make test` HAMI_MUTANTS names a number: at most so many are run, of
those whose file or tests differ from the base of the run (tests/selection). Without a base all are
candidates. The choice is made by a seed, HAMI_MUTANTS_SEED or the commit, which is printed.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tests.mutants.running import ROOT, Mutant
from tests.selection.base import Base, Repository

MOST = "HAMI_MUTANTS"
SEED = "HAMI_MUTANTS_SEED"


def concerned(
    mutants: Sequence[Mutant], source: str, changed: AbstractSet[str] | None
) -> list[Mutant]:
    """Return the mutants whose file below `source` or whose tests changed; all if unknown."""
    if changed is None:
        return list(mutants)
    folder = pathlib.PurePosixPath(source)
    return [
        mutant
        for mutant in mutants
        if not changed.isdisjoint({str(folder / mutant.file), *map(_file, mutant.tests)})
    ]


def chosen(mutants: Sequence[Mutant], most: int, seed: str) -> list[Mutant]:
    """Choose at most so many, in the order in which they are listed."""
    if len(mutants) <= most:
        return list(mutants)
    picked = random.Random(seed).sample(range(len(mutants)), most)
    return [mutants[index] for index in sorted(picked)]


def of_this_run(mutants: Sequence[Mutant], source: str) -> tuple[list[Mutant], str]:
    """Return the mutants to run, and a line that says which they are and why."""
    name = pathlib.PurePosixPath(source).name or "the product"
    asked = os.environ.get(MOST, "all")
    if asked == "all":
        return list(mutants), f"mutants of {name}: all {len(mutants)}"
    repository = Repository(ROOT)
    base: Base = repository.base()
    candidates = concerned(
        mutants, source, repository.changed(base.commit) if base.commit else None
    )
    seed = os.environ.get(SEED) or repository.head() or "0"
    taken = chosen(candidates, int(asked), seed)
    since = f"since {base.commit[:12]}" if base.commit else f"no base: {base.why}"
    return taken, (
        f"mutants of {name}: {len(taken)} of {len(candidates)} concerned ({since}),"
        f" {len(mutants)} in all; {SEED}={seed}"
    )


def _file(test: str) -> str:
    return test.partition("::")[0]
