"""The one error of everything that reads the user's device-config.yaml.

Its reader is a person with an editor open: the message names the file, the place in it, what
stands there, the rule that this breaks and what to write instead.
"""

from __future__ import annotations

from hami.wire import errors


class ConfigError(ValueError):
    """The configuration breaks a rule; nothing of it is used."""

    def __init__(
        self, *, source: str, place: str, rule: str, remedy: str, value: object = ...
    ) -> None:
        #: The file, as the user named it.
        self.source = source
        #: A key path (`nvidia.defaultMemory`), or line and column; empty: the file as a whole.
        self.place = place
        self.rule = rule
        self.remedy = remedy
        head = f"{source}: {place}" if place else source
        body = rule if value is ... else f"{_as_written(value)} {rule}"
        super().__init__(f"{head}: {body}; {remedy}")


def _as_written(value: object) -> str:
    """Quote a value as YAML spells it rather than as Python does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return errors.shorten(value)
