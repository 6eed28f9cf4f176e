"""`hami version`: what runs here, in the one line that a bug report needs."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

from hami.cli import parser


def main(arguments: Sequence[str], *, prog: str) -> int:
    parser.Parser(prog=prog, description="Print the version.").parse_args(arguments)
    print(line())  # noqa: T201 - this is what was asked for
    return 0


def number() -> str:
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("hami")
    except importlib.metadata.PackageNotFoundError:
        return "of a source tree that is not installed"


def line() -> str:
    python = platform.python_version()
    return f"hami {number()} (Python {python}, {platform.system()} {platform.machine()})"
