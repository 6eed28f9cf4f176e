"""Bytes of watched objects to what we keep of them.

In a large cluster few pods have a GPU. A pod whose bytes name neither one of our resources nor one
of our device lists is never decoded: two words of it are read, and it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hami.kube import raw
from hami.kube.sink import Decode, Ignored
from hami.vendors.row import Vendor
from hami.wire import codec, objects

T = TypeVar("T")


def pods(vendors: Iterable[Vendor]) -> Decode[objects.Pod]:
    """Return a decoder that ignores pods without anything of ours."""
    needles = tuple(
        f'"{word}"'.encode()
        for vendor in vendors
        for word in (vendor.resources.count, vendor.annotations.allocated)
        if word
    )

    def decode(body: bytes) -> objects.Pod | Ignored:
        if raw.mentions(body, needles):
            return codec.decode(body, objects.Pod, what="pod")
        return Ignored(*raw.meta(body))

    return decode


def all_of(kind: type[T], what: str) -> Callable[[bytes], T]:
    """Return a decoder that keeps everything."""

    def decode(body: bytes) -> T:
        return codec.decode(body, kind, what=what)

    return decode
