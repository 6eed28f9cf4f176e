"""The chart in webhook-only mode: MIG fallback beside Kubernetes' scheduler.

The examples of the webhook that this one follows, on a real cluster: a Deployment whose replicas
are decided one by one, and the three cases of a cluster with mixed profiles. Its examples write
requests alone; Kubernetes accepts that only of pods whose limits a webhook adds. In a Deployment it
never does, so there limits stand beside the requests.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.chart import release as releases
from tests.e2e.chart.fixtures import _told  # noqa: F401 (for every test)
from tests.e2e.chart.release import WEBHOOK, Release
from tests.e2e.cluster import fleet
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install.nodes import GPU
from tests.kubeapi.access import Access
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import group, nodes
from tests.kubeapi.paths import pods as pods_path

REPLICAS = 3
NODE = "simulated-1"
MIG = "nvidia.com/mig-"
BOTH = ("requests", "limits")
PORT = 8443
SOON_S = 30
REFUSED = "refused"
NO_PATCH = base64.b64encode(b"[]")
DEPLOYMENTS = "apps/v1", "deployments"


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with releases.installed(cluster, releases.WEBHOOK_ONLY) as release:
        try:
            fleet.add(cluster, 1, say=lambda _: None)
            yield release
        finally:
            fleet.remove(cluster)


def mig_pod(name: str, profile: str, *parts: str) -> Object:
    """Describe a pod for the simulated node; it asks in requests, limits or both."""
    asked = {part: {f"{MIG}{profile}": "1"} for part in parts or BOTH}
    return pods.pod(
        name,
        container={"resources": asked},
        nodeSelector={fleet.MARK: "true"},
        tolerations=[fleet.TOLERATION],
    )


def offer(release: Release, gpus: Mapping[str, int], profile: str, *, becomes: str) -> None:
    """Let the node offer these GPUs and no others; wait until every replica knows.

    It is seen by what becomes of a profile.
    """
    allocatable = release.client.get(nodes(NODE))["status"]["allocatable"]
    amounts: dict[str, str | None] = {
        name: None for name in allocatable if name.startswith("nvidia.com/")
    }
    amounts |= {name: str(number) for name, number in gpus.items()}
    status = {"capacity": amounts, "allocatable": amounts}
    release.client.patch(nodes(NODE, "status"), {"status": status})
    for replica in release.pods(WEBHOOK):
        await_answer(replica, profile, becomes)


def await_answer(replica: Object, profile: str, wanted: str) -> None:
    what = f"{profile} to become {wanted} at {replica['metadata']['name']}"
    wait_for(what, lambda: answer(replica, profile) == wanted, SOON_S)


def answer(replica: Object, profile: str) -> str:
    """Ask one replica what it would make of a profile; nothing is counted."""
    request = {
        "uid": profile,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "default",
        "dryRun": True,
        "object": mig_pod("asked", profile),
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    address = f"https://{replica['status']['podIP']}:{PORT}"
    with Client.from_access(Access(address, verify=False)) as client:
        response = client.call("POST", "/webhook", body=review)["response"]
    if not response["allowed"]:
        return REFUSED
    for operation in json.loads(base64.b64decode(response.get("patch") or NO_PATCH)):
        if operation["path"] == "/metadata/annotations":
            noted: str = operation["value"][annotation_keys.FALLBACK]
            return noted.partition("->")[2]
    return profile


def fallback(pod: Object) -> str | None:
    noted: str | None = pod["metadata"].get("annotations", {}).get(annotation_keys.FALLBACK)
    return noted


def resources(pod: Object) -> Object:
    found: Object = pod["spec"]["containers"][0]["resources"]
    return found


def the_same_of(resource: str) -> Object:
    return {part: {resource: "1"} for part in BOTH}


def is_waiting(client: Client, namespace: str, name: str) -> None:
    """Wait until the scheduler has said that there is no room for a pod."""

    def said() -> bool:
        found = client.get(pods_path(namespace, name))
        conditions = found["status"].get("conditions", [])
        return any("Insufficient nvidia.com/" in c.get("message", "") for c in conditions)

    wait_for(f"pod {name} to wait", said, SOON_S)


def test_three_replicas_share_the_nodes_and_there_is_no_scheduler(
    client: Client, release: Release
) -> None:
    ready = release.ready(WEBHOOK)
    assert len(ready) == REPLICAS
    assert {pod["spec"]["nodeName"] for pod in ready} == {"node-1", "node-2"}
    (deployment,) = client.get(group(*DEPLOYMENTS, release.namespace))["items"]
    assert deployment["metadata"]["name"] == "hami-webhook"


@pytest.mark.parametrize("parts", [BOTH, ("requests",)], ids=["in both", "in requests alone"])
def test_a_profile_that_nobody_has_becomes_one_gpu_and_says_so(
    client: Client, namespace: str, release: Release, parts: tuple[str, ...]
) -> None:
    offer(release, {GPU: 4}, "2g.20gb", becomes="gpu")
    (made,) = pods.create(client, namespace, mig_pod("my-ml-training", "2g.20gb", *parts))
    assert fallback(made) == "2g.20gb->gpu"
    assert resources(made) == the_same_of(GPU)
    assert made["spec"]["schedulerName"] == "default-scheduler"
    pods.await_phase(client, namespace, "my-ml-training")


def test_each_replica_of_a_deployment_is_decided_on_its_own(
    client: Client, namespace: str, release: Release
) -> None:
    """Five replicas and four GPUs: all fall back, one waits; a profile that comes later is used."""
    offer(release, {GPU: 4}, "2g.20gb", becomes="gpu")
    before = fallbacks(release, "gpu")
    body = mig_pod("", "2g.20gb")
    labels = {"app": "gpu-app"}
    template = {"metadata": {"labels": labels}, "spec": body["spec"]}
    spec = {"replicas": 5, "selector": {"matchLabels": labels}, "template": template}
    client.create(
        group(*DEPLOYMENTS, namespace), {"metadata": {"name": "gpu-workload"}, "spec": spec}
    )

    def replicas() -> list[Object]:
        found: list[Object] = client.get(pods_path(namespace), labelSelector="app=gpu-app")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def phases() -> Counter[str]:
        return Counter(pod["status"]["phase"] for pod in replicas())

    wait_for("four to run", lambda: phases() == {"Running": 4, "Pending": 1}, SOON_S)
    assert [fallback(pod) for pod in replicas()] == ["2g.20gb->gpu"] * 5
    assert all(resources(pod) == the_same_of(GPU) for pod in replicas())
    assert fallbacks(release, "gpu") == before + 5
    (waiting,) = (pod for pod in replicas() if pod["status"]["phase"] == "Pending")
    is_waiting(client, namespace, waiting["metadata"]["name"])

    offer(release, {GPU: 4, f"{MIG}1g.10gb": 1}, "2g.20gb", becomes="1g.10gb")
    client.delete(pods_path(namespace, waiting["metadata"]["name"]))
    wait_for("all to run", lambda: phases() == {"Running": 5}, SOON_S)
    assert Counter(map(fallback, replicas())) == {"2g.20gb->gpu": 4, "2g.20gb->1g.10gb": 1}


def fallbacks(release: Release, to: str) -> float:
    """Count the profiles that all replicas have replaced."""
    name = "gpu_webhook_fallback_total"
    return sum(release.metric(pod, name, to=to) for pod in release.pods(WEBHOOK))


def test_a_profile_that_exists_is_given_and_waited_for(
    client: Client, namespace: str, release: Release
) -> None:
    offer(release, {f"{MIG}3g.30gb": 4, f"{MIG}2g.20gb": 8, GPU: 4}, "3g.30gb", becomes="3g.30gb")
    made = pods.create(
        client, namespace, *(mig_pod(f"pod-{number}", "3g.30gb") for number in range(4))
    )
    for pod in made:
        pods.await_phase(client, namespace, pod["metadata"]["name"])
    # All four are taken; that there are such instances is enough.
    made += pods.create(client, namespace, mig_pod("fifth", "3g.30gb"))
    is_waiting(client, namespace, "fifth")
    assert [fallback(pod) for pod in made] == [None] * 5
    assert all(resources(pod) == the_same_of(f"{MIG}3g.30gb") for pod in made)


def test_a_profile_that_does_not_exist_becomes_the_next_one_that_does(
    client: Client, namespace: str, release: Release
) -> None:
    offer(release, {f"{MIG}2g.20gb": 8, GPU: 4}, "3g.30gb", becomes="2g.20gb")
    (made,) = pods.create(client, namespace, mig_pod("smaller", "3g.30gb"))
    assert fallback(made) == "3g.30gb->2g.20gb"
    assert resources(made) == the_same_of(f"{MIG}2g.20gb")
    pods.await_phase(client, namespace, "smaller")


def test_where_there_is_no_gpu_at_all_the_pod_is_refused(
    client: Client, namespace: str, release: Release
) -> None:
    offer(release, {}, "2g.20gb", becomes=REFUSED)
    with pytest.raises(ApiError, match="the cluster has no GPU that could run this pod") as caught:
        pods.create(client, namespace, mig_pod("nowhere", "2g.20gb"))
    assert f"{MIG}2g.20gb, {MIG}1g.10gb, {GPU}" in caught.value.message
