"""kubelet's PodResources: who holds which device ids, as kubelet has it in memory.

It names pods by namespace and name, never by UID, and leaves out init containers that end before
the others start. So it does not say whose a start is (`checkpoint` does), but it must not
contradict.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hami.agent.errors import AgentError
from hami.agent.kubelet import calls, kubelet_api
from hami.agent.kubelet.messages import Message

#: Seconds. A container's start waits for it, and it is a second opinion only.
TIMEOUT = 1.0

#: By device id: namespace, pod and container of everyone who holds it.
Holders = Mapping[str, frozenset[tuple[str, str, str]]]


class PodResourcesError(AgentError):
    """kubelet does not tell."""


async def holders(socket: Path, resource: str, *, timeout: float = TIMEOUT) -> Holders:  # noqa: ASYNC109 - grpc's own
    """Return who holds the ids of a resource; containers of a pod may share one."""
    answer = await _list(socket, timeout)
    found: dict[str, set[tuple[str, str, str]]] = {}
    for pod in answer["pod_resources"]:
        for container in pod["containers"]:
            holder = (pod["namespace"], pod["name"], container["name"])
            for devices in container["devices"]:  # often one piece for each id
                if devices["resource_name"] == resource:
                    for id_ in devices["device_ids"]:
                        found.setdefault(id_, set()).add(holder)
    return {id_: frozenset(those) for id_, those in found.items()}


async def _list(socket: Path, timeout: float) -> Message:  # noqa: ASYNC109 - grpc's own
    what = f"kubelet's PodResources socket {socket}"
    # grpc would try for the whole time to reach what is not there.
    if not socket.exists():  # noqa: ASYNC240 - it takes microseconds
        raise PodResourcesError(
            what,
            "does not exist",
            "mount kubelet's folder pod-resources into the agent, or check --kubelet-dir",
        )
    try:
        async with calls.channel(socket) as channel:
            call = kubelet_api.LIST_PODS
            answer: Message = await call.on(channel)({}, timeout=timeout)
    except calls.RpcError as error:
        raise PodResourcesError(what, f"gives no list: {calls.why(error)}") from error
    return answer
