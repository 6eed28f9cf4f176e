"""What the runtime has, by pod: read anew when something changes, and everybody told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import NoReturn

from hami_sandbox.kubelet import attempts
from hami_sandbox.kubelet.attempts import Attempt, History
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.states import UnknownContainerError

_LOOK_EVERY_S = 2.0
#: Many containers change at once: they are read together.
_GATHER_S = 0.02


class ContainersView:
    def __init__(self, runtime: Runtime, *, on_change: Callable[[str], None]) -> None:
        self._runtime = runtime
        #: Called with the UID of each pod whose containers have changed.
        self._on_change = on_change
        #: By pod UID and the runtime's id.
        self._attempts: dict[str, dict[str, Attempt]] = {}
        self._pods: dict[str, dict[str, History]] = {}

    def of(self, uid: str) -> dict[str, History]:
        return self._pods.get(uid, {})

    def uids(self) -> frozenset[str]:
        """Return the pods of which the runtime has containers."""
        return frozenset(self._pods)

    def refresh(self) -> None:
        """Look at all containers."""
        found: dict[str, dict[str, Attempt]] = {}
        for state in self._runtime.list():
            found.setdefault(state.spec.pod_uid, {})[state.spec.id] = attempts.of(state)
        before, self._attempts = self._attempts, found
        self._tell(uid for uid in before.keys() | found if before.get(uid) != found.get(uid))

    def look_at(self, uid: str, container: str) -> None:
        """Look at one container of a pod, by the runtime's id."""
        held = self._attempts.setdefault(uid, {})
        before = held.get(container)
        try:
            now = attempts.of(self._runtime.state(container))
        except UnknownContainerError:
            held.pop(container, None)
        else:
            held[container] = now
        if held.get(container) != before:
            self._tell([uid])
        if not held:
            del self._attempts[uid]

    async def run(self) -> NoReturn:
        """Follow the runtime for ever."""
        while True:
            # Now and then without being told: what ended while nobody followed it says nothing.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._runtime.wait_change()
            await asyncio.sleep(_GATHER_S)
            self.refresh()

    def _tell(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            if held := self._attempts.get(uid):
                self._pods[uid] = attempts.histories(held.values())
            else:
                self._pods.pop(uid, None)
            self._on_change(uid)
