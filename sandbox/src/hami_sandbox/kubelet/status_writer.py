"""Writes the statuses of pods to the API server, the newest of each, and deletes pods that ended.

Nobody waits for it: a start is never held up by a slow server. What was overtaken while a request
was under way is never sent.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client, PatchKind
from hami.kube.transport import Backoff
from hami.wire import codec
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.pod import Object

_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 5.0


class _Update(msgspec.Struct, frozen=True):
    pod: Object
    #: None: there is nothing to be written.
    status: Object | None
    #: All its containers have ended and somebody wants it gone.
    delete: bool


class StatusWriter:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._wishes: dict[str, _Update] = {}
        self._written: dict[str, Object] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def put(self, pod: Object, status: Object) -> None:
        """Have a pod show this status."""
        self._wish(_Update(pod, status, delete=False))

    def finish(self, pod: Object, status: Object | None) -> None:
        """Have a pod show its last status, then have it removed."""
        self._wish(_Update(pod, status, delete=True))

    def forget(self, uid: str) -> None:
        """Stop writing: the pod is gone."""
        self._wishes.pop(uid, None)
        self._written.pop(uid, None)
        if task := self._tasks.pop(uid, None):
            task.cancel()

    async def stop(self) -> None:
        """Give what is under way a moment, then let go."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wish(self, wish: _Update) -> None:
        uid = pods.uid(wish.pod)
        if uid not in self._written and wish.status is not None and _shows(wish.pod, wish.status):
            self._written[uid] = wish.status  # from before a restart
        if wish.status == self._written.get(uid) and not wish.delete and uid not in self._tasks:
            return
        self._wishes[uid] = wish
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._write(uid), name=f"status of {uid}")

    async def _write(self, uid: str) -> None:
        backoff = Backoff(first=0.2, longest=_LONGEST_WAIT_S)
        try:
            while (wish := self._wishes.get(uid)) is not None:
                try:
                    await self._send(uid, wish)
                except (errors.NotFound, errors.Conflict):
                    self._wishes.pop(uid, None)  # gone, or another pod of that name
                except errors.KubeError as error:
                    _log.warning("a pod's status is not written", extra=_about(wish, error))
                    await asyncio.sleep(backoff.next(error.retry_after))
                else:
                    backoff.reset()
                    if self._wishes.get(uid) is wish:
                        del self._wishes[uid]
        finally:
            if self._tasks.get(uid) is asyncio.current_task():
                del self._tasks[uid]

    async def _send(self, uid: str, wish: _Update) -> None:
        path = paths.pods(pods.namespace(wish.pod), pods.name(wish.pod))
        if wish.status is not None and wish.status != self._written.get(uid):
            # With the UID: a pod made anew under this name is not this one.
            body = codec.encode({"metadata": {"uid": uid}, "status": wish.status})
            try:
                await self._client.patch(f"{path}/status", body, kind=PatchKind.STRATEGIC)
            except errors.Invalid as error:
                # What is refused once is refused always; the pod's end must come nevertheless.
                _log.warning("a pod's status is refused", extra=_about(wish, error))
            self._written[uid] = wish.status
        if wish.delete:
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": uid},
            }
            await self._client.delete(path, codec.encode(options))


def _about(wish: _Update, error: errors.KubeError) -> dict[str, str]:
    return {"pod": pods.full_name(wish.pod), "error": str(error)}


def _shows(pod: Object, status: Object) -> bool:
    """Tell whether the API server has this status already: a patch would change nothing."""
    there = pods.status(pod)
    conditions = {each.get("type"): each for each in there.get("conditions") or ()}
    return all(
        all(_holds(conditions.get(each["type"]), each) for each in value)
        if key == "conditions"
        else there.get(key) == value
        for key, value in status.items()
    )


def _holds(there: Object | None, wanted: Object) -> bool:
    return there is not None and all(there.get(key) == value for key, value in wanted.items())
