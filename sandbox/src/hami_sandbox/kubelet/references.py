"""Config maps and secrets that pods refer to, asked for once for a burst of pods."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from hami.kube import errors
from hami.kube.client import Client
from hami.wire import codec
from hami_sandbox.kubelet.environment import Reference, content
from hami_sandbox.kubelet.pod import Object

_PLURALS = {"ConfigMap": "configmaps", "Secret": "secrets"}
#: Seconds for which an answer is believed: a pod made after a change soon sees it.
_FRESH_S = 1.0

Content = dict[str, bytes]


class References:
    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[tuple[str, Reference], tuple[float, Content]] = {}

    async def find(self, namespace: str, wanted: Iterable[Reference]) -> dict[Reference, Content]:
        """Return those that there are."""
        found: dict[Reference, Content] = {}
        for reference in set(wanted):
            held = await self._one(namespace, reference)
            if held is not None:
                found[reference] = held
        return found

    async def _one(self, namespace: str, reference: Reference) -> Content | None:
        now = self._clock()
        self._known = {k: v for k, v in self._known.items() if now - v[0] < _FRESH_S}
        known = self._known.get((namespace, reference))
        if known is not None:
            return known[1]
        parts = ("namespaces", namespace, _PLURALS[reference.kind], reference.name)
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        try:
            body = await self._client.get(f"/api/v1/{path}")
        except errors.NotFound:
            return None
        obj: Object = codec.decode(body, dict[str, Any], what=reference.kind)
        held = content({**obj, "kind": reference.kind})
        self._known[namespace, reference] = now, held
        return held
