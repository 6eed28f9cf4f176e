"""/explain: why a pod is unschedulable, or where it is, as this replica sees it.

`?pod=<namespace>/<name>` or `?uid=<UID>`. For a pod that was refused the decision is made again
against the cluster of this moment, and no card is held; the explanation of its last real refusal
is shown beside it. For a pod that no /filter has seen, kube-scheduler's own words come first.
"""

from __future__ import annotations

import msgspec

from hami.kube import errors as kube_errors
from hami.kube import paths
from hami.kube.client import Client
from hami.scheduler.assumed_pods import AssumedPods
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.placer import Placer
from hami.scheduler.unschedulable import UnschedulablePods
from hami.serving.http_server import Request, Response
from hami.wire import codec, errors, objects, pod_scheduling
from hami.wire.shares import Share


class Explainer:
    def __init__(
        self,
        *,
        client: Client,
        watched: WatchedCluster,
        placer: Placer,
        assumed_pods: AssumedPods,
        unschedulable: UnschedulablePods,
    ) -> None:
        self._client = client
        self._watched = watched
        self._placer = placer
        self._assumed_pods = assumed_pods
        self._unschedulable = unschedulable

    async def answer(self, asked: Request) -> Response:
        """Answer with JSON: 400 without a pod, 404 if there is none, 422 if it is unreadable."""
        uid, key = asked.query.get("uid", ""), asked.query.get("pod", "")
        namespace, slash, name = key.partition("/")
        if not uid and not (slash and namespace and name):
            return Response.error(
                400, f"pod {key!r} is not <namespace>/<name>; write ?pod=default/mine or ?uid=<UID>"
            )
        known = uid or self._uid_of(namespace, name)
        found = self._known(known) if known else None
        if found is None and not key:
            return Response.error(
                404,
                f"no pod with UID {uid} is unschedulable here or has cards; ask for it by name: "
                "?pod=<namespace>/<name>",
            )
        try:
            return Response(body=codec.encode(found or await self._read(namespace, name, uid)))
        except (kube_errors.NotFound, _NamesakeError):
            return Response.error(404, f"there is no pod {key}{uid and f' with UID {uid}'}")
        except kube_errors.KubeError as error:
            return Response.error(502, f"pod {key} cannot be read: {error}")
        except errors.WireError as error:
            return Response.error(422, str(error))

    def _uid_of(self, namespace: str, name: str) -> str:
        """Return the UID of a pod; kube-scheduler may have shown it before our watch does."""
        for refused in self._unschedulable:
            if (refused.wanted.namespace, refused.wanted.name) == (namespace, name):
                return refused.wanted.uid
        for assumed in self._assumed_pods:
            if (assumed.namespace, assumed.name) == (namespace, name):
                return assumed.uid
        watched = self._watched.pods.by_key(f"{namespace}/{name}")
        return watched.uid if watched is not None else ""

    def _known(self, uid: str) -> dict[str, object] | None:
        refused = self._unschedulable.get(uid)
        if refused is not None:
            # Other nodes were not offered: kube-scheduler itself keeps the pod away from them.
            decision = self._placer.decide(refused.wanted, refused.group.offered.names)
            return {
                "state": "waiting",
                "refusals": refused.refusals,
                "last": msgspec.to_builtins(refused.note),
                "now": decision.explanation.to_data(),
            }
        info = self._watched.cluster.pods.get(uid)
        if info is None:
            return None
        assumed = self._assumed_pods.get(uid)
        return {
            "state": assumed.stage.value if assumed is not None else info.hold.name.lower(),
            "pod": f"{info.namespace}/{info.name}",
            "uid": info.uid,
            "node": info.node,
            "devices": {
                vendor: [[_share_data(share) for share in container] for container in containers]
                for vendor, containers in info.shares
            },
        }

    async def _read(self, namespace: str, name: str, uid: str) -> dict[str, object]:
        body = await self._client.get(paths.pods(namespace, name))
        pod = codec.decode(body, objects.Pod, what=f"pod {namespace}/{name}")
        if uid and pod.uid != uid:
            raise _NamesakeError
        wanted = self._placer.parse(pod)
        if wanted is None:
            return {"state": "not ours", "pod": f"{namespace}/{name}", "uid": pod.uid}
        decision = self._placer.decide(wanted)
        return {
            "state": "not asked about yet",
            "kubeScheduler": pod_scheduling.decode(body).to_data(),
            "now": decision.explanation.to_data(),
        }


class _NamesakeError(Exception):
    """There is a pod of that name, with another UID."""


def _share_data(share: Share) -> dict[str, object]:
    # The keys are part of the answer and older than the names of the fields.
    return {
        "uuid": share.card,
        "type": share.vendor,
        "memory": share.memory_mib,
        "cores": share.cores,
    }
