"""/bind: write the Binding that places a pod, and be certain of its result.

One write binds the pod and records its cards, in HAMi's annotations
(docs/designs/001-late-binding.md). The steps: take the assumed pod of /filter, or place the pod on
the node that kube-scheduler names; queue for the node and take its lock where the node needs one;
check that the pod's cards are still there and have room, or fit it on that node again; send the
Binding. If kube-scheduler disconnects, a bind that waits leaves the queue. Once its Binding is on
its way it is carried to its end in a task of its own.

A Binding is accepted, refused or lost. While it is lost its cards stay held, and the API server is
asked for the pod (`assumed_pods`). A crash at any point leaves only what the API server has: the
next process reads the bound pods there, and a lock whose pod was never bound is stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from hami.cluster.pod_info import Hold
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler import bind_queue, binding
from hami.scheduler.assumed_pods import AssumedPod, AssumedPods, LostAnswers, Stage
from hami.scheduler.bind_queue import BindQueue, Caller, CallerLeftError, QueuedBind
from hami.scheduler.binding import BindingSender
from hami.scheduler.errors import (
    BindRefusedError,
    CardsChangedError,
    binding_failed,
    bound_elsewhere,
    changed_too_often,
    deleted,
)
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.leadership import Leadership, NotLeadingError
from hami.scheduler.metrics import Metrics
from hami.scheduler.node_lock import NodeLocks
from hami.scheduler.placer import Placer
from hami.scheduler.precedence import Precedence
from hami.serving import grant_keys, lifetime
from hami.vendors.table import NodeLock
from hami.wire import codec, extender_api, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: How often the cards of one bind may change while it queues for a connection.
CHANGES = 8


class Binder:
    """Bind pods, each once, while this replica leads."""

    def __init__(
        self,
        *,
        client: Client,
        watched: WatchedCluster,
        placer: Placer,
        precedence: Precedence,
        assumed_pods: AssumedPods,
        leadership: Leadership,
        locks: NodeLocks,
        lost_answers: LostAnswers,
        keys: grant_keys.KeyFolder | None,
        metrics: Metrics,
        group_patience: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        self._placer = placer
        self._precedence = precedence
        self._assumed_pods = assumed_pods
        self._leadership = leadership
        self._locks = locks
        self._lost_answers = lost_answers
        self._keys = keys  # None: decisions are not signed
        self._metrics = metrics
        self._group_patience = group_patience  # seconds that a gang's pod waits for a node lock
        self._clock = clock
        self._now = now
        self._sender = BindingSender(client, leadership)
        self._queue = BindQueue()
        self._under_way: set[asyncio.Task[None]] = set()

    async def bind(self, args: extender_api.BindingArgs, *, trace: str = "") -> AssumedPod | None:
        """Bind a pod, or raise BindRefusedError; None: it held no cards, or was bound before."""
        # Before any wait: a placement after the lease was lost and gained again has not caught up.
        term = self._leadership.term
        assumed = await self._assumed_pod(args)
        if assumed is None:
            return None
        assumed.trace = trace or assumed.trace
        patience = self._group_patience if assumed.group else math.inf
        caller = Caller(self._leadership, term=term, waits_until=self._clock() + patience)
        self._assumed_pods.enter(assumed, Stage.BINDING)
        if locks := self._locks_of(assumed):
            begin = self._clock()
            queued = await self._wait_in_queue(assumed, caller)
            work = self._lock_and_post(assumed, caller, queued, begin, locks)
        else:
            work = self._post(assumed, caller)
        await self._to_its_end(work, caller)
        return assumed

    async def drain(self) -> None:
        """Wait until every Binding that is on its way has come to its end."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    # The assumed pod.

    async def _assumed_pod(self, args: extender_api.BindingArgs) -> AssumedPod | None:
        assumed = await self._assumed_pods.settled(args.pod_uid)
        if assumed is not None and assumed.node == args.node:
            return None if assumed.stage is Stage.ACCEPTED else assumed
        if assumed is not None and assumed.stage is Stage.ACCEPTED:
            raise bound_elsewhere(args, assumed.node)
        bound = self._bound_node(args.pod_uid)
        if bound not in (None, args.node):
            raise bound_elsewhere(args, bound)
        return await self._place(args) if bound is None else None

    async def _place(self, args: extender_api.BindingArgs) -> AssumedPod | None:
        """Assume a pod on the node that kube-scheduler names, if nothing is held for it there."""
        pod = await self._read_pod(args)
        if pod.node_name:
            if pod.node_name != args.node:
                raise bound_elsewhere(args, pod.node_name)
            return None
        try:
            wanted = self._placer.parse(pod)
        except wire_errors.WireError as error:
            raise BindRefusedError(str(error)) from error
        if wanted is None:
            caller = Caller(self._leadership)
            await self._to_its_end(self._post_plain(args, caller), caller)
            return None
        if self._decided_meanwhile(args):
            return await self._assumed_pod(args)
        with self._precedence.before(pod.priority):
            decision = self._placer.decide(wanted, [args.node])
        if decision.winner is None:
            raise BindRefusedError(
                f"nothing is reserved on node {args.node} for pod {args.key}, and it does not "
                f"fit there now: {decision.explanation.summary()}. Nothing to do: kube-scheduler "
                "chooses a node again"
            )
        _log.info("placed again at bind", extra={"pod": args.key, "node": args.node})
        self._precedence.placed(wanted.uid, pod.priority, args.node)
        return self._placer.assume(pod, wanted, decision.winner)

    def _decided_meanwhile(self, args: extender_api.BindingArgs) -> bool:
        """Whether the pod was assumed on that node, or bound, while it was read."""
        assumed = self._assumed_pods.get(args.pod_uid)
        if assumed is not None:
            return assumed.node == args.node or assumed.stage is not Stage.HELD
        return self._bound_node(args.pod_uid) is not None

    def _bound_node(self, uid: str) -> str | None:
        """Return the node that the watch shows a pod on; None: it is not bound."""
        info = self._watched.cluster.pods.get(uid)
        return info.node if info is not None and info.hold is Hold.BOUND else None

    async def _read_pod(self, args: extender_api.BindingArgs) -> objects.Pod:
        if self._watched.has_ended(args.pod_uid):
            raise deleted(args)
        try:
            body = await self._client.get(paths.pods(args.pod_namespace, args.pod_name))
            pod = codec.decode(body, objects.Pod, what=f"pod {args.key}")
        except (errors.KubeError, wire_errors.WireError) as error:
            raise BindRefusedError(f"pod {args.key} cannot be read: {error}") from error
        self._watched.pods.offer(body)
        if pod.uid != args.pod_uid or pod.finished or self._watched.has_ended(args.pod_uid):
            raise deleted(args)
        return pod

    # Queue and lock.

    def _locks_of(self, assumed: AssumedPod) -> list[NodeLock]:
        """Return the locks that the pod's vendors need, each once and always in the same order."""
        node = self._watched.nodes.by_key(assumed.node)
        late = node.late if node is not None else frozenset()
        vendors = self._watched.cluster.vendors
        names = self._assumed_pods.info(assumed).vendors()
        needed = (vendors[name].lock for name in names if name not in late)
        by_key = {lock.key: lock for lock in needed if lock is not None}
        return [by_key[key] for key in sorted(by_key)]

    async def _wait_in_queue(self, assumed: AssumedPod, caller: Caller) -> QueuedBind:
        patience = caller.patience(self._clock())
        try:
            async with asyncio.timeout(None if math.isinf(patience) else patience):
                return await self._queue.wait(assumed.node)
        except TimeoutError:
            self._back_to_held(assumed, caller)
            raise bind_queue.lock_timeout(assumed.node) from None
        except asyncio.CancelledError:
            self._back_to_held(assumed, caller)
            raise

    async def _to_its_end(self, work: Coroutine[Any, Any, None], caller: Caller) -> None:
        """Wait for work in a task of its own, which goes on if the caller disconnects."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._finished)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            caller.leave()
            raise

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BindRefusedError):
            _log.debug("bind ended", extra={"error": str(error)})
        else:
            lifetime.log_failure(task)  # its caller may have left

    async def _lock_and_post(
        self,
        assumed: AssumedPod,
        caller: Caller,
        queued: QueuedBind,
        begin: float,
        locks: list[NodeLock],
    ) -> None:
        taken: list[tuple[NodeLock, str]] = []
        try:
            if not self._still_needed(assumed):
                return
            for lock in locks:
                value = await self._locks.take(lock, assumed.node, assumed, caller)
                taken.append((lock, value))
            self._metrics.queue_seconds.observe(self._clock() - begin)
            await self._post(assumed, caller)
        except BaseException as error:
            self._back_to_held(assumed, caller)
            if assumed.stage is not Stage.UNKNOWN:
                for lock, value in reversed(taken):
                    await self._release_lock(lock, assumed.node, value)
            if isinstance(error, errors.KubeError):
                raise BindRefusedError(f"node {assumed.node} cannot be locked: {error}") from error
            if isinstance(error, NotLeadingError):
                self._assumed_pods.release(assumed.uid)
            if isinstance(error, CallerLeftError | NotLeadingError):
                raise BindRefusedError(str(error)) from error
            raise
        finally:
            queued.leave()

    async def _release_lock(self, lock: NodeLock, node: str, value: str) -> None:
        try:
            await self._locks.release(lock, node, value)
        except errors.KubeError as error:
            # The next bind to this node finds it stale: its pod is not bound.
            _log.warning("cannot release node lock", extra={"node": node, "error": str(error)})

    # The Binding.

    def _still_needed(self, assumed: AssumedPod) -> bool:
        """Return whether the pod is still to be bound; raise if it cannot be any more."""
        if assumed.stage is Stage.BINDING:
            return True
        info = self._watched.cluster.pods.get(assumed.uid)
        if info is not None and info.hold is Hold.BOUND and info.node == assumed.node:
            return False
        what = f"bound to {info.node}" if info is not None else "deleted, or has finished,"
        raise BindRefusedError(
            f"pod {assumed.key} was {what} while its bind waited; to schedule it again, create a "
            "new one"
        )

    async def _post(self, assumed: AssumedPod, caller: Caller) -> None:
        """Send the Binding, and leave the assumed pod in the stage that is then true."""
        try:
            for _ in range(CHANGES):
                if not self._still_needed(assumed):
                    return
                self._placer.check_again(assumed)
                check = functools.partial(self._check_cards, assumed)
                with contextlib.suppress(CardsChangedError):  # while it queued for a connection
                    await self._sender.send(self._binding(assumed), caller, check)
                    break
            else:
                self._assumed_pods.release(assumed.uid)
                raise changed_too_often(assumed.key, assumed.node, CHANGES)
        except CallerLeftError as error:
            self._back_to_held(assumed, caller)
            raise BindRefusedError(str(error)) from error
        except (NotLeadingError, wire_errors.WireError) as error:
            self._assumed_pods.release(assumed.uid)
            raise BindRefusedError(str(error)) from error
        except errors.KubeError as error:
            if error.outcome_unknown or isinstance(error, errors.Conflict):
                # A conflict is certain, but it may be with our own earlier Binding.
                still = self._leadership.longest_write if error.outcome_unknown else 0.0
                await self._lost_answers.wait(assumed, self._clock() + still, error)
                return
            self._assumed_pods.release(assumed.uid)
            raise binding_failed(error) from error
        else:
            if assumed.stage is Stage.BINDING:  # the watch may have been faster
                self._assumed_pods.enter(assumed, Stage.ACCEPTED)

    def _binding(self, assumed: AssumedPod) -> objects.Binding:
        info, families = self._assumed_pods.info(assumed), self._watched.cluster.families
        keys = self._keys.keys() if self._keys is not None else None
        node = self._watched.nodes.by_key(assumed.node)
        reads = node.grant_forms if node is not None else ""
        return binding.of(
            assumed,
            info,
            families,
            node=self._watched.cluster.nodes.get(assumed.node),
            now=self._now(),
            keys=keys,
            reads=reads,
        )

    def _check_cards(self, assumed: AssumedPod) -> None:
        """Raise CardsChangedError if a pod that is still to be bound lost its cards in a queue."""
        if self._still_needed(assumed):
            self._placer.require_fit(assumed)

    async def _post_plain(self, args: extender_api.BindingArgs, caller: Caller) -> None:
        """Bind a pod that asks for none of our cards: kube-scheduler may leave that to us, too."""
        body = objects.binding(
            name=args.pod_name,
            namespace=args.pod_namespace,
            uid=args.pod_uid,
            node=args.node,
            annotations={},
        )
        try:
            await self._sender.send(body, caller)
        except (CallerLeftError, NotLeadingError) as error:
            raise BindRefusedError(str(error)) from error
        except errors.KubeError as error:
            raise binding_failed(error) from error

    def _back_to_held(self, assumed: AssumedPod, caller: Caller) -> None:
        """Hold the pod for another /bind; release it if the lease was lost since the decision."""
        if assumed.stage is not Stage.BINDING:
            return
        self._assumed_pods.enter(assumed, Stage.HELD)
        if not self._leadership.leading or caller.term != self._leadership.term:
            self._assumed_pods.release(assumed.uid)
