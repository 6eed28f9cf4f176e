"""Objects for the doors to read, kept in a dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hami_sandbox.apiserver import kinds

Object = dict[str, Any]

_uids = itertools.count(1)


class MemoryView:
    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str, str], Object] = {}

    def put(self, resource: str, content: Object, *, group: str = "") -> Object:
        """Keep an object, with a UID of its own."""
        kind = kinds.find(group, "v1", resource)
        assert kind is not None
        metadata = content["metadata"]
        metadata.setdefault("uid", f"uid-{next(_uids)}")
        content |= {"apiVersion": kind.api_version, "kind": kind.kind}
        self._objects[group, resource, metadata.get("namespace", ""), metadata["name"]] = content
        return content

    def remove(self, resource: str, namespace: str, name: str, *, group: str = "") -> None:
        del self._objects[group, resource, namespace, name]

    def find(self, group: str, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((group, resource, namespace, name))

    def all(self, group: str, resource: str, namespace: str = "") -> Iterable[Object]:
        for key, content in sorted(self._objects.items(), key=lambda item: item[0]):
            if key[:2] == (group, resource) and namespace in {"", key[2]}:
                yield content
