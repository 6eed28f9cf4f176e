"""Settings of a process from flags, environment and file.

A flag overrides the environment, the environment the file, the file the default. Flags are written
as Go programs take them: `--name=value` or `--name value`, switches as `--name` or `--name=false`,
with `_` and `-` the same. argparse has neither of the last two, so it only prints the help.

Reading order: `hami.cli.flag_values` has the table of flags and reads values, this module finds the
values, `hami.cli.flag_checks` holds them to the rules, `hami.cli.run` starts the process. A key of
the file that is no flag is an error: a misspelt setting must not stay at its default unnoticed.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import msgspec

from hami.cli import errors, flag_checks, flag_values, ignored_flags
from hami.cli.flag_values import Flag, Kind, S, Table
from hami.vendors import config_file
from hami.vendors import config_file as vendor_errors

Flags = Mapping[str, Flag]

CONFIG = Flag(
    field="config",
    group="Where settings come from",
    help="YAML file of settings; its keys are the names of the flags",
    kind=Kind.TEXT,
    default="",
    spelling="config",
    environment=("HAMI_CONFIG",),
)
_SOURCES = (
    "\n\n"
    "Each setting can be a flag, an environment variable or a key of --config; the first that is\n"
    "given counts. Durations are written as 5m, 28s or 1h30m. An empty variable is an empty text,\n"
    "and leaves numbers and switches as they are."
)
_MOST_CHARACTERS = 64 * 1024
_LEVEL = re.compile(r"-v([0-9]+)")
_HELP = ("-h", "--help", "-help")


class Resolved(msgspec.Struct, Generic[S], frozen=True):
    """Checked settings, and warnings about flags without effect."""

    settings: S
    warnings: tuple[str, ...] = ()


class _Given(msgspec.Struct):
    """The command line, still as text."""

    #: Text by key.
    values: dict[str, str] = {}
    warnings: list[str] = []


def resolve(
    table: Table[S], argv: Sequence[str], environ: Mapping[str, str], *, prog: str = "hami"
) -> Resolved[S]:
    """Read all sources; raises UsageError, and SystemExit(0) after printing the help."""
    if any(word in _HELP for word in argv):
        help_parser(table, prog).parse_args(["--help"])
    given = _command_line(argv, table.flags)
    sources = [
        _from_flags(given, table.flags),
        _from_environment(environ, table.flags),
        _from_file(_file_name(given, environ), table.flags, prog=prog),
    ]
    values: dict[str, flag_values.Value] = {}
    origins: dict[str, str] = {}
    for flag, origin, value in (entry for source in sources for entry in source):
        if flag.field not in values:
            values[flag.field] = flag_values.read(flag, value, origin=origin)
            origins[flag.field] = origin
    settings = msgspec.structs.replace(table.settings(), **values)
    flag_checks.check(table, settings, origins)
    return Resolved(settings, tuple(given.warnings))


def help_parser(table: Table[Any], prog: str) -> errors.Parser:
    """Make the parser that prints every flag with its default and its variable."""
    made = errors.Parser(
        prog=prog,
        usage=f"{prog} [FLAG ...]",
        description=table.description.format(prog=prog) + _SOURCES,
    )
    group, title = None, ""
    for flag in (CONFIG, *table.flags.values()):
        if flag.group != title:
            group, title = made.add_argument_group(flag.group), flag.group
        assert group is not None
        default = flag_values.show(flag)
        named = f"default {default}; " if default else ""
        text = f"{flag.help} ({named}{', '.join(flag.environment)})".replace("%", "%%")
        group.add_argument(f"--{flag.spelling}", metavar=flag.kind.value, help=text)
    return made


def _command_line(argv: Sequence[str], flags: Flags) -> _Given:
    given = _Given()
    rest = collections.deque(argv)
    while rest:
        word = rest.popleft()
        if not word.startswith("-") or word in ("-", "--"):
            remedy = "flags are written --name=value, switches --name=true"
            raise errors.usage("command line", word, "is no flag", remedy)
        level = _LEVEL.fullmatch(word)
        name, equals, text = ("-v", "=", level[1]) if level else word.partition("=")
        key = name.lstrip("-").replace("_", "-")
        flag, ignored = _known(key, flags), ignored_flags.find(key)
        if flag is None and ignored is None and key != ignored_flags.VERBOSITY:
            raise _unknown(name, key, flags)
        is_switch = flag.kind is Kind.SWITCH if flag else bool(ignored and ignored.is_switch)
        if not equals:
            text = "true" if is_switch else _next(name, rest)
        if flag:
            given.values[key] = text
        elif ignored is None:
            _verbosity(given, name, text)
        elif not (is_switch and text.lower() == "false"):
            given.warnings.append(ignored.warning(name))
    return given


def _known(key: str, flags: Flags) -> Flag | None:
    return CONFIG if key == CONFIG.key else flags.get(key)


def _unknown(name: str, key: str, flags: Flags) -> errors.UsageError:
    spellings = [CONFIG.spelling, *(flag.spelling for flag in flags.values())]
    hint = config_file.nearest(key, spellings).replace("mean ", "mean --")
    return errors.UsageError(f"no flag {name}{hint or '; `--help` lists them all'}")


def _next(name: str, rest: collections.deque[str]) -> str:
    if not rest:
        raise errors.UsageError(f"{name}: no value follows; write {name}=VALUE")
    return rest.popleft()


def _verbosity(given: _Given, name: str, text: str) -> None:
    if not (text.isascii() and text.isdigit()):
        raise errors.usage(name, text, "is no level", "write 0 to 10; 4 and above is --debug")
    if int(text) >= ignored_flags.DEBUG_LEVEL:
        given.values.setdefault("debug", "true")


def _from_flags(given: _Given, flags: Flags) -> flag_values.Source:
    for key, text in given.values.items():
        if key != CONFIG.key:
            flag = flags[key]
            yield flag, f"--{flag.spelling}", text


def _from_environment(environ: Mapping[str, str], flags: Flags) -> flag_values.Source:
    for flag in flags.values():
        for name in flag.environment:
            if name in environ and (environ[name].strip() or flag.kind is Kind.TEXT):
                yield flag, name, _one_path(name, environ[name])


def _one_path(name: str, value: str) -> str:
    """Return a variable's value; a $KUBECONFIG that lists several files is left to hami.kube."""
    return "" if name == "KUBECONFIG" and os.pathsep in value else value


def _file_name(given: _Given, environ: Mapping[str, str]) -> str:
    return given.values.get(CONFIG.key) or environ.get(CONFIG.environment[0], "")


def _from_file(name: str, flags: Flags, *, prog: str) -> flag_values.Source:
    """Yield the settings of the file; raises ConfigError for a file that cannot be used."""
    if not name:
        return
    data = config_file.load(_file_text(name), source=name)
    if data is not None and not isinstance(data, dict):
        raise vendor_errors.ConfigError(
            source=name,
            place="",
            value=data,
            rule="is not a mapping of settings",
            remedy="write one `name: value` per line, as in `scheduler-name: hami-scheduler`",
        )
    for key, value in (data or {}).items():
        flag = flags.get(str(key).replace("_", "-"))
        if flag is None:
            hint = config_file.nearest(key, flags)
            raise vendor_errors.ConfigError(
                source=name,
                place=str(key),
                rule=f"no such setting{hint}",
                remedy=f"the keys are the flags of `{prog} --help`, but for --config",
            )
        if value is not None:
            yield flag, f"{name}: {key}", value


def _file_text(name: str) -> str:
    text = config_file.read(
        name,
        remedy="check the path given by --config, and the file's permissions",
        longest=_MOST_CHARACTERS,
    )
    if len(text) > _MOST_CHARACTERS:
        raise vendor_errors.ConfigError(
            source=name,
            place="",
            rule=f"the file has more than {_MOST_CHARACTERS} characters",
            remedy="name the right file; all settings together need a hundredth of that",
        )
    return text
