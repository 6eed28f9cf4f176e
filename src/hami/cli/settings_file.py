"""The file of `--config`: settings as YAML, under the names of their flags.

A key that nobody knows is an error, not a warning: the file is ours alone, and a misspelt setting
that is silently left at its default is found weeks later.
"""

from __future__ import annotations

import pathlib

from hami.cli import flag_table
from hami.vendors import errors as vendor_errors
from hami.vendors import section, yaml_text

_MOST_CHARACTERS = 64 * 1024


def entries(name: str) -> flag_table.Source:
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
        flag = flag_table.flags().get(str(key).replace("_", "-"))
        if flag is None:
            hint = section.nearest(key, flag_table.flags())
            raise vendor_errors.ConfigError(
                source=name,
                place=str(key),
                rule=f"no such setting{hint}",
                remedy="the keys are the flags of `hami scheduler --help`, but for --config",
            )
        if value is not None:
            yield flag, f"{name}: {key}", value


def _text(name: str) -> str:
    try:
        with pathlib.Path(name).open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise vendor_errors.ConfigError(
            source=name,
            place="",
            rule=f"the file cannot be read: {told}",
            remedy="check the path given by --config, and the file's permissions",
        ) from error
    if len(text) > _MOST_CHARACTERS:
        raise vendor_errors.ConfigError(
            source=name,
            place="",
            rule=f"the file has more than {_MOST_CHARACTERS} characters",
            remedy="is this the right file? All settings together need a hundredth of that",
        )
    return text
