"""argparse with our way of failing: an error, not a page of usage.

A typing mistake gets one line that names it. The whole help is there for those who ask.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from hami.cli import errors


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError and takes no abbreviated flags."""

    def __init__(self, *, prog: str, description: str, epilog: str = "", usage: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog or None,
            usage=usage or None,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(f"{message}; see `{self.prog} --help`")
