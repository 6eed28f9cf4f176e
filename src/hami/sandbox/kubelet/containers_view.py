"""What the runtime has, by pod: read anew when something changes, and everybody told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from hami.sandbox.containers.runtime import Runtime
from hami.sandbox.kubelet import attempts
from hami.sandbox.kubelet.attempts import Attempt, History

_LOOK_EVERY_S = 2.0


class ContainersView:
    def __init__(self, runtime: Runtime, *, on_change: Callable[[str], None]) -> None:
        self._runtime = runtime
        #: Called with the UID of each pod whose containers have changed.
        self._on_change = on_change
        self._pods: dict[str, dict[str, History]] = {}

    def of(self, uid: str) -> dict[str, History]:
        return self._pods.get(uid, {})

    def uids(self) -> frozenset[str]:
        """Return the pods of which the runtime has containers."""
        return frozenset(self._pods)

    def refresh(self) -> None:
        grouped: dict[str, list[Attempt]] = {}
        for state in self._runtime.list():
            grouped.setdefault(state.spec.pod_uid, []).append(attempts.of(state))
        found = {uid: attempts.histories(of_pod) for uid, of_pod in grouped.items()}
        before, self._pods = self._pods, found
        for uid in before.keys() | found.keys():
            if before.get(uid) != found.get(uid):
                self._on_change(uid)

    async def run(self) -> NoReturn:
        """Follow the runtime for ever."""
        while True:
            # Now and then without being told: what ended while nobody followed it says nothing.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._runtime.wait_change()
            self.refresh()
