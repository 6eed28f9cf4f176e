"""The file of `--config`: settings as YAML, under the names of their flags.

A key that nobody knows is an error, not a warning: the file is ours alone, and a misspelt setting
that is silently left at its default is found weeks later.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.cli.flag_table import Flag, Source
from hami.vendors import errors as vendor_errors
from hami.vendors import section, text_file, yaml_text

_MOST_CHARACTERS = 64 * 1024


def entries(name: str, flags: Mapping[str, Flag], *, prog: str) -> Source:
    """Yield what the file says; raises ConfigError for a file that cannot be used."""
    if not name:
        return
    data = yaml_text.load(_text(name), source=name)
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
            hint = section.nearest(key, flags)
            raise vendor_errors.ConfigError(
                source=name,
                place=str(key),
                rule=f"no such setting{hint}",
                remedy=f"the keys are the flags of `{prog} --help`, but for --config",
            )
        if value is not None:
            yield flag, f"{name}: {key}", value


def _text(name: str) -> str:
    text = text_file.read(
        name,
        remedy="check the path given by --config, and the file's permissions",
        longest=_MOST_CHARACTERS,
    )
    if len(text) > _MOST_CHARACTERS:
        raise vendor_errors.ConfigError(
            source=name,
            place="",
            rule=f"the file has more than {_MOST_CHARACTERS} characters",
            remedy="is this the right file? All settings together need a hundredth of that",
        )
    return text
