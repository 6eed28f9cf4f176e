"""Rules of names and metadata, and Kubernetes' words for a violation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object

_MOST_LABEL, _MOST_SUBDOMAIN = 63, 253
_END = "and must start and end with an alphanumeric character"


class _Rule:
    """A pattern, a length, and the message for a text that does not match."""

    __slots__ = ("_most", "_pattern", "words")

    def __init__(self, pattern: str, most: int, words: str) -> None:
        self._pattern = re.compile(pattern, re.ASCII)
        self._most = most
        self.words = f"{words}, regex used for validation is '{pattern}')"

    def broken(self, text: str) -> list[str]:
        wrong = []
        if len(text.encode()) > self._most:
            wrong.append(f"must be no more than {self._most} bytes")
        if self._pattern.fullmatch(text) is None:
            wrong.append(self.words)
        return wrong


_LABEL = _Rule(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    _MOST_LABEL,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    f"{_END} (e.g. 'my-name',  or '123-abc'",
)
_SUBDOMAIN = _Rule(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    _MOST_SUBDOMAIN,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
    f"or '.', {_END} (e.g. 'example.com'",
)
_VALUE = _Rule(
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    _MOST_LABEL,
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    f"'.', {_END} (e.g. 'MyValue',  or 'my_value',  or '12345'",
)
_QUALIFIED = _Rule(
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    _MOST_LABEL,
    f"must consist of alphanumeric characters, '-', '_' or '.', {_END} (e.g. 'MyName',  or "
    "'my.name',  or '123-abc'",
)
_KEY = _Rule(
    r"[-._a-zA-Z0-9]+",
    _MOST_SUBDOMAIN,
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name'",
)


def label(text: str) -> list[str]:
    """Return what is wrong with a DNS label."""
    if "." in text and not subdomain(text):
        return ["must not contain dots"]
    return _LABEL.broken(text)


def subdomain(text: str) -> list[str]:
    """Return what is wrong with a DNS name."""
    return _SUBDOMAIN.broken(text)


def path_segment(text: str) -> list[str]:
    """Return what is wrong with a name that may have any letters but is part of a path."""
    if text in {".", ".."}:
        return [f"may not be '{text}'"]
    return [f"may not contain '{letter}'" for letter in "/%" if letter in text]


def label_value(text: str) -> list[str]:
    """Return what is wrong with the value of a label."""
    return _VALUE.broken(text)


def qualified(text: str) -> list[str]:
    """Return what is wrong with a key of labels, annotations and the like."""
    prefix, *rest = text.split("/")
    if len(rest) > 1:
        more = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_QUALIFIED.words} {more}"]
    wrong: list[str] = []
    if rest:
        problems = subdomain(prefix) if prefix else ["must be non-empty"]
        wrong += [f"prefix part {each}" for each in problems]
    name = rest[0] if rest else prefix
    if not name:
        wrong.append("name part must be non-empty")
    return wrong + [f"name part {each}" for each in _QUALIFIED.broken(name)]


def data_key(text: str) -> list[str]:
    """Return what is wrong with a key of a config map or a secret."""
    if text in {".", ".."}:
        return [f"must not be '{text}'"]
    return _KEY.broken(text)


def variable(text: str) -> list[str]:
    """Return what is wrong with the name of an environment variable."""
    if text and "=" not in text and all(" " <= letter <= "~" for letter in text):
        return []
    words = "must consist only of printable ASCII characters other than '='"
    return [f"a valid environment variable name {words}"]


_LONGEST = 1024


class Cause(msgspec.Struct, frozen=True):
    field: str
    reason: str
    message: str


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", _message("Required value", why))


def invalid(field: str, value: Any, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, "field is immutable")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", _message("Forbidden", why))


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def too_long(field: str, most: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    known = ", ".join(json.dumps(each) for each in supported)
    message = f"Unsupported value: {_shown(value)}: supported values: {known}"
    return Cause(field, "FieldValueNotSupported", message)


def _message(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


MOST_ANNOTATIONS = 256 * 1024
_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_RBAC = "rbac.authorization.k8s.io"
_NAME_RULES: dict[tuple[str, str], Callable[[str], list[str]]] = {
    ("", "Namespace"): label,
    ("", "Service"): label,
    (_RBAC, "Role"): path_segment,
    (_RBAC, "ClusterRole"): path_segment,
    (_RBAC, "RoleBinding"): path_segment,
    (_RBAC, "ClusterRoleBinding"): path_segment,
}


def check(kind: Kind, metadata: Object, old: Object | None) -> Iterator[Cause]:
    """Yield what is wrong with an object's metadata; `old` is the metadata it replaces."""
    yield from _name(kind, metadata)
    yield from labels(metadata.get("labels") or {}, "metadata.labels")
    yield from _annotations(metadata.get("annotations") or {})
    for place, finalizer in enumerate(metadata.get("finalizers") or ()):
        for wrong in qualified(finalizer):
            yield invalid("metadata.finalizers", finalizer, wrong)
        if "/" not in finalizer and finalizer not in _FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"metadata.finalizers[{place}]", finalizer, why)
    yield from _owners(metadata.get("ownerReferences") or ())
    if old is not None:
        yield from _changes(metadata, old)


def _name(kind: Kind, metadata: Object) -> Iterator[Cause]:
    rule = _NAME_RULES.get((kind.group, kind.kind), subdomain)
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if prefix:
        # What is appended never ends in a dash.
        shown = prefix[:-1] + "a" if prefix[-1] in "-." else prefix
        for wrong in rule(shown):
            yield invalid("metadata.generateName", prefix, wrong)
    if not name:
        yield required("metadata.name", "name or generateName is required")
        return
    for wrong in rule(name):
        yield invalid("metadata.name", name, wrong)


def labels(found: Mapping[str, str], field: str) -> Iterator[Cause]:
    """Yield what is wrong with labels."""
    for key, value in found.items():
        for wrong in qualified(key):
            yield invalid(field, key, wrong)
        for wrong in label_value(value):
            yield invalid(field, value, wrong)


def _annotations(found: Mapping[str, str]) -> Iterator[Cause]:
    size = 0
    for key, value in found.items():
        for wrong in qualified(key.lower()):
            yield invalid("metadata.annotations", key, wrong)
        size += len(key.encode()) + len(value.encode())
    if size > MOST_ANNOTATIONS:
        yield too_long("metadata.annotations", MOST_ANNOTATIONS)


def _owners(owners: Any) -> Iterator[Cause]:
    controllers = []
    for owner in owners:
        field = "metadata.ownerReferences"
        for part, why in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(part):
                yield invalid(f"{field}.{part}", owner.get(part, ""), why)
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        yield invalid(
            "metadata.ownerReferences",
            controllers,
            'Only one reference can have Controller set to true. Found "true" in references for '
            + " and ".join(controllers),
        )


def _changes(metadata: Object, old: Object) -> Iterator[Cause]:
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        if metadata.get(field) != old.get(field):
            yield immutable(f"metadata.{field}", metadata.get(field, ""))
    if old.get("deletionTimestamp"):
        before = old.get("finalizers") or ()
        added = [each for each in metadata.get("finalizers") or () if each not in before]
        if added:
            listed = ", ".join(f'"{each}"' for each in added)
            yield forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{listed}}}",
            )
