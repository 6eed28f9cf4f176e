"""Sections of device-config.yaml: the keys that each may hold, and their kinds.

The tables have the keys of HAMi 2.8, 2.9 and 2.10, so that a file of each is accepted as it is. A
section is checked whether a family serves its vendor or not: what is wrong today would otherwise
come to light on the day when the vendor is served. A key that is in no table is an error; HAMi
ignores it, and what its author wanted with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from hami.vendors.config_file import ConfigError, Section, nearest

#: Reads the value of a key, and raises ConfigError where it breaks the rule of its kind.
Kind = Callable[[Section, str], object]
Keys = Mapping[str, Kind]

#: It is a part of annotation keys, which have at most 63 characters after the slash.
_WORD = re.compile(r"[A-Za-z0-9](?:[-._A-Za-z0-9]{0,30}[A-Za-z0-9])?")


def _resource(section: Section, key: str) -> object:
    return section.resource(key, "")


def _switch(section: Section, key: str) -> object:
    return section.switch(key, default=False)


def _whole(section: Section, key: str) -> object:
    return section.whole(key, 0)


def _text(section: Section, key: str) -> object:
    return section.text(key, "")


def _object_name(section: Section, key: str) -> object:
    return section.object_name(key)


def _word(section: Section, key: str) -> object:
    word = section.text(key, "")
    if not _WORD.fullmatch(word):
        raise section.error(
            key,
            "must be 1 to 32 letters, digits, - _ and ., with a letter or digit at both ends",
            "write the vendor's own name of these cards, as MR-V100 or Ascend910B3",
        )
    return word


def _templates(section: Section, key: str) -> object:
    entries = section.sections(key)
    for entry in entries:
        check(entry, TEMPLATE)
        if not entry.text("name", ""):
            raise entry.error("name", "must not be empty", "write the template's name, as vir02")
    return entries


WORD = "commonWord"

TEMPLATE: Keys = {"name": _text, "memory": _whole, "aiCore": _whole, "aiCPU": _whole}

#: Keys of a vendor that needs no others, also of one that a row adds.
PLAIN: Keys = {
    "resourceCountName": _resource,
    "resourceMemoryName": _resource,
    "resourceCoreName": _resource,
}
_MEMORY_FACTOR: Keys = {"memoryFactor": _whole}

#: One mapping of keys to values each.
MAPPINGS: Mapping[str, Keys] = {
    "cambricon": PLAIN,
    "hygon": {**PLAIN, **_MEMORY_FACTOR},
    "metax": {
        "resourceCountName": _resource,
        "resourceVCountName": _resource,
        "resourceVMemoryName": _resource,
        "resourceVCoreName": _resource,
        "sgpuTopologyAware": _switch,
    },
    "enflame": {
        "resourceNameGCU": _resource,
        "resourceNameDRSGCU": _resource,
        "resourceNameGCUMemory": _resource,
        "resourceNameGCUCore": _resource,
        "resourceNameVGCU": _resource,
        "resourceNameVGCUPercentage": _resource,
    },
    "mthreads": PLAIN,
    "kunlun": {
        "resourceCountName": _resource,
        "resourceVCountName": _resource,
        "resourceVMemoryName": _resource,
    },
    "awsneuron": {"resourceCountName": _resource, "resourceCoreName": _resource},
    "amd": PLAIN,
    "vastai": {"resourceCountName": _resource},
    "biren": {"resourceCountName": _resource},
}

#: A list of entries each, one for every kind of card.
LISTS: Mapping[str, Keys] = {
    "iluvatars": {WORD: _word, "chipName": _text, **PLAIN},
    "vnpus": {
        WORD: _word,
        "chipName": _text,
        "resourceName": _resource,
        "resourceMemoryName": _resource,
        "resourceCoreName": _resource,
        "memoryAllocatable": _whole,
        "memoryCapacity": _whole,
        **_MEMORY_FACTOR,
        "aiCore": _whole,
        "aiCPU": _whole,
        "runtimeClassName": _object_name,
        "overwriteEnv": _switch,
        "superPod": _switch,
        "templates": _templates,
    },
}

#: From HAMi 2.9 on this list is below `configs`, beside keys for all its entries.
_WRAPPED: Mapping[str, tuple[str, Keys]] = {"vnpus": ("configs", {"hamiVnpuCore": _switch})}

#: Every section, in HAMi's order.
NAMES = ("nvidia", *MAPPINGS, *LISTS)


def check(section: Section, keys: Keys) -> None:
    """Read every key by its kind; one that is not among them is an error."""
    for key, kind in keys.items():
        kind(section, key)
    section.refuse_unknown()


def resource_keys(name: str) -> tuple[str, ...]:
    """Return the keys of a section, or of its entries, that name resources."""
    keys = MAPPINGS.get(name) or LISTS.get(name) or PLAIN
    return tuple(key for key, kind in keys.items() if kind is _resource)


def read(
    name: str, data: object, *, source: str, resources: Iterable[str] = ()
) -> tuple[Section, ...]:
    """Check a section; return it, or its entries where it is a list of them.

    A section that is in no table has the usual keys, and for resources those that its rows name.
    """
    if name in LISTS:
        return _entries(name, data, source=source)
    section = Section(data, source=source, path=name)
    added = {**PLAIN, **_MEMORY_FACTOR, **dict.fromkeys(resources, _resource)}
    check(section, MAPPINGS.get(name, added))
    return (section,)


def _entries(name: str, data: object, *, source: str) -> tuple[Section, ...]:
    """Check a list of entries, each with a word of its own."""
    if name in _WRAPPED and not isinstance(data, list):
        key, beside = _WRAPPED[name]
        whole = Section(data, source=source, path=name)
        entries = whole.sections(key)
        check(whole, beside)
    else:
        entries = Section({name: data}, source=source, path="").sections(name)
    words: set[object] = set()
    for entry in entries:
        check(entry, LISTS[name])
        word = entry.text(WORD, "")
        if word in words:
            raise entry.error(
                WORD, "names a second entry of this list", "write one entry for each word"
            )
        words.add(word)
    return entries


def refuse_unknown(data: Mapping[object, object], *, known: tuple[str, ...], source: str) -> None:
    """Raise the error about the first section that is not known."""
    for name in data:
        remedy = f"sections are {', '.join(known)}"
        if not isinstance(name, str):
            rule = "is not a section's name"
            raise ConfigError(source=source, place="", value=name, rule=rule, remedy=remedy)
        if name not in known:
            rule = f"no such section{nearest(name, known)}"
            raise ConfigError(source=source, place=name, rule=rule, remedy=remedy)
