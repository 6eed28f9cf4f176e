"""Which names are allowed where, and the words for those that are not."""

from __future__ import annotations

import re

_MOST_LABEL, _MOST_SUBDOMAIN = 63, 253
_END = "and must start and end with an alphanumeric character"


class _Rule:
    """A pattern, a length, and what is said of a text that does not fit."""

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
        told = subdomain(prefix) if prefix else ["must be non-empty"]
        wrong += [f"prefix part {each}" for each in told]
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
