"""How a command fails: one line for the user, and an exit code.

Commands raise these for what the user can change; `hami.cli.main` prints the line. Anything else
that escapes is our mistake, and keeps its traceback.
"""

from __future__ import annotations

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
