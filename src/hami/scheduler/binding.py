"""The Binding of a pod: what it records, and how it is sent while we lead.

Its annotations are HAMi's record of a decision, with our signature. It is sent as soon as a
connection is free, on a permit that is taken only then: time in the queue counts against nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping

from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import PodInfo
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.request import Terms
from hami.scheduler.assumed_pods import AssumedPod
from hami.scheduler.bind_queue import Caller
from hami.scheduler.leadership import Leadership, PermitExpiredError
from hami.serving import tracing
from hami.serving.grant_keys import Keyring
from hami.vendors import table
from hami.vendors.family import Family, Grant
from hami.wire import annotation_keys, codec, explanation_note, grant, objects

ALLOCATING = "allocating"
SEND_ATTEMPTS = 5
#: Seconds before a busy API server is asked again, whatever time it names: cards are held.
BUSY_AT_MOST_S = 10.0
#: Seconds that a Binding waits for a free connection: a burst of 12,000 at 1 s each.
QUEUE_S = 120.0


def of(
    assumed: AssumedPod,
    info: PodInfo,
    families: Mapping[str, Family],
    *,
    node: NodeInfo | None,
    now: float,
    keys: Keyring | None,
    reads: str,
) -> objects.Binding:
    """Return the Binding of an assumed pod that holds these cards of its node.

    `reads` are the forms of grants that the node's agent says it verifies.
    """
    return objects.binding(
        name=assumed.name,
        namespace=assumed.namespace,
        uid=assumed.uid,
        node=assumed.node,
        annotations=decision_annotations(
            info,
            families,
            containers=tuple(each.name for each in assumed.request.containers),
            node=node,
            now=now,
            keys=keys,
            reads=reads,
        )
        | _pod_annotations(assumed),
    )


def decision_annotations(
    info: PodInfo,
    families: Mapping[str, Family],
    *,
    containers: tuple[str, ...],
    node: NodeInfo | None,
    now: float,
    keys: Keyring | None,
    reads: str,
) -> dict[str, str]:
    """Return the annotations by which a Binding records a pod's node and cards.

    `containers` are the names of the pod's, init containers first. The signature covers pod, node
    and device lists (docs/designs/002-grants.md).
    """
    if not info.shares:
        return {}
    seconds = str(int(now))
    written = {
        annotation_keys.ASSIGNED_NODE: info.node,
        annotation_keys.ASSIGNED_TIME: seconds,
        annotation_keys.BIND_PHASE: ALLOCATING,
        annotation_keys.BIND_TIME: seconds,
    }
    for vendor, pod_shares in info.shares:
        cards = node.cards.get(vendor, ()) if node is not None else ()
        granted = Grant(containers, {card.id: card for card in cards}, now)
        written |= families[vendor].record(pod_shares, granted)
    if keys is not None:
        lists = table.device_lists(family.vendor for family in families.values())
        devices = {key: written[key] for key in lists if key in written}
        signed = grant.Grant(uid=info.uid, node=info.node, devices=devices)
        if devices and (mac := keys.sign(signed, grant.decode_forms(reads))):
            written[annotation_keys.GRANT_MAC] = mac
    return written


def _pod_annotations(assumed: AssumedPod) -> dict[str, str]:
    """Return the trace, and an explanation that replaces the one of an earlier refusal."""
    written = {tracing.ANNOTATION: assumed.trace} if assumed.trace else {}
    if assumed.explained:
        note = explanation_note.Note(summary=f"placed on {assumed.node}", fitting=1)
        written[annotation_keys.EXPLANATION] = explanation_note.encode(note)
    return written


class BindingSender:
    """Send Bindings while this replica leads."""

    def __init__(self, client: Client, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership

    async def send(
        self, body: objects.Binding, caller: Caller, check: Callable[[], None] = lambda: None
    ) -> None:
        """Send a Binding; retry what certainly had no effect.

        `check` is called once a connection is free, and what it raises is raised here: nothing was
        sent then.
        """
        refusal: errors.KubeError = errors.Unreachable(
            "connecting took longer each time than the lease permits", outcome_unknown=False
        )

        def terms() -> Terms:
            caller.require()
            check()
            permit = self._leadership.permit(caller.term)
            guard = functools.partial(caller.require, permit)
            return Terms({"timeout": f"{permit.may_take:.1f}s"}, permit.may_take + 1, guard)

        for _ in range(SEND_ATTEMPTS):
            try:
                await self._client.create(
                    paths.binding(body.namespace, body.name),
                    codec.encode(body),
                    terms=terms,
                    timeout=QUEUE_S,
                    retry_busy=False,
                )
            except PermitExpiredError:
                continue
            except errors.TooManyRequests as busy:
                refusal = busy
                asked = 1.0 if busy.retry_after is None else busy.retry_after
                await asyncio.sleep(min(asked, BUSY_AT_MOST_S))
            else:
                return
        raise refusal
