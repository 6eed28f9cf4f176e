"""Queue of binds per node, and the callers that wait in it."""

from __future__ import annotations

import asyncio
import math

from hami.scheduler.errors import BindRefusedError
from hami.scheduler.leadership import Leadership, Permit


class BindQueue:
    """FIFO queue of binds per node."""

    def __init__(self) -> None:
        #: Node -> its lock, and how many binds hold it or wait for it.
        self._queues: dict[str, tuple[asyncio.Lock, int]] = {}

    async def wait(self, node: str) -> QueuedBind:
        """Wait to be the first; a cancelled bind has left the queue."""
        lock, length = self._queues.get(node, (asyncio.Lock(), 0))
        self._queues[node] = (lock, length + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._remove(node)
            raise
        return QueuedBind(self, node)

    def __len__(self) -> int:
        """Return how many binds are first in their queue or wait, on all nodes."""
        return sum(length for _, length in self._queues.values())

    def end(self, node: str) -> None:
        self._queues[node][0].release()
        self._remove(node)

    def _remove(self, node: str) -> None:
        lock, length = self._queues[node]
        if length == 1:
            del self._queues[node]
        else:
            self._queues[node] = (lock, length - 1)


class QueuedBind:
    """The first in the queue of a node, until it leaves."""

    def __init__(self, queue: BindQueue, node: str) -> None:
        self._queue = queue
        self._node = node
        self._left = False

    def leave(self) -> None:
        """Let the next bind go on; doing it twice does no harm."""
        if not self._left:
            self._left = True
            self._queue.end(self._node)


class CallerLeftError(Exception):
    """The caller of /bind disconnected, and no Binding was sent."""


class Caller:
    """A /bind caller: deadline, disconnect, and the term of leadership it came in."""

    def __init__(
        self, leadership: Leadership, *, term: int | None = None, waits_until: float = math.inf
    ) -> None:
        self._leadership = leadership
        #: The term of leadership in which the bind began; a decision holds in its term alone.
        self.term = leadership.term if term is None else term
        #: Monotonic.
        self._waits_until = waits_until
        #: Done when the caller has disconnected.
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def require(self, permit: Permit | None = None) -> None:
        """Raise unless the permit holds, we still lead and the caller is connected."""
        if permit is not None:
            permit.check()
        self._leadership.check_decision(self.term)
        if self.left.done():
            raise CallerLeftError(
                "kube-scheduler closed its connection before the Binding was sent; if that "
                "repeats, raise the extender's httpTimeout in its configuration"
            )

    def patience(self, clock: float) -> float:
        """Return for how many more seconds the caller waits for a lock."""
        return max(self._waits_until - clock, 0.0)

    def require_patience(self, clock: float, node: str) -> None:
        """Raise unless the caller is connected and its time for the lock is not over."""
        self.require()
        if self.patience(clock) <= 0:
            raise lock_timeout(node)


def lock_timeout(node: str) -> BindRefusedError:
    return BindRefusedError(
        f"node lock contention on {node}: timed out after --node-lock-retry-timeout, which holds "
        "for members of pod groups; kube-scheduler retries, a longer timeout waits"
    )
