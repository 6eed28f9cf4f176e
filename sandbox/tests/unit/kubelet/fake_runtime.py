"""A runtime with containers in a table; the test starts and ends them."""

from __future__ import annotations

import asyncio
import time

import msgspec

from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import ContainerSpec, ContainerState, Isolation, Phase
from hami_sandbox.runtime.states import ContainerError, StartError, UnknownContainerError


class FakeRuntime(Runtime):
    """Outlives kubelets, as the disk does."""

    def __init__(self) -> None:
        self.states: dict[str, ContainerState] = {}
        #: What was asked for, in order: the verb and the container's name.
        self.asked: list[tuple[str, str]] = []
        #: By the container's name: what making or starting it fails with.
        self.refuses_create: dict[str, str] = {}
        self.refuses_start: dict[str, str] = {}
        #: Containers, by name, that do not heed SIGTERM.
        self.stubborn: set[str] = set()
        self.graces: dict[str, float] = {}
        self._number = 0
        self._seen = 0
        self._changed = asyncio.Event()

    @property
    def isolation(self) -> Isolation:
        return Isolation.ENVIRONMENT

    @property
    def isolation_reason(self) -> str:
        return "nothing runs"

    async def create(self, spec: ContainerSpec) -> None:
        self.asked.append(("create", spec.name))
        if spec.name in self.refuses_create:
            raise ContainerError(self.refuses_create[spec.name])
        assert spec.id not in self.states, f"{spec.name} is made twice"
        self._set(ContainerState(spec=spec, phase=Phase.CREATED, created_at=time.time()))

    async def start(self, container: str) -> None:
        state = self.state(container)
        self.asked.append(("start", state.spec.name))
        if state.spec.name in self.refuses_start:
            self.end(state.spec.name, 128, reason="StartError")
            raise StartError(self.refuses_start[state.spec.name])
        started = {"phase": Phase.RUNNING, "pid": 1, "started_at": time.time()}
        self._set(msgspec.structs.replace(state, **started))

    async def stop(self, container: str, grace_s: float) -> None:
        state = self.state(container)
        self.asked.append(("stop", state.spec.name))
        self.graces[state.spec.name] = grace_s
        if state.spec.name in self.stubborn:
            await asyncio.sleep(grace_s)
        if self.state(container).phase is Phase.RUNNING:
            self.end(state.spec.name, 143)

    async def remove(self, container: str) -> None:
        if state := self.states.pop(container, None):
            self.asked.append(("remove", state.spec.name))
            self._tell()

    def list(self) -> tuple[ContainerState, ...]:
        return tuple(self.states.values())

    def state(self, container: str) -> ContainerState:
        if container not in self.states:
            raise UnknownContainerError(container)
        return self.states[container]

    async def wait_change(self, seen: int | None = None) -> int:
        while self._number == self._seen:
            await self._changed.wait()
        self._seen = self._number
        return self._seen

    async def close(self) -> None:
        pass

    # The test's half.

    def latest(self, name: str) -> ContainerState:
        found = [state for state in self.states.values() if state.spec.name == name]
        return max(found, key=lambda state: state.spec.attempt)

    def running(self) -> tuple[str, ...]:
        return tuple(sorted(s.spec.name for s in self.states.values() if s.phase is Phase.RUNNING))

    def end(self, name: str, code: int = 0, *, reason: str = "") -> None:
        """Have the container's process end."""
        ended = {"phase": Phase.EXITED, "exit_code": code, "finished_at": time.time()}
        self._set(msgspec.structs.replace(self.latest(name), reason=reason, **ended))

    def _set(self, state: ContainerState) -> None:
        self.states[state.spec.id] = state
        self._tell()

    def _tell(self) -> None:
        self._number += 1
        self._changed.set()
        self._changed = asyncio.Event()
