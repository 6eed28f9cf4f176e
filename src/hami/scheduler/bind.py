"""/bind: the one write that places a pod, and certainty about it.

What a Binding writes into its pod: the decision, in HAMi's annotations, and its proof.
One write binds the pod and records where its cards are (D3). Devices are written twice: the list
that HAMi's device plugins consume, and the one that stays. The proof covers pod, node and the
latter (D14).

/bind: the one write that places a pod, and certainty about it.
The way of a bind: a booking (from /filter, or fitted again on the node that kube-scheduler names),
a turn and a lock where the node needs one, then the Binding. Whoever asked may go away while it
waits, and then it leaves the queue; once the Binding is on its way it is carried to its end,
whoever listens.

A Binding is done, refused or lost. If its answer is lost, the cells stay booked and the API server
is asked for the pod (`assumed_pods`) until it is certain what became of it. A crash at any point
leaves nothing but what the API server has: the next process reads the bound pods there, and
a lock whose pod was never bound is found stale.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from hami.cluster.pod_info import Allocation, PodInfo
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.placement import decide, request
from hami.scheduler import node_lock
from hami.scheduler.assumed_pods import AssumedPod, AssumedPods, LostAnswers, Stage
from hami.scheduler.errors import BindRefusedError
from hami.scheduler.informers import World
from hami.scheduler.leadership import Leadership, NotLeadingError, Permit, PermitExpiredError
from hami.scheduler.node_lock import BindQueue, Caller, CallerLeftError, NodeLocks, QueuedBind
from hami.scheduler.unschedulable import carried
from hami.serving import grant_keys
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, codec, extender_api, objects, shares, signature
from hami.wire import errors as wire_errors

ALLOCATING = "allocating"


def write(
    row: PodInfo, vendors: Mapping[str, Vendor], *, now: float, keys: signature.GrantKeys | None
) -> dict[str, str]:
    """Return the annotations of the Binding that puts `row`'s pod on its node."""
    if not row.slots:
        return {}
    seconds = str(int(now))
    written = {
        annotation_keys.ASSIGNED_NODE: row.node,
        annotation_keys.ASSIGNED_TIME: seconds,
        annotation_keys.BIND_PHASE: ALLOCATING,
        annotation_keys.BIND_TIME: seconds,
    }
    for word, slots in row.slots:
        devices = shares.encode(slots)
        own = vendors[word].annotations
        written[own.to_allocate] = devices
        written[own.allocated] = devices
        if keys is not None and own.allocated == annotation_keys.SIGNED_DEVICES:
            written[annotation_keys.GRANT_MAC] = signature.sign(
                keys, uid=row.uid, node=row.node, devices=devices
            )
    return written


_log = logging.getLogger(__name__)

#: Seconds that a caller waits for the fate of a Binding whose answer was lost.
FATE_PATIENCE_S = 12.0
SEND_ATTEMPTS = 5

Annotations = Callable[[AssumedPod], dict[str, str]]


class Binder:
    def __init__(
        self,
        *,
        client: Client,
        world: World,
        bookings: AssumedPods,
        leadership: Leadership,
        locks: NodeLocks,
        fates: LostAnswers,
        keys: grant_keys.KeyFolder | None,
        defaults: request.Defaults,
        group_patience: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._world = world
        self._bookings = bookings
        self._leadership = leadership
        self._locks = locks
        self._fates = fates
        self._keys = keys
        self._defaults = defaults
        self._group_patience = group_patience
        self._clock = clock
        self._now = now
        self._turns = BindQueue()
        self._under_way: set[asyncio.Task[None]] = set()
        #: Told how many seconds a bind waited for its node's lock.
        self.waited: Callable[[float], None] = lambda _: None
        #: Further annotations for the Binding.
        self.further: Annotations = lambda _: {}

    async def bind(self, args: extender_api.BindingArgs, *, trace: str = "") -> AssumedPod | None:
        """Bind a pod, or raise BindRefusedError. None: there was nothing (more) to book."""
        booking = await self._booking(args)
        if booking is None:
            return None
        booking.trace = trace or booking.trace
        patience = self._group_patience if booking.group else math.inf
        caller = Caller(self._leadership, waits_until=self._clock() + patience)
        self._bookings.enter(booking, Stage.BINDING)
        if self._needs_lock(booking):
            begin = self._clock()
            turn = await self._turn(booking, caller)
            work = self._lock_and_post(booking, caller, turn, begin)
        else:
            work = self._post(booking, caller)
        await self._to_its_end(work, caller)
        return booking

    async def drain(self) -> None:
        """Wait until every Binding that is on its way has come to its end."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    # Which booking.

    async def _booking(self, args: extender_api.BindingArgs) -> AssumedPod | None:
        booking = self._bookings.get(args.pod_uid)
        if booking is not None and booking.stage in (Stage.BINDING, Stage.UNKNOWN):
            await self.settled(booking, FATE_PATIENCE_S)
            booking = self._bookings.get(args.pod_uid)
        if booking is not None and booking.node == args.node:
            return None if booking.stage is Stage.ACCEPTED else booking
        if booking is not None and booking.stage is Stage.ACCEPTED:
            raise BindRefusedError(f"the pod was bound to {booking.node} already")
        row = self._world.cluster.rows.get(args.pod_uid)
        if row is not None and row.hold is Allocation.BOUND:
            _require_same(args, row.node)
            return None
        return await self._fit_again(args)

    async def settled(self, booking: AssumedPod, patience: float) -> None:
        """Wait until an earlier bind of the pod has come to its end; raise if it takes too long."""
        until = self._clock() + patience
        while booking.stage in (Stage.BINDING, Stage.UNKNOWN):
            left = until - self._clock()
            moved = booking.moved
            try:
                await asyncio.wait_for(moved.wait(), max(left, 0))
            except TimeoutError:
                raise BindRefusedError(
                    f"an earlier bind of {booking.namespace}/{booking.name} to {booking.node} is "
                    f"still {booking.stage.value}; its cards stay booked until that is certain"
                ) from None

    async def _fit_again(self, args: extender_api.BindingArgs) -> AssumedPod | None:
        """Book the node that kube-scheduler names for a pod without a reservation there."""
        pod = await self._read_pod(args)
        if pod.node_name:
            _require_same(args, pod.node_name)
            return None
        try:
            wanted = request.parse(pod, tuple(self._world.cluster.vendors.values()), self._defaults)
        except wire_errors.WireError as error:
            raise BindRefusedError(str(error)) from error
        if wanted is None:
            caller = Caller(self._leadership)
            await self._to_its_end(self._post_plain(args, caller), caller)
            return None
        if self._decided_meanwhile(args):
            return await self._booking(args)
        decision = decide.decide(self._world.cluster, wanted, [args.node])
        if decision.winner is None:
            raise BindRefusedError(
                f"nothing is reserved on {args.node} for the pod, and it does not fit there now: "
                f"{decision.explanation.summary()}"
            )
        _log.info("fitted again at bind", extra={"pod": _key(args), "node": args.node})
        booking = self._bookings.hold(wanted, decision.winner)
        booking.group = pod.pod_group
        booking.explained = carried(pod) is not None
        return booking

    def _decided_meanwhile(self, args: extender_api.BindingArgs) -> bool:
        """Whether, while the pod was read, somebody booked that node or bound the pod."""
        booking = self._bookings.get(args.pod_uid)
        if booking is not None:
            return booking.node == args.node or booking.stage is not Stage.HELD
        row = self._world.cluster.rows.get(args.pod_uid)
        return row is not None and row.hold is Allocation.BOUND

    async def _read_pod(self, args: extender_api.BindingArgs) -> objects.Pod:
        if self._world.has_ended(args.pod_uid):
            raise BindRefusedError(f"pod {_key(args)} with UID {args.pod_uid} is gone")
        try:
            body = await self._client.get(paths.pods(args.pod_namespace, args.pod_name))
            pod = codec.decode(body, objects.Pod, what=f"pod {_key(args)}")
        except (errors.KubeError, wire_errors.WireError) as error:
            raise BindRefusedError(f"pod {_key(args)} cannot be read: {error}") from error
        self._world.pods.offer(body)
        if pod.uid != args.pod_uid or pod.finished or self._world.has_ended(args.pod_uid):
            raise BindRefusedError(f"pod {_key(args)} with UID {args.pod_uid} is gone")
        return pod

    # Carrying it out.

    def _needs_lock(self, booking: AssumedPod) -> bool:
        record = self._world.nodes.by_key(booking.node)
        late = record.late if record is not None else frozenset()
        vendors = self._world.cluster.vendors
        words = self._bookings.row(booking).words()
        return any(vendors[word].takes_lock and word not in late for word in words)

    async def _turn(self, booking: AssumedPod, caller: Caller) -> QueuedBind:
        patience = caller.patience(self._clock())
        try:
            async with asyncio.timeout(None if math.isinf(patience) else patience):
                return await self._turns.wait(booking.node)
        except TimeoutError:
            self._back_to_held(booking)
            raise node_lock.out_of_patience() from None
        except asyncio.CancelledError:
            self._back_to_held(booking)
            raise

    async def _to_its_end(self, work: Coroutine[Any, Any, None], caller: Caller) -> None:
        """Wait for work that goes on, to where it can stop, even if nobody waits any more."""
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
        if not task.cancelled() and task.exception() is not None:
            _log.debug("bind ended", extra={"error": str(task.exception())})

    async def _lock_and_post(
        self, booking: AssumedPod, caller: Caller, turn: QueuedBind, begin: float
    ) -> None:
        lock = ""
        try:
            if not self._still_needed(booking):
                return
            lock = await self._locks.take(booking.node, booking.namespace, booking.name, caller)
            self.waited(self._clock() - begin)
            await self._post(booking, caller)
        except BaseException as error:
            if booking.stage is Stage.BINDING:
                self._back_to_held(booking)
            if lock and booking.stage is not Stage.UNKNOWN:
                await self._give_back(booking.node, lock)
            if isinstance(error, errors.KubeError):
                raise BindRefusedError(f"node {booking.node} cannot be locked: {error}") from error
            if isinstance(error, NotLeadingError):
                self._bookings.give_up(booking.uid)
            if isinstance(error, CallerLeftError | NotLeadingError):
                raise BindRefusedError(str(error)) from error
            raise
        finally:
            turn.hand_on()

    def _still_needed(self, booking: AssumedPod) -> bool:
        """Return whether the pod is still to be bound; raise if it cannot be any more."""
        if booking.stage is Stage.BINDING:
            return True
        row = self._world.cluster.rows.get(booking.uid)
        if row is not None and row.hold is Allocation.BOUND and row.node == booking.node:
            return False
        what = f"bound to {row.node}" if row is not None else "deleted, or has finished,"
        raise BindRefusedError(
            f"pod {booking.namespace}/{booking.name} was {what} while its bind waited"
        )

    async def _give_back(self, node: str, lock: str) -> None:
        try:
            await self._locks.give_back(node, lock)
        except errors.KubeError as error:
            # Found stale by the next bind to this node: its pod is not bound.
            _log.warning("lock stays behind", extra={"node": node, "error": str(error)})

    async def _post(self, booking: AssumedPod, caller: Caller) -> None:
        """Send the Binding, and leave the booking in the stage that is then true."""
        if not self._still_needed(booking):
            return
        uid = booking.uid
        try:
            row = self._bookings.row(booking)
            keys = self._keys.keys() if self._keys is not None else None
            vendors = self._world.cluster.vendors
            annotations = write(row, vendors, now=self._now(), keys=keys)
            body = objects.binding(
                name=booking.name,
                namespace=booking.namespace,
                uid=uid,
                node=booking.node,
                annotations=annotations | self.further(booking),
            )
            await self._send(body, caller)
        except CallerLeftError as error:
            self._back_to_held(booking)
            raise BindRefusedError(str(error)) from error
        except (NotLeadingError, wire_errors.WireError) as error:
            self._bookings.give_up(uid)
            raise BindRefusedError(str(error)) from error
        except errors.KubeError as error:
            if error.outcome_unknown or isinstance(error, errors.Conflict):
                # A conflict is certain, but it may be with our own earlier Binding.
                still = self._leadership.longest_write if error.outcome_unknown else 0.0
                await self._ask_for_fate(booking, self._clock() + still, error)
                return
            self._bookings.give_up(uid)
            raise BindRefusedError(f"the API server refused the Binding: {error}") from error
        else:
            if booking.stage is Stage.BINDING:  # the watch may have been faster
                self._bookings.enter(booking, Stage.ACCEPTED)

    async def _ask_for_fate(
        self, booking: AssumedPod, certain_at: float, cause: errors.KubeError
    ) -> None:
        if booking.stage is not Stage.OVER:
            self._bookings.enter(booking, Stage.UNKNOWN)
        fate = self._fates.ask(booking, certain_at)
        done, _ = await asyncio.wait([fate], timeout=FATE_PATIENCE_S)
        if not done:
            raise BindRefusedError(f"it is not known whether the Binding took effect: {cause}")
        if not fate.result():
            raise BindRefusedError(f"the Binding did not take effect: {cause}")

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
            await self._send(body, caller)
        except (NotLeadingError, errors.KubeError) as error:
            raise BindRefusedError(str(error)) from error

    async def _send(self, body: objects.Binding, caller: Caller) -> None:
        """Send a Binding while we lead; what was certainly not done is sent again."""
        refusal: errors.KubeError = errors.Unreachable(
            "the Binding could not be sent in time", outcome_unknown=False
        )
        for _ in range(SEND_ATTEMPTS):
            permit = self._leadership.permit(caller.term)
            try:
                await self._send_once(body, permit, caller)
            except PermitExpiredError:
                continue
            except errors.TooManyRequests as busy:
                refusal = busy
                await asyncio.sleep(1.0 if busy.retry_after is None else busy.retry_after)
            else:
                return
        raise refusal

    async def _send_once(self, body: objects.Binding, permit: Permit, caller: Caller) -> None:
        def last_moment() -> None:
            permit.check()
            caller.require()

        await self._client.create(
            paths.binding(body.namespace, body.name),
            codec.encode(body),
            query={"timeout": f"{permit.may_take:.1f}s"},
            guard=last_moment,
            timeout=permit.may_take + 1,
            retry_busy=False,
        )

    def _back_to_held(self, booking: AssumedPod) -> None:
        if booking.stage is Stage.BINDING:
            self._bookings.enter(booking, Stage.HELD)


def _key(args: extender_api.BindingArgs) -> str:
    return f"{args.pod_namespace}/{args.pod_name}"


def _require_same(args: extender_api.BindingArgs, node: str) -> None:
    if node != args.node:
        raise BindRefusedError(f"pod {_key(args)} is bound to {node} already, not to {args.node}")
