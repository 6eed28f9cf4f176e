"""Stop containers within a pod's grace; events of a pod's life.

The events have kubelet's words. A grace can only become shorter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from hami.kube.events import EventRecorder
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import Attempt
from hami_sandbox.kubelet.pod import Object
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.states import ContainerError

COMPONENT = "kubelet"


class PodRecorder:
    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def pulled(self, pod: Object, image: str) -> None:
        self._normal(pod, "Pulled", f'Container image "{image}" already present on machine')

    def created(self, pod: Object, container: str) -> None:
        self._normal(pod, "Created", f"Created container: {container}")

    def started(self, pod: Object, container: str) -> None:
        self._normal(pod, "Started", f"Started container {container}")

    def killing(self, pod: Object, container: str) -> None:
        self._normal(pod, "Killing", f"Stopping container {container}")

    def failed(self, pod: Object, message: str) -> None:
        self._warning(pod, "Failed", message)

    def backing_off(self, pod: Object, container: str) -> None:
        message = f"Back-off restarting failed container {container} in pod {pods.full_name(pod)}"
        self._warning(pod, "BackOff", message)

    def backing_off_image(self, pod: Object, image: str) -> None:
        self._normal(pod, "BackOff", f'Back-off pulling image "{image}"')

    def not_mounted(self, pod: Object, message: str) -> None:
        self._warning(pod, "FailedMount", message)

    def rejected(self, pod: Object, reason: str, message: str) -> None:
        self._warning(pod, reason, message)

    def too_long(self, pod: Object, message: str) -> None:
        self._normal(pod, "DeadlineExceeded", message)

    def _normal(self, pod: Object, reason: str, message: str) -> None:
        self._record(pod, "Normal", reason, message)

    def _warning(self, pod: Object, reason: str, message: str) -> None:
        self._record(pod, "Warning", reason, message)

    def _record(self, pod: Object, kind: str, reason: str, message: str) -> None:
        self._events.record(
            namespace=pods.namespace(pod),
            name=pods.name(pod),
            uid=pods.uid(pod),
            type=kind,
            reason=reason,
            message=message,
        )


_log = logging.getLogger(__name__)

#: Seconds that a container has in any case, as kubelet grants them.
LEAST_GRACE_S = 1.0
_AGAIN_S = 1.0


class _Stop(msgspec.Struct):
    task: asyncio.Task[None]
    deadline: float


class Stopper:
    """Ends the containers of one pod."""

    def __init__(
        self,
        runtime: Runtime,
        recorder: PodRecorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._clock = clock
        self._began: float | None = None
        self._stops: dict[str, _Stop] = {}

    def stop(
        self, pod: Object, running: Iterable[Attempt], *, ended: Callable[[str], None]
    ) -> None:
        """Stop containers; `ended` is called for each one."""
        now = self._clock()
        if self._began is None:
            self._began = now
        deadline = max(self._began + pods.grace(pod), now + LEAST_GRACE_S)
        for attempt in running:
            before = self._stops.get(attempt.id)
            if before is not None and not before.task.done():
                if before.deadline <= deadline + LEAST_GRACE_S:
                    continue
                before.task.cancel()
            elif before is None:
                self._recorder.killing(pod, attempt.name)
            task = asyncio.create_task(self._stop(attempt, deadline - now, ended))
            self._stops[attempt.id] = _Stop(task, deadline)

    async def let_go(self) -> None:
        tasks = [stop.task for stop in self._stops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self, attempt: Attempt, grace: float, ended: Callable[[str], None]) -> None:
        try:
            await self._runtime.stop(attempt.id, grace)
        except (ContainerError, OSError) as error:
            _log.warning(
                "cannot stop a container", extra={"container": attempt.name, "error": str(error)}
            )
            await asyncio.sleep(_AGAIN_S)
        ended(attempt.id)
