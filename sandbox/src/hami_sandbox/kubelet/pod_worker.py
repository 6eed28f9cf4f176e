"""One pod from start to end: read its state, act, report its status.

It keeps nothing that a restart could not find again: containers are the runtime's, the rest is the
pod's own object. So a killed kubelet goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.api_objects import ENDED
from hami_sandbox.kubelet import decisions, statuses
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import Attempt, ContainersView, CrashBackoff, Waits, latest
from hami_sandbox.kubelet.pod import Object
from hami_sandbox.kubelet.starting import NO_IMAGE, NotStartedError, Order, Starter
from hami_sandbox.kubelet.status_writer import StatusWriter
from hami_sandbox.kubelet.statuses import End, Sight, Waiting
from hami_sandbox.kubelet.stopping import PodRecorder, Stopper
from hami_sandbox.kubelet.volumes import VolumeError, Volumes
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import Phase
from hami_sandbox.runtime.states import ContainerError

_log = logging.getLogger(__name__)

_TOO_LONG = "Pod was active on the node longer than the specified deadline"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that all pods of a node share."""

    runtime: Runtime
    view: ContainersView
    starter: Starter
    volumes: Volumes
    statuses: StatusWriter
    recorder: PodRecorder
    waits: Waits
    now: Callable[[], float] = time.time


class _Retry(msgspec.Struct):
    """A container that could not be started, and when it is tried again."""

    at: float
    wait: float


class PodWorker:
    def __init__(self, pod: Object, tools: Tools) -> None:
        self.pod = pod
        self.uid = pods.uid(pod)
        self._name = pods.full_name(pod)
        #: No container runs or will run.
        self.over = False
        self._tools = tools
        self._wake = asyncio.Event()
        self._deleted = False
        self._ending = pods.is_terminal(pod)
        self._end = End()
        self._waiting: dict[str, Waiting] = {}
        self._retries: dict[str, _Retry] = {}
        self._backoff = CrashBackoff(tools.waits, now=tools.now)
        self._stopper = Stopper(tools.runtime, tools.recorder)
        started = pods.status(pod).get("startTime")
        self._started_at = api_objects.read(started).timestamp() if started else tools.now()
        self._conditions: list[Object] = list(pods.status(pod).get("conditions") or ())
        self._status: Object | None = None
        self._finished = False

    def update(self, pod: Object) -> None:
        """Take the pod as the API server has it now."""
        self.pod = pod
        self.poke()

    def deleted(self) -> None:
        """Record that the API server has deleted it."""
        self._deleted = True
        self.poke()

    def reject(self, reason: str, message: str) -> None:
        """Fail it before anything of it runs."""
        self._ending = self.over = True
        self._tools.recorder.rejected(self.pod, reason, message)
        self._status = statuses.rejected(self.pod, reason, message, self._tools.now())
        self._tools.statuses.put(self.pod, self._status)

    def poke(self) -> None:
        """Wake the worker."""
        self._wake.set()

    async def run(self) -> None:
        """Run the pod until it is deleted and no container is left."""
        while True:
            self._wake.clear()
            try:
                delay = await self._look()
            # An error with one pod must not end the kubelet of the others.
            except Exception:  # noqa: BLE001 - logged with its traceback
                _log.exception("pod worker failed, retrying later", extra={"pod": self._name})
                delay = self._tools.waits.first
            if self._deleted and self.over:
                return
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _container_ended(self, container: str) -> None:
        self._tools.view.look_at(self.uid, container)
        self.poke()

    async def stop(self) -> None:
        """Stop the worker; containers go on."""
        await self._stopper.let_go()

    # One pass.

    async def _look(self) -> float | None:
        """Do the next steps; return the seconds until the next pass, or None."""
        if not self.leaving:
            delay = await self._go_on()
            if not self.leaving:
                return delay
        found = self._tools.view.of(self.uid)
        names = decisions.stopping(self.pod, found)
        if names:
            running = [each for name in names if (each := latest(found, name)) is not None]
            self._stopper.stop(self.pod, running, ended=self._container_ended)
            self._show()
            return None
        self.over = True
        self._finish()
        return None

    @property
    def leaving(self) -> bool:
        """Whether it is ending."""
        return self._ending or self._deleted or pods.is_deleted(self.pod)

    async def _go_on(self) -> float | None:
        delays: list[float] = []
        while not self.leaving:
            found = self._tools.view.of(self.uid)
            plan = decisions.plan(self.pod, found)
            if plan.over or self._too_long(delays):
                self._ending = True
                break
            self._waiting = {n: w for n, w in self._waiting.items() if n in plan.start}
            if not await self._start_all(plan.start, delays):
                self._show()
                break
        return max(min(delays), 0.0) if delays else None

    def _too_long(self, delays: list[float]) -> bool:
        seconds = pods.spec(self.pod).get("activeDeadlineSeconds")
        if seconds is None:
            return False
        left = self._started_at + float(seconds) - self._tools.now()
        if left > 0:
            delays.append(left)
            return False
        self._tools.recorder.too_long(self.pod, _TOO_LONG)
        self._end = End("DeadlineExceeded", _TOO_LONG)
        return True

    async def _start_all(self, names: tuple[str, ...], delays: list[float]) -> bool:
        """Start the containers that may start now; return whether any was."""
        started = False
        for name in names:
            if self.leaving:
                break
            attempt = latest(self._tools.view.of(self.uid), name)
            left = self._must_wait(name, attempt)
            if left > 0:
                delays.append(left)
            elif await self._start(name, attempt):
                started = True
            else:
                delays.append(self._retries[name].at - self._tools.now())
        return started

    def _must_wait(self, name: str, attempt: Attempt | None) -> float:
        now = self._tools.now()
        retry = self._retries.get(name)
        if retry is not None and now < retry.at:
            self._image_waits(name)
            return retry.at - now
        if attempt is None or not attempt.exited:
            return 0.0
        wait = self._backoff.wait(name, attempt.finished_at)
        if not wait:
            return 0.0
        message = (
            f"back-off {_duration(wait)} restarting failed container={name} "
            f"pod={pods.full_name(self.pod)}"
        )
        waiting = Waiting("CrashLoopBackOff", message)
        if self._waiting.get(name) != waiting:
            self._waiting[name] = waiting
            self._tools.recorder.backing_off(self.pod, name)
        return attempt.finished_at + wait - now

    def _image_waits(self, name: str) -> None:
        waiting = self._waiting.get(name)
        if waiting is not None and waiting.reason == NO_IMAGE:
            image = str(self._container(name).get("image") or "")
            message = f'Back-off pulling image "{image}": {NO_IMAGE}: {waiting.message}'
            self._waiting[name] = Waiting("ImagePullBackOff", message)
            self._tools.recorder.backing_off_image(self.pod, image)

    async def _start(self, name: str, attempt: Attempt | None) -> bool:
        if attempt is None and name not in self._waiting:
            self._waiting[name] = Waiting("ContainerCreating")
            self._show()
        number = 0 if attempt is None else attempt.attempt
        if attempt is not None and attempt.exited:
            self._backoff.restarted(name, attempt.finished_at)
            number += 1
        try:
            await self._start_attempt(name, number, attempt)
        except VolumeError as error:
            self._tools.recorder.not_mounted(self.pod, str(error))
            self._later(name, Waiting("ContainerCreating"))
        except NotStartedError as error:
            self._later(name, Waiting(error.reason, error.message))
        else:
            self._waiting.pop(name, None)
            self._retries.pop(name, None)
            return True
        return False

    async def _start_attempt(self, name: str, number: int, before: Attempt | None) -> None:
        volumes = await self._tools.volumes.prepare(self.pod)
        if before is not None and before.phase is Phase.CREATED:
            # A killed kubelet created it, and did not start it.
            await self._tools.runtime.remove(before.id)
            self._tools.view.look_at(self.uid, before.id)
        container = self._container(name)
        order = Order(pod=self.pod, container=container, attempt=number, volumes=volumes)
        try:
            await self._tools.starter.start(order)
        finally:
            self._tools.view.look_at(self.uid, order.id)
        await self._remove_older(name)

    async def _remove_older(self, name: str) -> None:
        """Keep the latest attempt and the one before it, which `logs --previous` shows."""
        history = self._tools.view.of(self.uid).get(name)
        for attempt in history.attempts[:-2] if history is not None else ():
            await self._tools.runtime.remove(attempt.id)
            self._tools.view.look_at(self.uid, attempt.id)

    def _later(self, name: str, waiting: Waiting) -> None:
        waits = self._tools.waits
        before = self._retries.get(name)
        wait = waits.first
        if waiting.reason == NO_IMAGE and before is not None:
            wait = min(before.wait * 2, waits.longest)
        self._waiting[name] = waiting
        self._retries[name] = _Retry(self._tools.now() + wait, wait)

    def _container(self, name: str) -> Object:
        return next(each for each in pods.in_order(self.pod) if each["name"] == name)

    # Status.

    def _show(self) -> None:
        if self._deleted:
            return
        self._status = self._made_status()
        self._tools.statuses.put(self.pod, self._status)

    def _finish(self) -> None:
        if self._deleted:
            return
        if not pods.is_terminal(self.pod) and (
            self._status is None or self._status["phase"] not in ENDED
        ):
            self._status = self._made_status()
        if pods.is_deleted(self.pod):
            if not self._finished:
                self._finished = True
                self._tools.statuses.finish(self.pod, self._status)
        elif self._status is not None:
            self._tools.statuses.put(self.pod, self._status)

    def _made_status(self) -> Object:
        sight = Sight(
            found=self._tools.view.of(self.uid),
            waiting=self._waiting,
            over=self.over,
            end=self._end,
            started_at=self._started_at,
            before=self._conditions,
            now=self._tools.now(),
        )
        made = statuses.status(self.pod, sight)
        self._conditions = made["conditions"]
        return made

    async def remove(self) -> None:
        """Remove its containers, volumes and logs from this node."""
        self._tools.statuses.forget(self.uid)
        for history in list(self._tools.view.of(self.uid).values()):
            for attempt in history.attempts:
                try:
                    await self._tools.runtime.remove(attempt.id)
                    self._tools.view.look_at(self.uid, attempt.id)
                except (ContainerError, OSError) as error:
                    _log.warning("cannot remove a container, it stays", extra={"error": str(error)})
        self._tools.volumes.remove(self.uid)


def _duration(seconds: float) -> str:
    """Write a duration as Go does."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
