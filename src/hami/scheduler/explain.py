"""/explain: why a pod waits, or where it is, as this replica sees it now.

`?pod=<namespace>/<name>` or `?uid=<UID>`. For a pod that waits the decision is made again, against
the cluster of this moment, and nothing is booked; the note of its last real refusal stands beside
it.
"""

from __future__ import annotations

import msgspec

from hami.kube import errors as kube_errors
from hami.kube import paths
from hami.kube.client import Client
from hami.placement import decide, request
from hami.scheduler.assumed_pods import AssumedPods
from hami.scheduler.informers import World
from hami.scheduler.unschedulable import UnschedulablePods
from hami.serving.http_server import Request, Response
from hami.wire import codec, errors, objects


class _NamesakeError(Exception):
    """There is a pod of that name, and it is another one."""


class Explainer:
    def __init__(
        self,
        *,
        client: Client,
        world: World,
        bookings: AssumedPods,
        waiting: UnschedulablePods,
        defaults: request.Defaults,
    ) -> None:
        self._client = client
        self._world = world
        self._bookings = bookings
        self._waiting = waiting
        self._defaults = defaults

    async def answer(self, asked: Request) -> Response:
        uid, key = asked.query.get("uid", ""), asked.query.get("pod", "")
        namespace, slash, name = key.partition("/")
        if not uid and not (slash and namespace and name):
            return Response.error(
                400, f"pod {key!r} is not <namespace>/<name>; write ?pod=default/mine or ?uid=<UID>"
            )
        known = uid or self._uid_of(namespace, name)
        told = self._known(known) if known else None
        if told is None and not key:
            return Response.error(404, f"no pod with UID {uid} waits here or has cards")
        try:
            return Response(body=codec.encode(told or await self._fresh(namespace, name, uid)))
        except (kube_errors.NotFound, _NamesakeError):
            return Response.error(404, f"there is no pod {key}{uid and f' with UID {uid}'}")
        except kube_errors.KubeError as error:
            return Response.error(502, f"pod {key} cannot be read: {error}")
        except errors.WireError as error:
            return Response.error(422, str(error))

    def _uid_of(self, namespace: str, name: str) -> str:
        for pod in self._waiting:
            if (pod.wanted.namespace, pod.wanted.name) == (namespace, name):
                return pod.wanted.uid
        for row in self._world.cluster.pods.values():
            if (row.namespace, row.name) == (namespace, name):
                return row.uid
        return ""

    def _known(self, uid: str) -> dict[str, object] | None:
        waiting = self._waiting.get(uid)
        if waiting is not None:
            decision = decide.decide(self._world.cluster, waiting.wanted)
            return {
                "state": "waiting",
                "refusals": waiting.refusals,
                "last": msgspec.to_builtins(waiting.note),
                "now": decision.explanation.to_data(),
            }
        row = self._world.cluster.pods.get(uid)
        if row is None:
            return None
        booking = self._bookings.get(uid)
        return {
            "state": booking.stage.value if booking is not None else row.hold.name.lower(),
            "pod": f"{row.namespace}/{row.name}",
            "uid": row.uid,
            "node": row.node,
            "devices": {vendor: msgspec.to_builtins(held) for vendor, held in row.shares},
        }

    async def _fresh(self, namespace: str, name: str, uid: str) -> dict[str, object]:
        body = await self._client.get(paths.pods(namespace, name))
        pod = codec.decode(body, objects.Pod, what=f"pod {namespace}/{name}")
        if uid and pod.uid != uid:
            raise _NamesakeError
        vendors = tuple(self._world.cluster.vendors.values())
        wanted = request.parse(pod, vendors, self._defaults)
        if wanted is None:
            return {"state": "not ours", "pod": f"{namespace}/{name}", "uid": pod.uid}
        decision = decide.decide(self._world.cluster, wanted)
        return {"state": "not asked about yet", "now": decision.explanation.to_data()}
