"""The cluster as the scheduler sees it: nodes, placed and assumed pods.

A decision counts at once, long before the watch shows it: the pod is assumed on its node until it
is seen there, or its binding fails, or it was not seen for half a minute after it was bound (then
the server has lost it, and it is tried again). Every change that may make a pod fit requeues the
pods for which it does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable

from hami.kube.store import Cache
from hami_sandbox.kube_scheduler import checks
from hami_sandbox.kube_scheduler.checks import Neighbours
from hami_sandbox.kube_scheduler.nodes import Node, Row
from hami_sandbox.kube_scheduler.pods import Pod
from hami_sandbox.kube_scheduler.queue import Queue
from hami_sandbox.kube_scheduler.surveys import Survey, Surveys

#: Seconds in which a bound pod must be seen on its node.
SEEN_WITHIN_S = 30.0


@dataclasses.dataclass(slots=True, eq=False)
class _Assumed:
    row: Row
    expires: float = math.inf


class ClusterState:
    def __init__(
        self, queue: Queue, *, schedulers: Collection[str], clock: Callable[[], float]
    ) -> None:
        self.pods: Cache[Pod] = Cache()
        self.nodes: Cache[Node] = Cache()
        self._queue = queue
        self._schedulers = frozenset(schedulers)
        self._clock = clock
        self._rows: dict[str, Row] = {}
        #: The row in which a pod is counted.
        self._places: dict[str, Row] = {}
        self._assumed: dict[str, _Assumed] = {}
        #: Placed pods with anti-affinity.
        self._repelling: dict[str, tuple[Pod, Row]] = {}
        self._surveys = Surveys(self._rows)
        self.pods.subscribe(self._on_pod)
        self.nodes.subscribe(self._on_node)

    def rows(self) -> list[Row]:
        """Return the nodes that exist."""
        return [row for row in self._rows.values() if row.node is not None]

    def survey(self, pod: Pod) -> Survey:
        """Return the checked and scored nodes for a pod, without pod affinity."""
        return self._surveys.of(pod)

    def neighbours(self, pod: Pod) -> Neighbours | None:
        """Return the pod affinity of a pod; None: it has none, and no placed pod has."""
        if not (pod.near or pod.far or self._repelling):
            return None
        return Neighbours(pod, self._rows.values(), self._repelling.values())

    # Decisions.

    def assume(self, pod: Pod, row: Row) -> None:
        """Count a pod on a node from now on."""
        self._assumed[pod.uid] = _Assumed(row)
        self._place(pod, row)

    def bound(self, uid: str) -> None:
        """Expect a pod to be seen on its node soon."""
        assumed = self._assumed.get(uid)
        if assumed is not None:
            assumed.expires = self._clock() + SEEN_WITHIN_S

    def forget(self, uid: str) -> None:
        """Take back an assumption: the pod was not bound."""
        if self._assumed.pop(uid, None) is not None:
            self._remove(uid)

    def expire(self) -> list[Pod]:
        """Requeue pods that were bound and never seen on their node; return them."""
        now = self._clock()
        late = [uid for uid, assumed in self._assumed.items() if assumed.expires <= now]
        found = []
        for uid in late:
            self.forget(uid)
            pod = self.pods.by_uid(uid)
            if pod is not None:
                found.append(pod)
                self._want(pod)
        return found

    # What the watches show.

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._queue.remove(old.uid)
                self._assumed.pop(old.uid, None)
                self._remove(old.uid)
        elif new.node_name:
            self._queue.remove(new.uid)
            self._assumed.pop(new.uid, None)
            self._settle(old, new)
        else:
            self._want(new)

    def _want(self, pod: Pod) -> None:
        if pod.scheduler_name not in self._schedulers or pod.gated or pod.deleting:
            self._queue.remove(pod.uid)
        elif pod.uid not in self._assumed or self._queue.get(pod.uid) is not None:
            self._queue.put(pod)

    def _settle(self, old: Pod | None, pod: Pod) -> None:
        """Count a pod that has a node."""
        row = self._row(pod.node_name)
        before = self._places.get(pod.uid)
        if before is row and old is not None and old.own == pod.own:
            return  # its status only
        shrunk = before is row and any(
            amount > pod.needs.get(name, 0) for name, amount in row.pods[pod.uid].needs.items()
        )
        if before is not None and before is not row:
            self._remove(pod.uid)
        self._place(pod, row)
        if shrunk:
            self._freed(row, pod)
        # Another pod may wait to be near this one.
        self._queue.wake(lambda waiting: bool(waiting.near))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        row = self._row(node.name)
        if new is None:
            if row.node is not None and row.node.uid == node.uid:
                row.node = None
                self._surveys.touch(row)
                self._drop_if_empty(row)
            return
        before, row.node = row.node, new
        if before is None or before.properties != new.properties:
            self._surveys.touch(row)
            self._queue.wake(self._may_fit(row))

    def _place(self, pod: Pod, row: Row) -> None:
        row.add(pod)
        self._surveys.touch(row)
        self._places[pod.uid] = row
        if pod.far:
            self._repelling[pod.uid] = (pod, row)

    def _remove(self, uid: str) -> None:
        row = self._places.pop(uid, None)
        pod = row.remove(uid) if row is not None else None
        if row is None or pod is None:
            return
        self._repelling.pop(uid, None)
        self._surveys.touch(row)
        self._freed(row, pod)
        self._drop_if_empty(row)

    def _freed(self, row: Row, pod: Pod) -> None:
        """Requeue pods that may fit without this pod; its anti-affinity held for any node."""
        may_fit = self._may_fit(row)
        self._queue.wake(lambda waiting: bool(pod.far) or may_fit(waiting))

    @staticmethod
    def _may_fit(row: Row) -> Callable[[Pod], bool]:
        """Return a test whether a pod may fit on a node; pods of a kind are checked once.

        For pod affinity any change may matter.
        """
        judged: dict[Hashable, bool] = {}

        def may(pod: Pod) -> bool:
            if pod.near or pod.far:
                return True
            if pod.kind not in judged:
                judged[pod.kind] = not checks.reasons(pod, row)
            return judged[pod.kind]

        return may

    def _row(self, name: str) -> Row:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = Row(name)
        return row

    def _drop_if_empty(self, row: Row) -> None:
        if row.node is None and not row.pods:
            self._rows.pop(row.name, None)
