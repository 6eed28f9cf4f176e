"""Containers on this machine: create, start, stop, list, remove.

    <folder>/bin              the sandbox's own programs
    <folder>/containers/<id>  a container (`records`)

All state of a container is in its folder, so a new Runtime on the folder has all of them. A shim
beside each container outlives this process. A shim that died without a report is found by its lock
being free: then the rest of its container is killed, and its end is written for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hami_sandbox.runtime import bundles, programs, records, shims, states
from hami_sandbox.runtime import isolation as detection
from hami_sandbox.runtime.cdi import Registry
from hami_sandbox.runtime.spec import ContainerSpec, ContainerState, Isolation, Phase
from hami_sandbox.runtime.states import ContainerError, StartError, UnknownContainerError

_STEP_S = 0.01
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}", re.ASCII)


class Runtime:
    def __init__(
        self, folder: Path, *, cdi_dirs: Sequence[Path | str], lifeline: int | None = None
    ) -> None:
        self.folder = folder
        self._containers = folder / "containers"
        self.cdi_dirs = tuple(Path(each) for each in cdi_dirs)
        self._registry = Registry(self.cdi_dirs)
        self._lifeline = lifeline
        self._found: detection.Found | None = None
        #: States when last read.
        self._known: dict[str, ContainerState] = {}
        self._followed = shims.Followed(self._change)
        self._changes = 0
        self._returned = 0
        self._changed: asyncio.Event = asyncio.Event()

    @property
    def isolation(self) -> Isolation:
        """The containers' isolation; found by a test container at the first call."""
        return self._look().isolation

    @property
    def isolation_reason(self) -> str:
        return self._look().sentence

    def _look(self) -> detection.Found:
        if self._found is None:
            self._found = detection.detect(programs.install(self.folder / "bin"))
        return self._found

    def remove_leftovers(self) -> None:
        """Remove folders that a killed kubelet had begun to create or to remove.

        Not while another kubelet uses the folder.
        """
        for left in self._containers.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    # Operations.

    async def create(self, spec: ContainerSpec) -> None:
        """Create a container; raises UnresolvableError for CDI names without a spec."""
        if not _ID.fullmatch(spec.id):
            raise ContainerError(f'container id "{spec.id}" must match {_ID.pattern}')
        if not spec.argv:
            raise ContainerError("no command specified")
        place = self._place(spec.id)
        if place.exists():
            raise ContainerError(f'container "{spec.id}": already exists')
        edits = self._registry.resolve(spec.cdi_devices)
        bundle = bundles.make(
            spec,
            edits,
            namespaces=self.isolation is Isolation.NAMESPACES,
            root=str(place / records.ROOT),
            bin_folder=self.folder / "bin",
        )
        draft = place.with_name(f".{spec.id}")
        shutil.rmtree(draft, ignore_errors=True)  # of a kubelet that was killed meanwhile
        draft.mkdir(parents=True)
        if bundle.namespaces:
            (draft / records.ROOT).mkdir()
        (draft / records.BUNDLE).write_bytes(bundle.encode())
        (draft / records.SPEC).write_bytes(msgspec.json.encode(spec))
        (draft / records.LOCK).touch()
        draft.rename(place)
        self._change()

    async def start(self, container: str) -> None:
        """Start it; raises StartError, and then its state is exited with 128 and the reason.

        If a killed kubelet was starting it, wait for that start.
        """
        if self.state(container).phase is not Phase.CREATED:
            raise ContainerError(f'container "{container}" was started before')
        if not states.is_starting(self._place(container)):
            status, shim = shims.spawn(self._place(container), self._lifeline)
            self._followed.add(container, shim)
            await shims.end_of(status)
        await self._wait_started(container)
        state = self.state(container)
        self._change()
        if state.reason == StartError.REASON or state.message.startswith(states.DEAD_SHIM):
            raise StartError(state.message)

    async def stop(self, container: str, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL after the grace; returns when it has ended."""
        await self._wait_started(container)
        if grace_s > 0 and self._signal(container, signal.SIGTERM):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._wait_ended(container)
        if self._signal(container, signal.SIGKILL):
            await self._wait_ended(container)

    async def remove(self, container: str) -> None:
        """Remove it; a running one is killed. Does nothing if it is removed already."""
        with contextlib.suppress(UnknownContainerError):
            await self.stop(container, 0)
            await self._wait_shim_ended(container)
            self._remove(self._place(container))
            self._known.pop(container, None)
            self._change()

    def _remove(self, place: Path) -> None:
        records.remove_aside(str(place))
        removed = place.with_name(f".{place.name}.gone")
        shutil.rmtree(removed, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # another task removes it as well
            place.rename(removed)
            shutil.rmtree(removed)

    def list(self) -> tuple[ContainerState, ...]:
        """Return all containers, from disk, the oldest first."""
        found = []
        for place in self._containers.glob("[!.]*"):
            with contextlib.suppress(UnknownContainerError):  # it was removed meanwhile
                found.append(self.state(place.name))
        return tuple(sorted(found, key=lambda state: (state.created_at, state.spec.id)))

    def state(self, container: str) -> ContainerState:
        """Return one container; raises UnknownContainerError."""
        known = self._known.pop(container, None)
        found = self._known[container] = states.read(self._place(container), known)
        return found

    async def wait_change(self, seen: int | None = None) -> int:
        """Wait until a container has changed since change number `seen`; return the number now.

        Without `seen`: since the last such call returned. So one task can loop on it without
        missing anything; several tasks each pass what they were returned.
        """
        since = self._returned if seen is None else seen
        for state in self.list():
            if state.phase is Phase.RUNNING:
                self._follow(state.spec.id)
        while self._changes <= since:
            self._changed.clear()
            await self._changed.wait()
        if seen is None:
            self._returned = self._changes
        return self._changes

    async def close(self) -> None:
        """Close all handles of this process; containers go on."""
        self._followed.close()

    # Helpers.

    def _place(self, container: str) -> Path:
        return self._containers / container

    def _signal(self, container: str, number: signal.Signals) -> bool:
        """Signal the first process; False: it has ended."""
        state = self.state(container)
        if state.phase is not Phase.RUNNING:
            return False
        handle = states.open_pidfd(state.pid)
        if handle is None:
            return True  # it has just ended, and the shim will report it
        try:
            # The shim writes the end before it reaps the pid: none written, so it is the same.
            if self.state(container).phase is Phase.RUNNING:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
        return True

    async def _wait_started(self, container: str) -> None:
        """Wait for a living shim that has not reported yet; that takes little time."""
        while states.is_starting(self._place(container)):  # noqa: ASYNC110 - files of another
            await asyncio.sleep(_STEP_S)

    async def _wait_ended(self, container: str) -> None:
        """Wait for this one alone: many may be stopped at once."""
        while self.state(container).phase is Phase.RUNNING:
            self._follow(container)
            await self._followed.end_of(container)

    async def _wait_shim_ended(self, container: str) -> None:
        await self._followed.end_of(container)

    def _follow(self, container: str) -> None:
        """Follow the shim of a running container."""
        if container not in self._followed and (started := states.started(self._place(container))):
            self._followed.add(container, started.shim)

    def _change(self) -> None:
        self._changes += 1
        self._changed.set()
