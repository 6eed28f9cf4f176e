"""Events and conditions of pods, in kube-scheduler's words.

Both are written in the background; scheduling never waits for them. Of several unwritten
conditions of one pod only the last one is written; one that the pod has already is not written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client, PatchKind
from hami.kube.events import EventRecorder
from hami.kube.transport import TokenBucket
from hami.serving.logs import Seldom
from hami.wire import codec
from hami_sandbox import api_objects
from hami_sandbox.kube_scheduler.pods import Condition, Pod

NO_NODES = "no nodes available to schedule pods"
NO_PREEMPTION = "preemption: this sandbox does not preempt pods of lower priority."


def unfit(nodes: int, reasons: Mapping[str, int], *, may_preempt: bool = False) -> str:
    """Return why no node fits: each reason with its number of nodes."""
    text = f"0/{nodes} nodes are available:"
    counted = sorted(f"{count} {reason}" for reason, count in reasons.items())
    if counted:
        text += f" {', '.join(counted)}."
    # kube-scheduler reports here whether preemption would help.
    return f"{text} {NO_PREEMPTION}" if may_preempt else text


def assigned(key: str, node: str) -> str:
    return f"Successfully assigned {key} to {node}"


def binding_refused(why: str) -> str:
    """Return the message for a binding that the API server refused; not for an extender's."""
    return f'running Bind plugin "DefaultBinder": {why}'


_log = logging.getLogger(__name__)

UNSCHEDULABLE, ERROR = "Unschedulable", "SchedulerError"
_PODS = 1000
_WRITERS = 4
_LOG_EVERY_S = 10.0


class _EachPod(EventRecorder):
    """Events for every pod of a burst.

    kube-scheduler limits them per object; a sandbox's server can take them all.
    """

    def __init__(self, client: Client, *, component: str, host: str) -> None:
        super().__init__(client, component=component, host=host)
        self._bucket = TokenBucket(rate=_PODS, burst=_PODS)


class PodRecorder:
    def __init__(
        self,
        client: Client,
        *,
        aside: Client,
        schedulers: Iterable[str],
        host: str,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._now = now
        self._events = {name: _EachPod(aside, component=name, host=host) for name in schedulers}
        self._pending: dict[str, tuple[Pod, Condition]] = {}
        self._filled = asyncio.Event()
        self._seldom = Seldom(_LOG_EVERY_S)

    def placed(self, pod: Pod, node: str) -> None:
        self._record(pod, "Normal", "Scheduled", assigned(pod.key, node))

    def failed(self, pod: Pod, message: str, *, error: bool) -> None:
        """Report why a pod was not placed: no node fits, or an error."""
        self._record(pod, "Warning", "FailedScheduling", message)
        had = pod.scheduled or Condition()
        reason = ERROR if error else UNSCHEDULABLE
        if (had.status, had.reason, had.message) == ("False", reason, message):
            return
        since = had.last_transition_time if had.status == "False" else None
        condition = Condition(
            type="PodScheduled",
            status="False",
            reason=reason,
            message=message,
            last_transition_time=since or api_objects.stamp_at(self._now()),
            observed_generation=pod.generation,
        )
        self._pending[pod.uid] = (pod, condition)
        self._filled.set()

    def background(self) -> dict[str, Coroutine[Any, Any, NoReturn]]:
        works = {f"events {name}": recorder.run() for name, recorder in self._events.items()}
        return works | {f"conditions {number}": self._write_all() for number in range(_WRITERS)}

    def _record(self, pod: Pod, type_: str, reason: str, message: str) -> None:
        self._events[pod.scheduler_name].record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=type_,
            reason=reason,
            message=message,
        )

    async def _write_all(self) -> NoReturn:
        while True:
            while not self._pending:
                self._filled.clear()
                await self._filled.wait()
            uid = next(iter(self._pending))
            pod, condition = self._pending.pop(uid)
            try:
                await self._write(pod, condition)
            except errors.NotFound:
                pass  # it is deleted
            except errors.KubeError as error:
                # The next failure of the pod writes it again.
                self._seldom.log(
                    _log,
                    logging.WARNING,
                    "cannot write a pod's condition, retrying at its next failure",
                    extra={"pod": pod.key, "error": str(error)},
                )

    async def _write(self, pod: Pod, condition: Condition) -> None:
        body = {
            "metadata": {"uid": pod.uid},  # a namesake is another pod
            "status": {"conditions": [condition]},
        }
        path = f"{paths.pods(pod.namespace, pod.name)}/status"
        await self._client.patch(path, codec.encode(body), kind=PatchKind.STRATEGIC)
