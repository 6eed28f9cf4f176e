"""Errors of commands, and an argument parser that raises them.

How a command fails: one line for the user, and an exit code.
Commands raise these for what the user can change; `hami.cli.main` prints the line. Anything else
that escapes is our mistake, and keeps its traceback.

argparse with our way of failing: an error, not a page of usage.
A typing mistake gets one line that names it. The whole help is there for those who ask.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from hami.wire import errors


class CommandError(Exception):
    """The command was understood, but could not be carried out."""

    code = 1


class UsageError(CommandError):
    """The command or its configuration is wrong; trying again will not help."""

    code = 2


def usage(what: str, value: object, rule: str, remedy: str) -> UsageError:
    """Build the error about a value: where it came from, what it is, the rule, the remedy."""
    return UsageError(f"{what}: {errors.shorten(value)} {rule}; {remedy}")


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
        raise UsageError(f"{message}; see `{self.prog} --help`")
