"""The page of commands and flags, from the parsers that print the help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from hami.cli import main
from scripts.reference import markdown

INTRO = """\
`hami COMMAND --help` prints the same. `kubectl hami COMMAND` runs the same commands."""


class _FoundError(BaseException):
    """Carries a command's parser out of the command; no command catches it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def render(_root: Path) -> str:
    """Return the page."""
    commands = {words: what for words, (_, what) in main.COMMANDS.items()}
    for name, (distribution, what) in main.ADDED.items():
        commands[name,] = f"{what} (needs the package {markdown.code(distribution)})"
    rows = [
        (f"[`hami {' '.join(words)}`](#{'-'.join(('hami', *words))})", what)
        for words, what in commands.items()
    ]
    parts = [markdown.table(("command", "purpose"), rows)]
    for words in commands:
        parts += _command(words)
    return markdown.page("Commands and flags", INTRO, parts)


def _stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
    raise _FoundError(parser)


def _parser(words: tuple[str, ...]) -> argparse.ArgumentParser:
    """Run a command up to the point where its parser reads the arguments."""
    # Without variables, so that no default is this machine's.
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", _stop),
        mock.patch.dict(os.environ, clear=True),
    ):
        try:
            main.main([*words, "--help"])
        except _FoundError as found:
            return found.parser
    raise RuntimeError(f"hami {' '.join(words)}: no parser; read its flags in another way")


def _command(words: tuple[str, ...]) -> Iterator[str]:
    parser = _parser(words)
    name = f"hami {' '.join(words)}"
    yield f"## {name}"
    yield "```text\n" + (parser.description or "").strip() + "\n```"
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no other way to list them
        actions = [each for each in group._group_actions if "--help" not in each.option_strings]  # noqa: SLF001 - as above
        if not actions:
            continue
        usual = {"options": "Flags", "positional arguments": "Arguments"}
        title = usual.get(group.title or "", group.title or "Flags")
        rows = [(_spelling(action), _help(action, parser)) for action in actions]
        yield f"**{title}**"
        yield markdown.table(("flag" if title != "Arguments" else "argument", "meaning"), rows)
    if parser.epilog:
        yield "```text\n" + parser.epilog.strip() + "\n```"


def _spelling(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings) or action.dest.upper()
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes = action.nargs != 0 and action.option_strings
    return markdown.code(f"{names} {value}" if takes else names)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"{text} (required)" if action.required and action.option_strings else text
