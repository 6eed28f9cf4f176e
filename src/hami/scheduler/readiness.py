"""Readiness of a replica: leader label, watch catch-up.

A replica may decide if every informer has its first list, it leads, and since it leads its pods
have caught up with everything the leader before did. The last is a barrier: after we gained the
lease we get a version from the API server that is newer than all Bindings of the old leader (no
such Binding can come later, `hami.scheduler.leadership`), and wait until our pod informer has
reached it. Without it a new leader with a slow watch would give out cards that were bound a second
ago.

The leader label on the scheduler's pods decides where Services send scheduling traffic. Writing it
on our own pod also gives us that version. Without a pod of our own, the version of a short list
does. If the watch stays silent, the informer resyncs, and so it does if that version is older than
its own: etcd was restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff
from hami.scheduler.leadership import Leadership
from hami.wire import annotation_keys, codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

COMPONENT = "hami-scheduler"
LEADER, FOLLOWER = "leader", "follower"
#: Seconds that the watch has to reach a version before the informer resyncs.
CATCH_UP_S = 1.0
#: Seconds between two attempts to catch up.
RETRY_S = 0.5
#: Seconds to wait, at most, after the first label that could not be written, and after many.
LABEL_AGAIN_S, LABEL_AT_MOST_S = 1.0, 60.0
#: Seconds after which the version is asked for again: after a restore of etcd it may never come.
CATCH_UP_AT_MOST_S = 30.0


class Watch(Protocol):
    """The part of the pods' informer that is needed here."""

    @property
    def version(self) -> int: ...

    async def wait_version(self, version: int) -> None: ...

    def resync(self) -> None: ...


class _PodList(codec.Object, frozen=True):
    items: list[objects.Pod] | None = None


class LeaderLabel:
    """The label of the scheduler's pods that names the leader."""

    def __init__(
        self,
        client: Client,
        pods: Watch,
        *,
        namespace: str,
        name: str,
        leadership: Leadership,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._pods = pods
        self._namespace = namespace
        self._name = name
        self._leadership = leadership
        self._now = now
        #: The role in our own pod's label; empty before we have caught up once.
        self._own = ""

    @property
    def leads(self) -> bool:
        return self._leadership.leading

    @property
    def has_pod(self) -> bool:
        return bool(self._namespace and self._name)

    async def catch_up(self) -> None:
        """Label our own pod as the leader, and return once our pods are as new as this moment."""
        known = self._pods.version
        version = await self._lead()
        if version < known:
            # The watch would never show what came back; a full list does.
            self._pods.resync()
            raise errors.StreamBroken(
                f"the API server is at version {version}, but its pods were known at {known}: "
                "etcd was restored, reading all pods again"
            )
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self._pods.wait_version(version)
        except TimeoutError:
            _log.info("the pod watch is silent, resyncing", extra={"version": version})
            self._pods.resync()
            async with asyncio.timeout(CATCH_UP_AT_MOST_S):
                await self._pods.wait_version(version)

    async def _lead(self) -> int:
        """Label our own pod; returns a version that is not older than this moment."""
        self._own = LEADER
        if self.has_pod:
            try:
                return await self._label(self._name, LEADER)
            except (errors.NotFound, errors.Forbidden) as error:
                # Scheduling does not depend on the label; a Service that routes by it does.
                _log.warning(
                    "cannot label our own pod; check POD_NAME, POD_NAMESPACE and the role",
                    extra={"pod": f"{self._namespace}/{self._name}", "error": str(error)},
                )
        return await listwatch.list_version(self._client, paths.pods())

    async def demote_others(self) -> None:
        """Label every other replica as a follower.

        And our own pod as the leader, if a late demotion of ours has undone that.
        """
        if not self.has_pod:
            return
        selector = f"{annotation_keys.COMPONENT_LABEL}={COMPONENT}"
        body = await self._client.get(paths.pods(self._namespace), {"labelSelector": selector})
        listed = codec.decode(body, _PodList, what="list of scheduler pods")
        for pod in listed.items or ():
            if not self._leadership.leading:
                return  # the new leader writes the labels
            if pod.name == self._name and self._own != LEADER:
                continue  # we lead: `catch_up` is about to label it
            role = self._own if pod.name == self._name else FOLLOWER
            if pod.labels.get(annotation_keys.ROLE_LABEL) != role:
                with contextlib.suppress(errors.NotFound):  # it has ended meanwhile
                    await self._label(pod.name, role)

    async def demote_self(self) -> None:
        """Label our own pod as a follower."""
        self._own = FOLLOWER
        if self.has_pod:
            await self._label(self._name, FOLLOWER)

    async def _label(self, name: str, role: str) -> int:
        """Label a pod of ours; returns the version of the write."""
        metadata: dict[str, object] = {"labels": {annotation_keys.ROLE_LABEL: role}}
        if role == LEADER:
            # Always a change: a write that changes nothing gets no new version.
            metadata["annotations"] = {annotation_keys.LEADING_SINCE: f"{self._now():.6f}"}
        body = codec.encode({"metadata": metadata})
        answer = await self._client.patch(paths.pods(self._namespace, name), body)
        return listwatch.identity(answer)[1]


async def follow(roles: LeaderLabel, changes: asyncio.Queue[bool]) -> None:
    """Write the labels at each change of the leader, and again until it works or the next one."""
    # A replica that starts beside a leader is a follower, maybe without a change for a long time.
    changes.put_nowait(roles.leads)
    backoff = Backoff(first=LABEL_AGAIN_S, longest=LABEL_AT_MOST_S)
    written = True
    leading = False
    while True:
        if written:
            leading = await changes.get()
            backoff.reset()
        while not changes.empty():
            leading = changes.get_nowait()  # only the last change counts
            backoff.reset()
        try:
            await (roles.demote_others() if leading else roles.demote_self())
            written = True
        except (errors.KubeError, wire_errors.WireError) as error:
            written = False
            wait = backoff.next(getattr(error, "retry_after", None))
            _log.warning(
                "cannot write the leader label, retrying",
                extra={"error": str(error), "wait": round(wait, 3)},
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    leading = await changes.get()  # a change ends the wait
                    backoff.reset()


class Synced(Protocol):
    """The part of an informer that decides readiness."""

    @property
    def synced(self) -> bool: ...


class NotReadyError(Exception):
    """This replica cannot decide now; the message is the reason."""


class Readiness:
    """Whether this replica may answer and decide, and the barrier of each term."""

    def __init__(
        self,
        leadership: Leadership,
        informers: Mapping[str, Synced],
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._leadership = leadership
        self._informers = informers
        self._catch_up = catch_up
        #: The term for which the barrier was passed.
        self._caught_up = 0
        self._changed = asyncio.Condition()

    @property
    def synced(self) -> bool:
        """Whether every informer has its first list."""
        return all(informer.synced for informer in self._informers.values())

    @property
    def ready(self) -> bool:
        """Whether this replica may decide now."""
        return self._leadership.leading and self._caught_up == self._leadership.term and self.synced

    def why_not(self) -> str:
        """Return why this replica may not decide."""
        missing = [kind for kind, each in self._informers.items() if not each.synced]
        if missing:
            return f"the caches of {', '.join(missing)} are not filled yet"
        if not self._leadership.leading:
            return self._leadership.why_not()
        return "the caches are catching up with the leader before us"

    def why_not_synced(self) -> str:
        """Return why a replica cannot answer admission; empty if it can."""
        return "" if self.synced else self.why_not()

    def why_not_ready(self) -> str:
        """Return why a replica cannot schedule; empty if it can."""
        return "" if self.ready else self.why_not()

    async def require(self, budget: float, *, leading: bool = True) -> None:
        """Wait until ready, at most so many seconds; raise if it takes longer.

        A request that decides nothing needs no leader, but synced informers all the same.
        """

        def fine() -> bool:
            return self.ready if leading else self.synced

        if fine():
            return
        try:
            async with asyncio.timeout(budget), self._changed:
                await self._changed.wait_for(fine)
        except TimeoutError:
            raise NotReadyError(self.why_not()) from None

    async def run(self) -> None:
        """Pass the barrier once in each term."""
        while True:
            self._leadership.tick()
            async with self._changed:
                self._changed.notify_all()
            term = self._leadership.term
            if self._leadership.leading and self._caught_up != term and self.synced:
                try:
                    await self._catch_up()
                except (errors.KubeError, wire_errors.WireError, TimeoutError) as error:
                    _log.warning("cannot catch up, retrying", extra={"error": str(error)})
                    await asyncio.sleep(RETRY_S)
                    continue
                self._caught_up = term  # worth nothing if the term has ended meanwhile
                _log.info("caught up, ready to schedule", extra={"term": term})
                continue
            await asyncio.sleep(0.05)
