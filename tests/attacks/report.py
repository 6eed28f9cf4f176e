"""Try all attacks and write docs/threats.md; with --check compare it only.

The check runs nothing: it renders the declared outcomes. That these are what happens is the tests'
own matter.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.attacks import page
from tests.attacks.attack import DECLARED, HAPPENED, Attack

FOLDER = Path(__file__).parent
#: One for each attacker; the tests of the suite itself read the page.
FILES = sorted(path for path in FOLDER.glob("test_*.py") if path.stem != "test_suite")
PAGE = FOLDER.parents[1] / "docs/threats.md"


def declared() -> list[Attack]:
    """Return all attacks in the order of their files."""
    for path in FILES:
        importlib.import_module(f"tests.attacks.{path.stem}")
    return list(DECLARED.values())


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with --check return 1 if it differs."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python -m tests.attacks.report [--check]\n")
        return 2
    attacks = declared()
    if arguments:
        wanted = page.render(attacks, {each.id: each.outcome for each in attacks})
        if PAGE.exists() and PAGE.read_text("utf-8") == wanted:
            return 0
        sys.stderr.write(
            "docs/threats.md is not current; run `.venv/bin/python -m tests.attacks.report`\n"
        )
        return 1
    code = pytest.main(["-q", *map(str, FILES)])
    missing = [each.id for each in attacks if each.id not in HAPPENED]
    if code or missing:
        sys.stderr.write(f"nothing is written; attacks without an outcome: {missing}\n")
        return int(code) or 1
    PAGE.write_text(page.render(attacks, HAPPENED), "utf-8")
    sys.stdout.write("wrote docs/threats.md\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
