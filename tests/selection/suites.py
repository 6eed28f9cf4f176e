"""The suites that run only when something they depend on has changed."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Collection

from tests.selection.base import Base
from tests.selection.closure import Modules

#: What decides over every suite: dependencies, settings of pytest, and this decision itself.
ALWAYS = ("pyproject.toml", "requirements", "tests/conftest.py", "tests/selection")
SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Suite:
    """Test files or folders, and other paths that their result depends on."""

    tests: tuple[str, ...]
    also: tuple[str, ...] = ()


SUITES = {
    "conformance": Suite(
        (
            "tests/conformance",
            "sandbox/tests/cluster/conformance.py",
            "sandbox/tests/cluster/compact.py",
        )
    ),
    "sanitizers": Suite(("tests/native/test_sanitizers.py",), ("native", "tests/native")),
    "sandbox": Suite(("sandbox/tests",), ("sandbox", "native", "examples", "charts")),
}


@dataclasses.dataclass(frozen=True)
class Choice:
    run: bool
    why: str


def judge(suite: Suite, base: Base, changed: Collection[str], root: pathlib.Path) -> Choice:
    """Decide whether a suite runs, from the paths that differ from the base."""
    if base.commit is None:
        return Choice(run=True, why=f"no base to compare with: {base.why}")
    since = f"since {base.commit[:12]} ({base.why})"
    reach = _reach(suite, root)
    found = sorted(path for path in changed if _concerns(path, suite, reach))
    if not found:
        return Choice(run=False, why=f"none of its files changed {since}")
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return Choice(run=True, why=f"{', '.join(found[:SHOWN])}{more} changed {since}")


@dataclasses.dataclass(frozen=True)
class _Reach:
    files: set[str]
    folders: set[str]


@functools.cache
def _reach(suite: Suite, root: pathlib.Path) -> _Reach:
    starts: list[str] = []
    for place in suite.tests:
        path = root / place
        found = [path] if path.is_file() else sorted(path.rglob("*.py"))
        if not found:
            raise FileNotFoundError(f"{place} is named in tests/selection/suites.py; correct it")
        starts += [str(each.relative_to(root)) for each in found]
    files = Modules(root).closure(starts)
    folders = {str(pathlib.PurePosixPath(path).parent) for path in files}
    return _Reach(files, folders - {".", "tests"})


def _concerns(path: str, suite: Suite, reach: _Reach) -> bool:
    """Tell whether a changed path can change the suite's result.

    A module that was deleted is in no closure, but whatever imported it has changed as well. Of
    other files all count that lie in a package of the closure, or below it.
    """
    if any(path == place or path.startswith(f"{place}/") for place in (*ALWAYS, *suite.also)):
        return True
    if any(path == place or path.startswith(f"{place}/") for place in suite.tests):
        return True
    if path.endswith(".py"):
        return path in reach.files
    above = {str(parent) for parent in pathlib.PurePosixPath(path).parents}
    return bool(above & reach.folders)
