"""Every setting of a process as one row: flag, environment, key in the file, meaning.

The rows are made from the fields of the process's settings; what a field cannot say for itself
stands here (HAMi's spelling, names of variables that others set) and beside the command (the help:
`hami.cli.scheduler_flags`, `hami.cli.webhook_flags`). `hami.cli.flags` reads all three sources
through these rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from hami.cli import errors


class Kind(enum.Enum):
    """What a value is, as help shows it."""

    TEXT = "TEXT"
    SWITCH = "true|false"
    WHOLE = "NUMBER"
    NUMBER = "AMOUNT"
    #: In seconds once read; written as Go does.
    DURATION = "DURATION"
    #: A duration for which a bare number of seconds will do: HAMi has it that way.
    SECONDS = "SECONDS"


class Flag(msgspec.Struct, frozen=True):
    """One setting, and the names under which it can be given."""

    field: str
    group: str
    help: str
    kind: Kind
    default: str | bool | int | float
    #: As HAMi writes it, without dashes in front.
    spelling: str
    #: The first that is set counts.
    environment: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name with `-` throughout: in the file, and to compare by."""
        return self.field.replace("_", "-")


Source = Iterator[tuple[Flag, str, object]]
"""The settings that a source gives: row, name in errors, value as it came."""

#: HAMi writes these with underscores.
_UNDERSCORED = frozenset(("http_bind", "cert_file", "key_file"))

_KINDS = {"kube_qps": Kind.NUMBER, "kube_timeout": Kind.SECONDS}
_KIND_OF = {"str": Kind.TEXT, "bool": Kind.SWITCH, "int": Kind.WHOLE, "float": Kind.DURATION}

#: Variables that are set for other reasons too, or that HAMi reads.
_MORE_ENVIRONMENT = {
    "disable_health_checks": "DP_DISABLE_HEALTHCHECKS",
    "enable_health_checks": "DP_ENABLE_HEALTHCHECKS",
    "kubeconfig": "KUBECONFIG",
    "mig_strategy": "MIG_STRATEGY",
    "node_name": "NODE_NAME",
    "node_lock_timeout": "HAMI_NODELOCK_EXPIRE",
    "pod_name": "POD_NAME",
    "pod_namespace": "POD_NAMESPACE",
}

S = TypeVar("S", bound=msgspec.Struct)
S_contra = TypeVar("S_contra", bound=msgspec.Struct, contravariant=True)

Failure = Callable[[str, str, str], errors.UsageError]
"""Builds the error about a field from its rule and remedy."""

Check = Callable[[S_contra, Failure], None]
"""Raises the error of the first rule broken."""


class Table(Generic[S]):
    """The settings of one command."""

    def __init__(
        self,
        settings: type[S],
        *,
        description: str,
        help: Mapping[str, Mapping[str, str]],  # noqa: A002 - what it is everywhere else
        checks: Sequence[Check[S]],
    ) -> None:
        self.settings = settings
        #: With {prog} for the command as it was called.
        self.description = description
        #: What must hold, in this order.
        self.checks = checks
        fields = {field.name: field for field in msgspec.structs.fields(settings)}
        rows = (
            _row(fields[name], group=group, text=text)
            for group, texts in help.items()
            for name, text in texts.items()
        )
        #: By key, in the order of the help.
        self.flags: Mapping[str, Flag] = {row.key: row for row in rows}


def _row(field: msgspec.structs.FieldInfo, *, group: str, text: str) -> Flag:
    name = field.name
    more = _MORE_ENVIRONMENT.get(name)
    return Flag(
        field=name,
        group=group,
        help=text,
        kind=_KINDS.get(name) or _KIND_OF[field.type.__name__],
        default=field.default,
        spelling=name if name in _UNDERSCORED else name.replace("_", "-"),
        environment=(f"HAMI_{name.upper()}", *((more,) if more else ())),
    )
