"""Real kubectl looks at what the sandbox has: get, describe, watch, logs, events."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Iterator

import pytest
import yaml

from hami_sandbox import access
from sandbox.tests.cluster.kubectl import (
    Answer,
    Kubectl,
    KubectlError,
    LogKubelet,
    make_node,
    make_pod,
)
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import core, nodes, pods

LINES = "one\ntwo\nthree\n"


@pytest.fixture
def node(api: Client) -> str:
    name = f"gpu-{secrets.token_hex(3)}"
    make_node(api, name, nodeInfo={"kubeletVersion": "v1.36.3", "osImage": "Sandbox"})
    return name


def test_it_knows_the_resources_and_the_version(kubectl: Kubectl) -> None:
    assert "Server Version: v1.36" in kubectl("version")
    listed = kubectl("api-resources", "-o", "name").split()
    for resource in (
        "nodes",
        "pods",
        "deployments.apps",
        "jobs.batch",
        "leases.coordination.k8s.io",
    ):
        assert resource in listed
    assert "KIND:       Pod" in kubectl("explain", "pods.spec.nodeName")


def test_pods_are_shown_as_a_table_and_as_objects(
    api: Client, kubectl: Kubectl, namespace: str, node: str
) -> None:
    make_pod(api, namespace, "a", node)
    make_pod(api, namespace, "b", app="b")
    assert kubectl("get", "pods").splitlines()[0].split() == [
        *("NAME", "READY", "STATUS", "RESTARTS", "AGE")
    ]
    assert [row[:3] for row in kubectl.rows("get", "pods")] == [
        ["a", "0/1", "Pending"],
        ["b", "0/1", "Pending"],
    ]
    wide = kubectl.rows("get", "pods", "-o", "wide")
    assert [row[6] for row in wide] == [node, "<none>"]
    assert yaml.safe_load(kubectl("get", "pod", "a", "-o", "yaml"))["spec"]["nodeName"] == node
    assert kubectl("get", "pods", "-l", "app=b", "-o", "name") == "pod/b\n"
    assert kubectl("get", "pods", "--field-selector", f"spec.nodeName={node}", "-o", "name") == (
        "pod/a\n"
    )
    every = kubectl.rows("get", "pods", "--all-namespaces")
    assert [namespace, "a"] in [row[:2] for row in every]
    with pytest.raises(KubectlError, match=r'NotFound.*pods "c" not found'):
        kubectl("get", "pod", "c")


def test_nodes_are_shown_with_their_readiness(kubectl: Kubectl, node: str) -> None:
    assert kubectl.rows("get", "node", node)[0][1:3] == ["Ready", "<none>"]
    described = kubectl("describe", "node", node)
    assert "KubeletReady" in described
    assert "v1.36.3" in described


def test_a_watch_shows_what_happens_while_it_runs(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    make_pod(api, namespace, "first")
    with kubectl.running("get", "pods", "-w", "--no-headers") as lines:
        assert next(lines)[:3] == ["first", "0/1", "Pending"]
        make_pod(api, namespace, "second")
        assert next(lines)[:3] == ["second", "0/1", "Pending"]
        running = {"phase": "Running", "containerStatuses": [_container(ready=True)]}
        api.patch(pods(namespace, "first", "status"), {"status": running})
        assert next(lines)[:3] == ["first", "1/1", "Running"]
    with kubectl.running("get", "pods", "-w", "--output-watch-events", "--no-headers") as lines:
        assert [next(lines)[0], next(lines)[0]] == ["ADDED", "ADDED"]
        api.delete(pods(namespace, "second"))
        # As a kube-apiserver does it, a pod is marked first, even if nobody needs time for its end.
        assert [next(lines)[:2], next(lines)[:2]] == [["MODIFIED", "second"], ["DELETED", "second"]]


def test_describe_shows_a_pod_with_its_events(
    api: Client, kubectl: Kubectl, namespace: str, node: str
) -> None:
    make_pod(api, namespace, "p", node)
    pod = api.get(pods(namespace, "p"))
    event = {
        "metadata": {"generateName": "p."},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": namespace,
            "name": "p",
            "uid": pod["metadata"]["uid"],
        },
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available",
        "source": {"component": "hami-scheduler"},
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }
    api.create(core("events", namespace), event)
    described = kubectl("describe", "pod", "p")
    assert f"Node:             {node}" in described
    assert "registry.invalid/none:1" in described
    assert "FailedScheduling" in described.split("Events:")[1]
    assert kubectl.rows("get", "events")[0][1:4] == ["Warning", "FailedScheduling", "pod/p"]
    assert "0/1 nodes are available" in kubectl("events", "--for", "pod/p")


@pytest.fixture
def kubelet(kubeconfig: pathlib.Path) -> Iterator[LogKubelet]:
    def answer(path: str, query: dict[str, str]) -> Answer:
        if path.endswith("/waiting"):
            return 400, 'container "waiting" in pod "p" is waiting to start: ContainerCreating'
        told = LINES.splitlines(keepends=True)
        return 200, "".join(told[-int(query.get("tailLines", "3")) :])

    token = (kubeconfig.parent / access.KUBELET_TOKEN).read_text()
    server = LogKubelet(token, answer)
    yield server
    server.close()


def test_logs_come_from_the_kubelet_of_the_pods_node(
    api: Client, kubectl: Kubectl, namespace: str, kubelet: LogKubelet
) -> None:
    name = f"logs-{secrets.token_hex(3)}"
    make_node(api, name, **kubelet.status())
    make_pod(api, namespace, "p", name)
    assert kubectl("logs", "p") == LINES
    assert kubectl("logs", "p", "--tail=1", "--previous") == "three\n"
    assert kubelet.asked[-1] == (
        f"/containerLogs/{namespace}/p/main",
        {"previous": "true", "tailLines": "1"},
    )
    with kubectl.running("logs", "-f", "p", "-c", "main") as lines:
        assert [line[0] for line in lines] == LINES.split()
    assert kubelet.asked[-1][1] == {"follow": "true"}


def test_logs_that_cannot_be_had_say_why(
    api: Client, kubectl: Kubectl, namespace: str, kubelet: LogKubelet
) -> None:
    name = f"logs-{secrets.token_hex(3)}"
    make_node(api, name, **kubelet.status())
    containers = [{"name": each, "image": "i"} for each in ("main", "waiting")]
    wish = {"metadata": {"name": "p"}, "spec": {"containers": containers, "nodeName": name}}
    api.create(pods(namespace), wish)
    make_pod(api, namespace, "unplaced")
    with pytest.raises(KubectlError, match="is waiting to start: ContainerCreating"):
        kubectl("logs", "p", "-c", "waiting")
    with pytest.raises(KubectlError, match="container other is not valid for pod p"):
        kubectl("logs", "p", "-c", "other")
    assert kubectl("logs", "unplaced") == ""
    silent = f"silent-{secrets.token_hex(3)}"
    make_node(api, silent)
    make_pod(api, namespace, "lost", silent)
    with pytest.raises(KubectlError, match="has no address and port of its kubelet"):
        kubectl("logs", "lost")
    endpoint = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 9}}}
    api.patch(nodes(silent, "status"), {"status": {**kubelet.status(), **endpoint}})
    with pytest.raises(KubectlError, match=r"Cannot connect to host 127\.0\.0\.1:9"):
        kubectl("logs", "lost")
    answer = api.request("GET", pods(namespace, "p", "log"))
    assert answer.status == 400
    assert answer.json()["message"] == (
        "a container name must be specified for pod p, choose one of: [main waiting]"
    )


def _container(*, ready: bool) -> Object:
    return {
        "name": "main",
        "ready": ready,
        "restartCount": 0,
        "image": "i",
        "imageID": "",
        "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
    }
