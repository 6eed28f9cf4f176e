"""Bytes of watched objects to what we keep of them.

In a large cluster few pods have a GPU. A pod whose bytes name nothing that we look for is never
decoded: two words of it are read, and it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hami.kube import raw
from hami.kube.sink import Decode, Ignored
from hami.wire import codec, objects

T = TypeVar("T")


def pods_with(needles: Iterable[str]) -> Decode[objects.Pod]:
    """Return a decoder that ignores pods in whose JSON none of these texts stands."""
    wanted = tuple(needle.encode() for needle in needles)

    def decode(body: bytes) -> objects.Pod | Ignored:
        if raw.mentions(body, wanted):
            return codec.decode(body, objects.Pod, what="pod")
        return Ignored(*raw.meta(body))

    return decode


def all_of(kind: type[T], what: str) -> Callable[[bytes], T]:
    """Return a decoder that keeps everything."""

    def decode(body: bytes) -> T:
        return codec.decode(body, kind, what=what)

    return decode
