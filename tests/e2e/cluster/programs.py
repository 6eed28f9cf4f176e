"""Paths of the parts inside a machine: the cache, read-only, in one folder."""

from __future__ import annotations

import functools

from tests.e2e.parts import catalogue
from tests.e2e.parts.cache import Part

FOLDER = "/opt/parts"


def inside(part: Part) -> str:
    return f"{FOLDER}/{part.folder_name}"


@functools.cache
def search_path() -> str:
    """Give a PATH with the newest of everything but containerd: its two are named in full."""
    parts = (catalogue.kubernetes(), catalogue.etcd(), catalogue.kwok(), catalogue.client_tools())
    return ":".join([*map(inside, parts), "/usr/sbin", "/usr/bin"])
