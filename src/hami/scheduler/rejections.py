"""Pods that kubelet rejected: cause, words for the owner, replacement.

kubelet asks a device plugin once for a pod. If none answers, or ours refuses, it ends the pod with
the phase Failed and the reason UnexpectedAdmissionError, and never starts it. Its controller makes
another one; the rejected pod stays until it is deleted.

kubelet gives the same reason where cpus or the devices of another plugin were not to be had, also
of a vendor whose cards we place and whose own plugin serves them. Such a pod is not ours. Neither
is one whose message does not tell whose plugin failed. Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable

import msgspec

from hami.cluster.state import Cluster
from hami.vendors import table
from hami.wire import objects

REASON = "UnexpectedAdmissionError"
#: Causes: no agent answered kubelet, or the agent refused the pod.
UNANSWERED, REFUSED = "unanswered", "refused"

#: Controllers that make a pod in the place of any that failed. What others do then is not known: a
#: worker of a training job has a name of its own, and its failure may be the job's.
_REPLACERS = {"ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job"}

#: The beginning of what our agent answers kubelet when it refuses.
_AGENT_SAYS = "desc = hami: "
_CALL_FAILED = "rpc error: "
_KUBELET_ENDS = ", which is unexpected"


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Why kubelet rejected a pod of ours, and the controller that replaces it."""

    cause: str
    #: The agent's own words; empty: it did not answer.
    refusal: str
    #: Kind and name of its controller; empty: it has none.
    controller: str

    @property
    def is_replaced(self) -> bool:
        """Whether a controller of Kubernetes itself makes another pod in the place of this one."""
        return self.controller.partition(" ")[0] in _REPLACERS


def read(pod: objects.Pod, cluster: Cluster) -> Rejection | None:
    """Return why kubelet rejected a pod; None: it did not, or for no cause of ours."""
    status = pod.status
    if status is None or not pod.node_name or pod.phase != "Failed" or status.reason != REASON:
        return None
    cause = _cause(pod, status.message or "", cluster)
    if not cause:
        return None
    # As it was before it failed: a finished pod holds nothing.
    granted, _ = cluster.read_pod(msgspec.structs.replace(pod, status=None))
    if granted is None or not granted.shares or granted.unproven:
        return None
    owner = pod.controller
    return Rejection(
        cause=cause,
        refusal=_refusal(status.message or "") if cause == REFUSED else "",
        controller=f"{owner.kind} {owner.name}" if owner is not None else "",
    )


def _cause(pod: objects.Pod, message: str, cluster: Cluster) -> str:
    """Return why our agent did not serve a pod; empty: it was not asked, or that is not known."""
    ours = set(table.nvidia(cluster.vendors.values()).resources.named())
    asked = _extended_resources(pod)
    if _AGENT_SAYS in message:
        return REFUSED
    if any(_names(message, resource) for resource in asked & ours):
        return UNANSWERED
    claims = bool(pod.spec and pod.spec.resource_claims)
    alone = bool(asked) and asked <= ours and not claims
    return UNANSWERED if alone and _CALL_FAILED in message else ""


def _extended_resources(pod: objects.Pod) -> set[str]:
    """Return what a pod asks device plugins for."""
    found: set[str] = set()
    for _, container in pod.containers():
        resources = container.resources or objects.Resources()
        for amounts in (resources.limits, resources.requests):
            found.update(name for name in amounts or () if "/" in name)
    return found


def _names(message: str, resource: str) -> bool:
    """Return whether a message has this resource as a whole word: one may begin like another."""
    words = message.replace(",", " ").replace(":", " ").replace(". ", " ").split()
    return resource in words


def _refusal(message: str) -> str:
    return message.partition(_AGENT_SAYS)[2].removesuffix(_KUBELET_ENDS)


def explain(rejection: Rejection, node: str, *, removes: bool) -> str:
    """Return what happened and what to do, for the pod's owner."""
    why = "did not answer: it was killed, or kubelet or the node had just started"
    if rejection.cause == REFUSED:
        why = f"refused it: {rejection.refusal}"
    what = f"kubelet on {node} has rejected this pod, because hami's agent there {why}. "
    if not rejection.controller:
        what += "A rejected pod never starts, and no controller replaces this one: delete it and "
        return f"{what}create it again"
    if not rejection.is_replaced:
        what += f"A rejected pod never starts. If {rejection.controller} makes no other one, "
        return f"{what}delete this one and let it be created again"
    what += f"A rejected pod never starts; {rejection.controller} creates another one. "
    if removes:
        return f"{what}This one is deleted after that"
    return f"{what}Delete this one when you have seen it"


def replaced(rejected: Collection[str], pods: Iterable[objects.Pod]) -> list[objects.Pod]:
    """Return those of the pods with these UIDs that their controller has replaced.

    It has if a pod of it has not failed and was made since. One is enough for several: while no
    agent answers, a controller makes pod after pod in the place of the same one. Times of the API
    have whole seconds, and a pod of the same second counts.
    """
    ended: list[objects.Pod] = []
    #: By the controller's UID, when it made the last pod that has not failed.
    last: dict[str, float] = {}
    for pod in pods:
        owner = _controller_uid(pod)
        if pod.uid in rejected:
            ended.append(pod)
        elif owner and pod.phase != "Failed" and not pod.deleting:
            last[owner] = max(_created_at(pod), last.get(owner, 0.0))
    return [pod for pod in ended if last.get(_controller_uid(pod), -1.0) >= _rejected_at(pod)]


def _controller_uid(pod: objects.Pod) -> str:
    owner = pod.controller
    return (owner.uid or "") if owner is not None else ""


def _created_at(pod: objects.Pod) -> float:
    return _time((pod.metadata and pod.metadata.creation_timestamp) or "")


def _rejected_at(pod: objects.Pod) -> float:
    """Return when kubelet rejected a pod: at its start, which it writes then."""
    return max(_time((pod.status and pod.status.start_time) or ""), _created_at(pod))


def _time(text: str) -> float:
    """Return a time of the API; 0: there is none."""
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
