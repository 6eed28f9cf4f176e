"""Pods assumed on a node until they are bound, and Bindings without a response.

An assumed pod holds its cards in the cluster's state from /filter on, so that the next pod is
decided while this one is on its way to /bind. It is *held* first. While a Binding is on its way
only the binder may end it. It ends when the watch shows the pod bound, when the pod is filtered
again, finishes or is deleted.

kube-scheduler does not tell us when it gives up a pod between /filter and /bind. So a held pod also
ends when the watch shows that kube-scheduler wrote a new reason why it is not scheduled, or after
half a minute. It lasts longer where kube-scheduler itself may wait for long: for volumes, claims
and nominated pods (`--reservation-timeout`), and for the members of a gang. Ended too early it does
no harm: /bind places the pod again.

If the response to a Binding is lost, the API server is asked for the pod until the bind result is
known. The cards stay held meanwhile: freeing them on a guess gives one card to two pods. A pod
that is still unbound counts as never bound only after the time in which the lost Binding could
have taken effect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterator

from hami.cluster import state
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Hold, PodInfo
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff
from hami.placement import decide
from hami.placement.request import PodRequest
from hami.scheduler.errors import BindRefusedError
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.watched import WatchedPod
from hami.serving import lifetime
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds that /bind waits for the result of a Binding whose response was lost.
RESULT_PATIENCE_S = 12.0
ASK_AGAIN_S, ASK_AT_MOST_S = 0.5, 30.0
#: Seconds until a pod is read whose accepted Binding no watch has shown.
ACCEPTED_FOR_S = 60.0
#: Seconds that a pod is held that waits for nothing but its turn, and for the rest of its gang.
HELD_S, GANG_HELD_S = 30.0, 360.0


class Stage(enum.Enum):
    """The way of an assumed pod; the values are shown by /explain and metrics."""

    #: Decided; kube-scheduler has not asked to bind it yet.
    HELD = "held"
    #: A Binding is being prepared or on its way.
    BINDING = "binding"
    #: A Binding was sent, and its response is lost.
    UNKNOWN = "unknown"
    #: The API server has accepted the Binding; the watch has not shown it yet.
    ACCEPTED = "accepted"
    #: Shown bound, or released; it is not assumed any more.
    OVER = "over"


_UNSETTLED = (Stage.BINDING, Stage.UNKNOWN)


@dataclasses.dataclass(slots=True, eq=False)
class AssumedPod:
    """A pod whose cards are held on a node though the API server does not show it there."""

    uid: str
    namespace: str
    name: str
    node: str
    stage: Stage
    #: Since when it is in this stage (monotonic seconds).
    since: float
    request: PodRequest
    #: The node as it was when the cards were chosen.
    decided_on: NodeInfo | None
    #: Carries the trace from /filter to /bind.
    trace: str = ""
    #: Whether the pod carries an explanation of why it was unschedulable.
    explained: bool = False
    #: The pod group of the pod, or empty.
    group: str = ""
    #: The pod as kube-scheduler had it when it asked: its version, and why it was not scheduled.
    version: int = 0
    not_scheduled: str = ""
    #: Whether it may have to wait for a volume or a claim.
    slow: bool = False
    #: Set, and replaced by a new one, when its stage changes.
    moved: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class AssumedPods:
    """All assumed pods, by UID; their cards are counted in the cluster's state."""

    def __init__(
        self, watched: WatchedCluster, *, clock: Callable[[], float], timeout: float
    ) -> None:
        self._watched = watched
        self._clock = clock
        self._timeout = timeout
        self._assumed: dict[str, AssumedPod] = {}
        watched.pods.add_handler(self._on_pod)

    def __len__(self) -> int:
        return len(self._assumed)

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(tuple(self._assumed.values()))

    def get(self, uid: str) -> AssumedPod | None:
        return self._assumed.get(uid)

    def info(self, assumed: AssumedPod) -> PodInfo:
        """Return the cards that are held for a pod."""
        return self._watched.cluster.pods[assumed.uid]

    async def settled(self, uid: str, patience: float | None = None) -> AssumedPod | None:
        """Return an assumed pod once its bind result is known; None if it is not assumed.

        Raises BindRefusedError if an earlier bind takes longer than `patience` seconds; None:
        as long as /bind waits for a result.
        """
        assumed = self._assumed.get(uid)
        if assumed is None or assumed.stage not in _UNSETTLED:
            return assumed
        until = self._clock() + (RESULT_PATIENCE_S if patience is None else patience)
        while assumed.stage in _UNSETTLED:
            moved = assumed.moved
            try:
                await asyncio.wait_for(moved.wait(), max(until - self._clock(), 0))
            except TimeoutError:
                raise BindRefusedError(
                    f"an earlier bind of pod {assumed.key} to node {assumed.node} is still "
                    f"{assumed.stage.value}; its cards stay reserved until the API server shows "
                    "the result. Nothing to do: kube-scheduler retries"
                ) from None
        return self._assumed.get(uid)

    def assume(
        self,
        pod: objects.Pod,
        wanted: PodRequest,
        placement: decide.Placement,
        *,
        explained: bool = False,
    ) -> AssumedPod:
        """Hold the cards of a placement; those that the pod held before are released."""
        before = self._watched.cluster.pods.get(wanted.uid)
        info = decide.reservation(wanted, placement)
        self._end(self._assumed.pop(wanted.uid, None))
        self._watched.cluster.apply(state.PutPod(info))
        assumed = AssumedPod(
            uid=wanted.uid,
            namespace=wanted.namespace,
            name=wanted.name,
            node=placement.node,
            stage=Stage.HELD,
            since=self._clock(),
            request=wanted,
            decided_on=self._watched.cluster.nodes.get(placement.node),
            explained=explained,
            group=pod.pod_group,
            version=pod.version,
            not_scheduled=pod.not_scheduled,
            slow=pod.binds_slowly,
        )
        self._assumed[wanted.uid] = assumed
        if before is not None and (before.node, before.shares) != (info.node, info.shares):
            self._watched.room(before.node, "")
        return assumed

    def hold_instead(self, assumed: AssumedPod, placement: decide.Placement) -> None:
        """Hold other cards of the same node; the assumed pod stays in its stage."""
        cluster = self._watched.cluster
        cluster.apply(state.PutPod(decide.reservation(assumed.request, placement)))
        assumed.decided_on = cluster.nodes.get(placement.node)
        self._watched.room(assumed.node, "")

    def enter(self, assumed: AssumedPod, stage: Stage) -> None:
        """Change the stage, and resume `settled`."""
        assumed.stage = stage
        assumed.since = self._clock()
        assumed.moved.set()
        assumed.moved = asyncio.Event()

    def release(self, uid: str) -> None:
        """End an assumed pod that will not be bound, and free its cards."""
        self._end(self._assumed.pop(uid, None))
        info = self._watched.cluster.pods.get(uid)
        if self._watched.cluster.lapse(uid) is not None and info is not None:
            self._watched.room(info.node, info.namespace)

    def release_held(self) -> None:
        """Release all that wait for /bind."""
        for assumed in self:
            if assumed.stage is Stage.HELD:
                self.release(assumed.uid)

    def leadership_changed(self, leading: bool) -> None:  # noqa: FBT001  a handler's only value
        """Release what is held when the lease is lost: the new leader decides again.

        Bindings on their way are decided by the API server.
        """
        if not leading:
            self.release_held()

    def expire(self) -> list[AssumedPod]:
        """Release what was held for too long; returns it."""
        now = self._clock()
        expired = [
            assumed
            for assumed in self
            if assumed.stage is Stage.HELD and assumed.since + self._held_for(assumed) <= now
        ]
        for assumed in expired:
            self.release(assumed.uid)
        return expired

    def _held_for(self, assumed: AssumedPod) -> float:
        """Return the seconds in which kube-scheduler asks to bind a pod, unless it gave it up."""
        pod = self._watched.pods.get(assumed.uid)
        # kube-scheduler nominates the node of a pod that it may have to wait long for.
        if assumed.slow or (pod is not None and pod.nominated_node):
            return self._timeout
        return min(GANG_HELD_S if assumed.group else HELD_S, self._timeout)

    def in_doubt(self, accepted_for: float) -> list[AssumedPod]:
        """Return pods to ask the API server for: response lost, or accepted but not shown.

        `accepted_for` are the seconds that the watch has to show an accepted Binding.
        """
        now = self._clock()
        return [
            assumed
            for assumed in self
            if assumed.stage is Stage.UNKNOWN
            or (assumed.stage is Stage.ACCEPTED and now - assumed.since >= accepted_for)
        ]

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        pod = new or old
        assumed = self._assumed.get(pod.uid) if pod is not None else None
        if assumed is None:
            return
        info = self._watched.cluster.pods.get(assumed.uid)
        if new is None or info is None or info.hold is Hold.BOUND:
            del self._assumed[assumed.uid]
            self._end(assumed)
        elif assumed.stage is Stage.HELD and _given_up(assumed, new):
            extra = {"pod": assumed.key, "node": assumed.node, "why": new.not_scheduled}
            _log.info("kube-scheduler gave the pod up, releasing its cards", extra=extra)
            self.release(assumed.uid)

    def _end(self, assumed: AssumedPod | None) -> None:
        if assumed is not None:
            self.enter(assumed, Stage.OVER)


def _given_up(assumed: AssumedPod, pod: WatchedPod) -> bool:
    """Return whether kube-scheduler gave up a pod after we decided about it."""
    if pod.deleting:
        return True
    # The watch may be behind kube-scheduler, and show what it wrote before it asked.
    news = pod.not_scheduled not in ("", assumed.not_scheduled)
    return news and pod.version > assumed.version


class LostAnswers:
    """Resolve Bindings whose response was lost, by reading their pods."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        assumed_pods: AssumedPods,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        self._assumed_pods = assumed_pods
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[bool]] = {}

    async def wait(self, assumed: AssumedPod, certain_at: float, cause: errors.KubeError) -> None:
        """Wait for the result of a Binding; raise BindRefusedError unless it took effect.

        `cause` is why the response is lost, `certain_at` as in `resolve`.
        """
        if assumed.stage is not Stage.OVER:
            self._assumed_pods.enter(assumed, Stage.UNKNOWN)
        result = self.resolve(assumed, certain_at)
        done, _ = await asyncio.wait([result], timeout=RESULT_PATIENCE_S)
        if not done:
            raise BindRefusedError(
                f"it is not known whether the Binding took effect: {cause}. Its cards stay "
                "reserved until the API server shows the result; kube-scheduler retries"
            )
        if not result.result():
            raise BindRefusedError(
                f"the Binding did not take effect: {cause}. Nothing to do: kube-scheduler retries"
            )

    def resolve(self, assumed: AssumedPod, certain_at: float) -> asyncio.Task[bool]:
        """Find out whether a pod is bound to its node, with one task per pod at a time.

        From `certain_at` on (monotonic) an unbound pod will stay unbound.
        """
        task = self._tasks.get(assumed.uid)
        if task is None:
            name = f"bind result of {assumed.key}"
            task = asyncio.create_task(self._resolve(assumed, certain_at), name=name)
            self._tasks[assumed.uid] = task
            task.add_done_callback(lifetime.log_failure)  # maintenance begins it again
            task.add_done_callback(lambda _: self._tasks.pop(assumed.uid, None))
        return task

    def resolve_overdue(self) -> None:
        """Read the pods that the watch should have shown long ago."""
        for assumed in self._assumed_pods.in_doubt(ACCEPTED_FOR_S):
            self.resolve(assumed, self._clock())

    async def end(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _resolve(self, assumed: AssumedPod, certain_at: float) -> bool:
        pause = Backoff(first=ASK_AGAIN_S, longest=ASK_AT_MOST_S)
        extra = {"pod": assumed.key, "node": assumed.node}
        while assumed.stage is not Stage.OVER:
            pod: objects.Pod | None
            asked_at = self._clock()
            try:
                body = await self._client.get(paths.pods(assumed.namespace, assumed.name))
                pod = codec.decode(body, objects.Pod, what=f"pod {assumed.name}")
            except errors.NotFound:
                pod = None
            except (errors.KubeError, wire_errors.WireError) as error:
                wait = pause.next(
                    error.retry_after if isinstance(error, errors.KubeError) else None
                )
                _log.warning(
                    "bind result unknown, retrying",
                    extra=extra | {"error": str(error), "wait": round(wait, 3)},
                )
                await asyncio.sleep(wait)
                continue
            if pod is None or pod.uid != assumed.uid:
                _log.info("pod deleted, releasing its cards", extra=extra)
                self._watched.pods.offer_missing(assumed.uid)
                self._assumed_pods.release(assumed.uid)
            elif pod.finished:
                _log.info("pod finished, releasing its cards", extra=extra)
                self._watched.pods.offer(body)
                self._assumed_pods.release(assumed.uid)
            elif pod.node_name:
                self._watched.pods.offer(body)
                if self._assumed_pods.get(assumed.uid) is assumed:
                    # The informer knows a later version: etcd may have been restored.
                    self._watched.pods.resync()
                    await asyncio.sleep(pause.next())
            elif asked_at >= certain_at:
                _log.info("pod was not bound, releasing its cards", extra=extra)
                self._assumed_pods.release(assumed.uid)
            else:
                await asyncio.sleep(min(ASK_AGAIN_S, max(certain_at - self._clock(), 0.01)))
        info = self._watched.cluster.pods.get(assumed.uid)
        return (
            info is not None
            and info.node == assumed.node
            and self._assumed_pods.get(assumed.uid) is None
        )
