"""Errors of commands, and an argument parser that raises them.

A command raises CommandError for what the user can change: one line and an exit code.
`hami.cli.main` prints the line. Any other exception is a bug and keeps its traceback. The parser
raises a UsageError with one line instead of printing the whole usage.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from hami.wire import errors


class CommandError(Exception):
    """The command was understood, but could not be carried out."""

    code = 1


class UsageError(CommandError):
    """The command or its configuration is wrong; a retry would fail again."""

    code = 2


def usage(what: str, value: object, rule: str, remedy: str) -> UsageError:
    """Build the error about a value: its origin, the value, the rule, the remedy."""
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
