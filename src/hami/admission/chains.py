"""What comes after a MIG profile that the cluster does not have.

A chain is a list of profiles, the largest first; behind its last one there is always the GPU
itself. The built-in chains are those of NVIDIA's own profiles; a file replaces them all. A profile
has one successor, whatever chain it is found in, so that the answer never depends on their order.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.vendors import section, text_file, yaml_text
from hami.vendors.errors import ConfigError
from hami.wire import errors, mig_profile
from hami.wire.mig_profile import Profile

#: By product; the first is the chain of the webhook that this one follows.
BUILT_IN: Mapping[str, Sequence[str]] = {
    "first": ("3g.30gb", "2g.20gb", "1g.10gb"),
    "A100 40 GB": ("7g.40gb", "4g.20gb", "3g.20gb", "2g.10gb", "1g.5gb"),
    "A100 and H100 80 GB": ("7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.10gb"),
    "H100 94 GB": ("7g.94gb", "4g.47gb", "3g.47gb", "2g.24gb", "1g.12gb"),
    "H100 96 GB": ("7g.96gb", "4g.48gb", "3g.48gb", "2g.24gb", "1g.12gb"),
    "H200": ("7g.141gb", "4g.71gb", "3g.71gb", "2g.35gb", "1g.18gb"),
    "B200": ("7g.180gb", "4g.90gb", "3g.90gb", "2g.45gb", "1g.23gb"),
}

_KEYS = ("profile", "memory", "cores")
_EXAMPLE = "write for example\nchains:\n- [3g.40gb, 2g.20gb, 1g.10gb]"


class Chains(msgspec.Struct, frozen=True):
    """Every profile of every chain."""

    profiles: Mapping[str, Profile]
    #: Name of the profile to try next; the last of a chain has none.
    next: Mapping[str, str]

    def after(self, name: str) -> Iterable[Profile]:
        """Yield what is tried in place of a profile, in that order, up to the GPU itself."""
        while name in self.next:
            name = self.next[name]
            yield self.profiles[name]


def built_in() -> Chains:
    chains = [[mig_profile.parse(name) for name in names] for names in BUILT_IN.values()]
    return _joined(chains, source="built-in chains")


def load(path: str | os.PathLike[str]) -> Chains:
    """Read the file with the cluster's own chains."""
    return parse(
        text_file.read(path, remedy="check --mig-fallback-file and the mount of the ConfigMap"),
        source=os.fspath(path),
    )


def parse(text: str, *, source: str) -> Chains:
    """Check the text of a file of chains; `source` names it in errors."""
    data = yaml_text.load(text, source=source)
    if not isinstance(data, dict) or set(data) != {"chains"}:
        rule = "the file must hold one key, chains"
        raise ConfigError(source=source, place="", rule=rule, remedy=_EXAMPLE)
    given = data["chains"]
    if not isinstance(given, list) or not given:
        raise ConfigError(
            source=source,
            place="chains",
            value=given,
            rule="must be a list of at least one chain",
            remedy=_EXAMPLE,
        )
    chains = [_chain(chain, source, f"chains[{place}]") for place, chain in enumerate(given)]
    return _joined(chains, source=source)


def _chain(given: object, source: str, place: str) -> list[Profile]:
    if not isinstance(given, list) or not given:
        rule = "must be a list of profiles, the largest first"
        raise ConfigError(source=source, place=place, value=given, rule=rule, remedy=_EXAMPLE)
    return [_profile(item, source, f"{place}[{position}]") for position, item in enumerate(given)]


def _profile(given: object, source: str, place: str) -> Profile:
    try:
        if isinstance(given, str):
            return mig_profile.parse(given.strip())
        entry = section.Section(given, source=source, path=place)
        base = mig_profile.parse(entry.text("profile", ""))
    except errors.WireError as error:
        raise ConfigError(
            source=source, place=place, value=given, rule=error.rule, remedy=error.remedy
        ) from error
    profile = Profile(
        name=base.name,
        memory=entry.whole("memory", base.memory, low=1),
        cores=entry.whole("cores", base.cores, low=1, high=100),
    )
    unknown = [key for key in given if key not in _KEYS] if isinstance(given, dict) else []
    if unknown:
        raise ConfigError(
            source=source,
            place=f"{place}.{unknown[0]}",
            rule=f"no such key{section.nearest(unknown[0], _KEYS)}",
            remedy="an entry has profile, and if you like memory (MiB) and cores (percent)",
        )
    return profile


def _joined(chains: Iterable[Sequence[Profile]], *, source: str) -> Chains:
    profiles: dict[str, Profile] = {}
    following: dict[str, str] = {}
    last: list[str] = []
    for chain in chains:
        seen: set[str] = set()
        for profile in chain:
            known = profiles.setdefault(profile.name, profile)
            if known != profile:
                rule = "is given two different shares"
                remedy = "give memory and cores once, or the same everywhere"
                raise _error(source, profile.name, rule, remedy)
            if profile.name in seen:
                rule = "comes after itself"
                raise _error(source, profile.name, rule, "name each profile once in a chain")
            seen.add(profile.name)
        for upper, lower in itertools.pairwise(chain):
            if following.setdefault(upper.name, lower.name) != lower.name:
                rule = "is followed by different profiles in two chains"
                remedy = "let each profile have one successor everywhere"
                raise _error(source, upper.name, rule, remedy)
        last.append(chain[-1].name)
    # With these gone there is no circle either: the last of a chain on it would go on.
    for name in last:
        if name in following:
            rule = "ends one chain, and goes on in another"
            raise _error(source, name, rule, "let each profile have one successor everywhere")
    return Chains(profiles, following)


def _error(source: str, name: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError(source=source, place="chains", value=name, rule=rule, remedy=remedy)
