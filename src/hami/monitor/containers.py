"""Containers of this node that have a share of a card, and what they were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

#: Percent of a card's time: all of it, which is no limit.
WHOLE = 100


class Share(msgspec.Struct, frozen=True):
    """What a container may have of one card."""

    uuid: str
    #: Bytes; 0 is no limit.
    memory_limit: int
    #: Percent; 100 is no limit.
    core_limit: int = WHOLE


class Key(msgspec.Struct, frozen=True, order=True):
    """A container; another pod of the same name is another container."""

    uid: str
    container: str


class Container(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    namespace: str
    pod: str
    #: In the order in which the container sees its cards.
    shares: tuple[Share, ...]
    tokens: tuple[str, ...]
    #: Whether its processes are under the limiter; not so with whole cards, nor with an exemption.
    limited: bool
    #: Nanoseconds; of two that Prometheus would take for one, the younger counts.
    since: int = 0

    def share(self, uuid: str) -> tuple[int, Share] | None:
        """Return a card's place and share."""
        for place, share in enumerate(self.shares):
            if share.uuid == uuid:
                return place, share
        return None


class Containers:
    """Those that the agent has prepared, by what leads to them."""

    def __init__(self, found: Iterable[Container]) -> None:
        self.by_key: dict[Key, Container] = {}
        self.by_token: dict[str, Container] = {}
        self.by_uid: dict[str, list[Container]] = {}
        for container in sorted(found, key=lambda each: each.since):
            had = self.by_key.get(container.key)
            # kubelet may have asked twice for one container: it has one state for each token.
            tokens = container.tokens + (had.tokens if had else ())
            self.by_key[container.key] = msgspec.structs.replace(container, tokens=tokens)
        for container in self.by_key.values():
            self.by_uid.setdefault(container.key.uid, []).append(container)
            for token in container.tokens:
                self.by_token[token] = container

    def __iter__(self) -> Iterator[Container]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)
