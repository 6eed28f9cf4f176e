"""Containers on this machine: made, started, stopped, told from disk, adopted after a restart.

    <folder>/bin              the sandbox's own programs
    <folder>/containers/<id>  a container (`records`)

All that is known of a container is in its folder, so whoever makes a Runtime on the folder knows
all of them. A shim beside each one outlives this process. A shim that died without a word is found
by its lock being free: then the rest of its container is killed, and its end is written for it.
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
        #: Containers as they were when last looked at.
        self._known: dict[str, ContainerState] = {}
        self._followed = shims.Followed(self._change)
        self._changes = 0
        self._told = 0
        self._changed: asyncio.Event = asyncio.Event()

    @property
    def isolation(self) -> Isolation:
        """What containers get; found out when it is first asked for, by making one."""
        return self._look().isolation

    @property
    def isolation_reason(self) -> str:
        return self._look().sentence

    def _look(self) -> detection.Found:
        if self._found is None:
            self._found = detection.detect(programs.install(self.folder / "bin"))
        return self._found

    def sweep(self) -> None:
        """Remove what a kubelet before us had begun to make or to remove when it died.

        Not for those who only look at the folder of one that lives.
        """
        for left in self._containers.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)

    # What can be done with containers.

    async def create(self, spec: ContainerSpec) -> None:
        """Take a container on; raises UnresolvableError for CDI names without a spec."""
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
        shutil.rmtree(draft, ignore_errors=True)  # of one who was killed while he made it
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

        One that a kubelet before us was starting when it died is waited for.
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
        """Forget it; one that runs is killed. Again does nothing."""
        with contextlib.suppress(UnknownContainerError):
            await self.stop(container, 0)
            await self._wait_shim_ended(container)
            self._remove(self._place(container))
            self._known.pop(container, None)
            self._change()

    def _remove(self, place: Path) -> None:
        records.remove_aside(str(place))
        gone = place.with_name(f".{place.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it as well
            place.rename(gone)
            shutil.rmtree(gone)

    def list(self) -> tuple[ContainerState, ...]:
        """Tell all containers, from disk, the oldest first."""
        found = []
        for place in self._containers.glob("[!.]*"):
            with contextlib.suppress(UnknownContainerError):  # it went between two looks
                found.append(self.state(place.name))
        return tuple(sorted(found, key=lambda state: (state.created_at, state.spec.id)))

    def state(self, container: str) -> ContainerState:
        """Tell one container; raises UnknownContainerError."""
        known = self._known.pop(container, None)
        found = self._known[container] = states.read(self._place(container), known)
        return found

    async def wait_change(self, seen: int | None = None) -> int:
        """Wait until a container has changed since change number `seen`; return the number now.

        Without `seen`: since the last such call returned. So one task can loop on it without
        missing anything; several tasks each pass what they were returned.
        """
        since = self._told if seen is None else seen
        for state in self.list():
            if state.phase is Phase.RUNNING:
                self._follow(state.spec.id)
        while self._changes <= since:
            self._changed.clear()
            await self._changed.wait()
        if seen is None:
            self._told = self._changes
        return self._changes

    async def close(self) -> None:
        """Let go of everything in this process; containers go on."""
        self._followed.close()

    # How it is done.

    def _place(self, container: str) -> Path:
        return self._containers / container

    def _signal(self, container: str, number: signal.Signals) -> bool:
        """Signal the first process; False: it has ended."""
        state = self.state(container)
        if state.phase is not Phase.RUNNING:
            return False
        handle = states.open_pidfd(state.pid)
        if handle is None:
            return True  # it has just ended, and the shim will say so
        try:
            # The shim tells the end before it lets go of the pid: none told yet, so it is the same.
            if self.state(container).phase is Phase.RUNNING:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
        return True

    async def _wait_started(self, container: str) -> None:
        """Wait for a shim that lives but has not said anything yet; that takes no time."""
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
        """Be told of the end of a container that runs."""
        if container not in self._followed and (started := states.started(self._place(container))):
            self._followed.add(container, started.shim)

    def _change(self) -> None:
        self._changes += 1
        self._changed.set()
