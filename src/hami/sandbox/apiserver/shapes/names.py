"""Which names are allowed where, and the words for those that are not."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_QUALIFIED})?"
_KEY = r"[-._a-zA-Z0-9]+"
_MOST_LABEL, _MOST_SUBDOMAIN = 63, 253
_END = "and must start and end with an alphanumeric character"


def label(text: str) -> list[str]:
    """Return what is wrong with a DNS label."""
    if "." in text and not subdomain(text):
        return ["must not contain dots"]
    words = (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        f"{_END} (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
    )
    return _wrong(text, _LABEL, words, _MOST_LABEL)


def subdomain(text: str) -> list[str]:
    """Return what is wrong with a DNS name."""
    words = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        f"or '.', {_END} (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
    )
    return _wrong(text, _SUBDOMAIN, words, _MOST_SUBDOMAIN)


def path_segment(text: str) -> list[str]:
    """Return what is wrong with a name that may have any letters but is part of a path."""
    if text in {".", ".."}:
        return [f"may not be '{text}'"]
    return [f"may not contain '{letter}'" for letter in "/%" if letter in text]


def label_value(text: str) -> list[str]:
    """Return what is wrong with the value of a label."""
    words = (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
        f"'.', {_END} (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
        "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
    )
    return _wrong(text, _VALUE, words, _MOST_LABEL)


def qualified(text: str) -> list[str]:
    """Return what is wrong with a key of labels, annotations and the like."""
    parts = text.split("/")
    words = (
        f"must consist of alphanumeric characters, '-', '_' or '.', {_END} (e.g. 'MyName',  or "
        f"'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
    )
    wrong: list[str] = []
    if len(parts) > 2:  # noqa: PLR2004 - a prefix and a name
        more = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {words} {more}"]
    if len(parts) > 1:
        told = subdomain(parts[0]) if parts[0] else ["must be non-empty"]
        wrong += [f"prefix part {each}" for each in told]
    name = parts[-1]
    if not name:
        wrong.append("name part must be non-empty")
    return wrong + [f"name part {each}" for each in _wrong(name, _QUALIFIED, words, _MOST_LABEL)]


def data_key(text: str) -> list[str]:
    """Return what is wrong with a key of a config map or a secret."""
    if text in {".", ".."}:
        return [f"must not be '{text}'"]
    words = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
        f"'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY}')"
    )
    return _wrong(text, _KEY, words, _MOST_SUBDOMAIN)


def variable(text: str) -> list[str]:
    """Return what is wrong with the name of an environment variable."""
    if text and "=" not in text and all(" " <= letter <= "~" for letter in text):
        return []
    words = "must consist only of printable ASCII characters other than '='"
    return [f"a valid environment variable name {words}"]


def _wrong(text: str, pattern: str, words: str, most: int) -> list[str]:
    wrong = []
    if len(text.encode()) > most:
        wrong.append(f"must be no more than {most} bytes")
    if re.fullmatch(pattern, text, re.ASCII) is None:
        wrong.append(words)
    return wrong
