"""Late binding by token on a real kubelet: the baseline of hami's agent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e import burst, pods, sizes
from tests.e2e.bare_plugin import on_node
from tests.e2e.burst import Burst
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

COUNT = sizes.PODS_ON_A_NODE
WAIT_S = 300
LATE = "node-1"
NO_CDI = "node-2"


@pytest.fixture(scope="module")
def resource(cluster: Cluster) -> Iterator[str]:
    with on_node.running(cluster, LATE) as resource:
        yield resource


def said_by(
    client: Client, namespace: str, name: str, container: str
) -> tuple[dict[str, str], Object]:
    """Read what a container printed: its environment, and its policy where it has one."""
    path = pods_path(namespace, name, "log")
    lines = (
        client.request("GET", path, query={"container": container}).body.decode().split("\n")[:-1]
    )
    policy: Object = json.loads(lines[-1]) if lines[-1].startswith("{") else {}
    return dict(line.split("=", 1) for line in lines if "=" in line), policy


def test_many_pods_each_get_their_own_device_and_policy(
    cluster: Cluster,
    client: Client,
    namespace: str,
    resource: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain: Burst | None = None
    if sizes.WHOLE:
        plain = burst.run(client, namespace, COUNT, node=LATE, limits={}, wait=WAIT_S)
        burst.clear(client, namespace, cluster.machine(LATE))
    devices = burst.run(client, namespace, COUNT, node=LATE, limits={resource: "1"}, wait=WAIT_S)
    burst.measured["bare plugin"] = devices.seconds
    if plain is not None:
        with capsys.disabled():
            print(  # noqa: T201 (a figure for the reader; it decides nothing)
                f"\n{COUNT} pods on one node all Running: {devices.seconds:.1f} s with a bare "
                f"plugin, {plain.seconds:.1f} s without a device, "
                f"ratio {devices.seconds / plain.seconds:.2f}"
            )
    seen = set()
    for pod in devices.pods:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            env, policy = said_by(client, namespace, name, container["name"])
            assert (env["BARE_POD_UID"], env["BARE_CONTAINER"]) == (uid, container["name"])
            assert policy["pod"] == f"{namespace}/{name}"
            assert (policy["uid"], policy["container"]) == (uid, container["name"])
            assert env["NVIDIA_VISIBLE_DEVICES"] == f"GPU-{policy['devices'][0]}"
        seen.add(env["NVIDIA_VISIBLE_DEVICES"])
    assert len(seen) == COUNT
    assert sum("initContainers" in pod["spec"] for pod in devices.pods) == COUNT // 4
    burst.clear(client, namespace, cluster.machine(LATE))


def test_a_restarted_container_keeps_its_policy(
    client: Client, namespace: str, resource: str
) -> None:
    once = f"{burst.SHOW}; exit 1"
    limits = {"resources": {"limits": {resource: "1"}}}
    pods.create(
        client, namespace, pods.pod("again", ("sh", "-c", once), nodeName=LATE, container=limits)
    )

    def restarted() -> Object | None:
        found = client.get(pods_path(namespace, "again"))
        statuses = found["status"].get("containerStatuses", [])
        return found if statuses and statuses[0]["restartCount"] else None

    found = wait_for("a restart", restarted, WAIT_S)
    env, policy = said_by(client, namespace, "again", "main")
    assert env["BARE_POD_UID"] == policy["uid"] == found["metadata"]["uid"]


def test_a_restarted_kubelet_is_offered_the_devices_again(
    cluster: Cluster, client: Client, namespace: str, resource: str
) -> None:
    cluster.machine(LATE).restart("kubelet")
    cluster.await_nodes()
    on_node.await_devices(cluster, LATE)
    limits = {"resources": {"limits": {resource: "1"}}}
    pods.create(client, namespace, pods.pod("after", container=limits))
    pods.await_phase(client, namespace, "after")


def test_a_runtime_without_cdi_shows_no_gpu(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    """It ignores the token, so what Allocate said stays: no GPU. Late binding fails closed."""
    with on_node.running(cluster, NO_CDI) as resource:
        limits = {"resources": {"limits": {resource: "1"}}}
        body = pods.pod("void", ("sh", "-c", burst.SHOW), nodeName=NO_CDI, container=limits)
        body["spec"]["restartPolicy"] = "Never"
        pods.create(client, namespace, body)
        pods.await_phase(client, namespace, "void", "Succeeded")
        env, _ = said_by(client, namespace, "void", "main")
        assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
        client.delete(pods_path(namespace))
        pods.await_gone(client, namespace)
