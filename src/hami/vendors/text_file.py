"""A file that the user has written, read as text, and never more of it than makes sense."""

from __future__ import annotations

import os
import pathlib

from hami.vendors import errors, yaml_text

#: No character has more than four bytes.
_BYTES_PER_CHARACTER = 4


def read(
    path: str | os.PathLike[str], *, remedy: str, longest: int = yaml_text.MAX_CHARACTERS
) -> str:
    """Return the text; what is longer comes cut to a little more than `longest` characters."""
    source = os.fspath(path)
    most = _BYTES_PER_CHARACTER * longest
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(most + 1)
        # What is cut off may end within a character; it is refused for its length.
        return data.decode("utf-8", "replace" if len(data) > most else "strict")
    except OSError as error:
        raise errors.ConfigError(
            source=source,
            place="",
            rule=f"the file cannot be read: {error.strerror or error}",
            remedy=remedy,
        ) from error
    except UnicodeDecodeError as error:
        raise errors.ConfigError(
            source=source,
            place=f"byte {error.start + 1}",
            rule="the file is not UTF-8 text",
            remedy="save it as UTF-8",
        ) from error
