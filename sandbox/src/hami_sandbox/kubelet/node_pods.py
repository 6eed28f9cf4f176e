"""The pods of a node: watched, admitted in order, each with a worker.

No pod is admitted before the first list is complete: until then it is not known which devices are
free. Then containers are ended whose pod was deleted while no kubelet ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NoReturn

from hami.kube import paths
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.wire.errors import WireError
from hami_sandbox.kubelet import decisions, starting
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import Attempt
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.devices.pods import AdmissionError
from hami_sandbox.kubelet.pod import KeptPod, Object
from hami_sandbox.kubelet.pod_worker import PodWorker, Tools
from hami_sandbox.kubelet.stopping import LEAST_GRACE_S
from hami_sandbox.runtime.states import ContainerError

_log = logging.getLogger(__name__)


class NodePods:
    """Takes what a reflector sees, and keeps a worker for each pod."""

    def __init__(self, *, logs: Path) -> None:
        self._logs = logs
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Pods that came before the first list was whole.
        self._early: dict[str, KeptPod] | None = {}
        #: None: the first list ends here.
        self._to_admit: asyncio.Queue[PodWorker | None] = asyncio.Queue()
        self._tools: Tools | None = None
        self._failed: asyncio.Queue[BaseException] = asyncio.Queue()
        #: Whether all pods of the first list have been admitted or refused.
        self.ready = False

    def reflector(self, client: Client, node: str) -> Reflector[KeptPod]:
        return Reflector(
            client,
            paths.pods(),
            decode=pods.decode,
            sink=self,
            kind="pods of this node",
            query={"fieldSelector": f"spec.nodeName={node}"},
        )

    def active(self) -> frozenset[str]:
        """Return the pods whose containers run or will run: they keep their devices."""
        return frozenset(uid for uid, worker in self._workers.items() if not worker.over)

    def find(self, namespace: str, name: str) -> Object | None:
        """Return a pod by name; of two, the newer one."""
        for worker in reversed(self._workers.values()):
            if (pods.namespace(worker.pod), pods.name(worker.pod)) == (namespace, name):
                return worker.pod
        return None

    def all(self) -> list[Object]:
        return [worker.pod for worker in self._workers.values()]

    def poke(self, uid: str) -> None:
        """Wake a pod's worker: its containers have changed."""
        if worker := self._workers.get(uid):
            worker.poke()

    # The reflector's sink.

    def put(self, obj: KeptPod) -> None:
        if self._early is not None:
            self._early[obj.uid] = obj
        elif worker := self._workers.get(obj.uid):
            worker.update(obj.body)
        else:
            self._begin(obj.body)

    def drop(self, uid: str) -> None:
        if self._early is not None:
            self._early.pop(uid, None)
        elif worker := self._workers.get(uid):
            worker.deleted()

    def retain(self, uids: AbstractSet[str]) -> None:
        if self._early is None:
            for uid in self._workers.keys() - uids:
                self.drop(uid)
            return
        early = [obj.body for uid, obj in self._early.items() if uid in uids]
        self._early = None
        # In the order in which they came to be, as kubelet does.
        for body in sorted(early, key=lambda each: str(each["metadata"].get("creationTimestamp"))):
            self._begin(body)
        self._to_admit.put_nowait(None)

    # Workers.

    def attach(self, tools: Tools) -> None:
        """Take what workers need; before the reflector runs."""
        self._tools = tools

    async def run(self, devices: DeviceManager, room: decisions.Room) -> NoReturn:
        """Admit pods for ever; fails when a worker does."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._admit_all(devices, room))
                raise await self._failed.get()
        finally:
            await self._let_go()

    def _begin(self, pod: Object) -> None:
        assert self._tools is not None
        worker = PodWorker(pod, self._tools)
        worker.over = pods.is_terminal(pod) and not _runs(self._tools, worker.uid)
        self._workers[worker.uid] = worker
        if worker.leaving:
            self._work(worker)  # its end does not wait for admission
        self._to_admit.put_nowait(worker)

    async def _admit_all(self, devices: DeviceManager, room: decisions.Room) -> NoReturn:
        while True:
            worker = await self._to_admit.get()
            if worker is None:
                self.ready = True
                await self._end_orphans()
            elif worker.uid in self._workers:
                await self._admit(worker, devices, room)
                if worker.uid not in self._tasks:
                    self._work(worker)

    async def _admit(self, worker: PodWorker, devices: DeviceManager, room: decisions.Room) -> None:
        assert self._tools is not None
        pod = worker.pod
        if worker.leaving:
            with contextlib.suppress(WireError):  # an unreadable pod ends all the same
                devices.know(pod)
            return
        try:
            await devices.admit(pod)
            others = [
                other.pod
                for other in self._workers.values()
                if not other.over and other is not worker
            ]
            decisions.check_room(pod, others, room)
        except AdmissionError as error:
            if _runs(self._tools, worker.uid):
                _log.warning(
                    "running pod would not be admitted now, keeping it",
                    extra={"pod": pods.full_name(pod), "error": str(error)},
                )
                return
            _log.info("refused a pod", extra={"pod": pods.full_name(pod), "error": str(error)})
            worker.reject(error.reason, error.message)
        # An unreadable pod must not end the kubelet of the others.
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            _log.exception("cannot admit a pod", extra={"pod": pods.full_name(pod)})
            worker.reject("UnexpectedAdmissionError", str(error))

    def _work(self, worker: PodWorker) -> None:
        task = asyncio.create_task(self._see_through(worker), name=f"pod {worker.uid}")
        self._tasks[worker.uid] = task
        task.add_done_callback(self._ended)

    async def _see_through(self, worker: PodWorker) -> None:
        await worker.run()
        await worker.remove()
        del self._workers[worker.uid], self._tasks[worker.uid]
        shutil.rmtree(starting.log_folder(self._logs, worker.pod), ignore_errors=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed.put_nowait(error)

    async def _let_go(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            await worker.stop()

    # Leftovers of pods that were deleted while no kubelet ran.

    async def _end_orphans(self) -> None:
        assert self._tools is not None
        orphans = self._tools.view.uids() - self._workers.keys()
        left = [
            attempt
            for uid in orphans
            for history in self._tools.view.of(uid).values()
            for attempt in history.attempts
        ]
        await asyncio.gather(*(self._end_orphan(attempt) for attempt in left))
        self._tools.volumes.remove_others(frozenset(self._workers))
        known = {starting.log_folder(self._logs, worker.pod) for worker in self._workers.values()}
        for folder in self._logs.iterdir() if self._logs.is_dir() else ():
            if folder not in known:
                shutil.rmtree(folder, ignore_errors=True)

    async def _end_orphan(self, attempt: Attempt) -> None:
        assert self._tools is not None
        _log.info(
            "pod was deleted, ending its container",
            extra={"container": attempt.name, "id": attempt.id},
        )
        try:
            if attempt.running:
                await self._tools.runtime.stop(attempt.id, LEAST_GRACE_S)
            await self._tools.runtime.remove(attempt.id)
        except (ContainerError, OSError) as error:
            _log.warning("cannot remove a container, it stays", extra={"error": str(error)})


def _runs(tools: Tools, uid: str) -> bool:
    found = tools.view.of(uid)
    return any(h.latest is not None and h.latest.running for h in found.values())
