"""The cluster under the tests: features that later tests rely on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import socket

import pytest

from tests.e2e import pods as pod_tools
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import CONTROL_PLANE_ADDRESS, Runtime
from tests.e2e.cluster.machines import MachineError
from tests.e2e.pods import await_phase, create, pod
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, nodes, pods

ANSWER = "answered by a pod"
REACHED_S = 30
SERVE = ("sh", "-c", f"echo '{ANSWER}' > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")


def ask(host: str, port: int) -> str:
    """Read the page of a server, from the control plane's machine."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()


@pytest.fixture
def server(client: Client, namespace: str) -> Object:
    """Give a pod on the first node that answers whoever connects."""
    body = pod("server", SERVE, nodeName="node-1", metadata={"labels": {"app": "server"}})
    create(client, namespace, body)
    return await_phase(client, namespace, "server")


@pytest.fixture
def service(client: Client, namespace: str, server: Object) -> str:
    spec = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}
    made = client.create(
        core("services", namespace), {"metadata": {"name": "server"}, "spec": spec}
    )
    address: str = made["spec"]["clusterIP"]
    return address


def said_inside(cluster: Cluster, caller: Object, host: str, port: int) -> str:
    """Read the page of a server from inside of a pod, once it can be reached.

    kube-proxy learns of a new service a moment after the API has it.
    """
    request = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 10 {host} {port}"
    where = caller["metadata"]
    command = ("exec", "-n", where["namespace"], where["name"], "--", "sh", "-c", request)

    def answer() -> str | None:
        try:
            return cluster.kubectl(*command).splitlines()[-1]
        except (MachineError, IndexError):
            return None

    return wait_for(f"{host}:{port} to answer a pod", answer, REACHED_S)


def test_there_is_one_runtime_with_cdi_and_one_without(client: Client) -> None:
    found = {
        node["metadata"]["name"]: node["status"]["nodeInfo"]["containerRuntimeVersion"]
        for node in client.get(nodes())["items"]
        if node["metadata"]["name"].startswith("node-")
    }
    assert found["node-1"].startswith("containerd://2.4.")
    assert found["node-2"].startswith("containerd://1.6.")


def test_every_component_is_of_the_pinned_release(cluster: Cluster, client: Client) -> None:
    version = client.get("/version")
    assert version["gitVersion"].startswith("v1.36.")
    assert (version["major"], version["minor"]) == ("1", "36")
    for program in ("kube-scheduler", "kubelet", "kube-proxy", "kube-controller-manager"):
        said = cluster.control_plane.run(program, "--version").strip()
        assert said == f"Kubernetes {version['gitVersion']}"


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_a_pod_is_scheduled_runs_and_can_be_looked_into(
    cluster: Cluster, client: Client, namespace: str, node: str
) -> None:
    command = ("sh", "-c", "echo written by the pod; exec sleep 100000")
    create(client, namespace, pod("one", command, nodeSelector={"kubernetes.io/hostname": node}))
    assert await_phase(client, namespace, "one")["spec"]["nodeName"] == node
    assert pod_tools.logs(client, namespace, "one") == "written by the pod\n"
    assert cluster.kubectl("exec", "-n", namespace, "one", "--", "hostname").strip() == "one"


@pytest.fixture(params=["node-1", "node-2"])
def caller(request: pytest.FixtureRequest, client: Client, namespace: str) -> Object:
    """Give a pod on each node in turn."""
    create(client, namespace, pod("caller", nodeName=request.param))
    return await_phase(client, namespace, "caller")


def test_pods_reach_pods_of_every_node(cluster: Cluster, caller: Object, server: Object) -> None:
    assert said_inside(cluster, caller, server["status"]["podIP"], 8080) == ANSWER


def test_pods_reach_services(cluster: Cluster, caller: Object, service: str) -> None:
    assert said_inside(cluster, caller, service, 80) == ANSWER


def test_pods_reach_hosts(cluster: Cluster, caller: Object) -> None:
    """A program on the control plane's machine (it is this one) answers a pod."""
    with socket.create_server((CONTROL_PLANE_ADDRESS, 0)) as host:

        def answer_once() -> None:
            connection, _ = host.accept()
            with connection:
                connection.recv(100)
                connection.sendall(ANSWER.encode())

        host.settimeout(60)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer_once)
            port = host.getsockname()[1]
            assert said_inside(cluster, caller, CONTROL_PLANE_ADDRESS, port) == ANSWER
            answered.result()


def test_a_pod_reaches_itself_through_its_service(
    cluster: Cluster, server: Object, service: str
) -> None:
    assert said_inside(cluster, server, service, 80) == ANSWER


def test_the_control_plane_reaches_pods_and_services(server: Object, service: str) -> None:
    assert ask(server["status"]["podIP"], 8080) == ANSWER
    assert wait_for("the service to answer", lambda: ask(service, 80) or None, REACHED_S) == ANSWER


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_a_host_path_is_a_folder_of_that_node_alone(
    cluster: Cluster, client: Client, namespace: str, node: str
) -> None:
    place = f"/var/lib/seen-{namespace}"
    body = pod(
        "writer",
        ("sh", "-c", "hostname > /host/file && exec sleep 100000"),
        nodeName=node,
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]},
        volumes=[{"name": "host", "hostPath": {"path": place, "type": "DirectoryOrCreate"}}],
    )
    create(client, namespace, body)
    await_phase(client, namespace, "writer")
    seen = {
        each.name: (cluster.machine(each).root / place.lstrip("/") / "file").exists()
        for each in cluster.layout.nodes
    }
    assert seen == {each.name: each.name == node for each in cluster.layout.nodes}


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(
    client: Client, namespace: str
) -> None:
    role = {"metadata": {"name": "reader"}, "rules": [_rule("pods", "list")]}
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    client.create(f"{rbac}/roles", role)
    client.create(f"{rbac}/rolebindings", binding)
    show = ("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    create(client, namespace, pod("holder", show, restartPolicy="Never"))
    await_phase(client, namespace, "holder", "Succeeded")
    with client.with_token(pod_tools.logs(client, namespace, "holder").strip()) as pods_own:
        assert pods_own.request("GET", pods(namespace)).status == 200
        assert pods_own.request("GET", core("secrets", namespace)).status == 403
        assert pods_own.request("GET", pods("kube-system")).status == 403


def test_the_audit_log_holds_what_was_written_to_pods(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    create(client, namespace, pod("written", nodeName="node-1"))

    def logged() -> Object | None:
        for line in cluster.layout.audit_log.read_text().splitlines():
            entry: Object = json.loads(line)
            target = entry.get("objectRef", {})
            place = (target.get("namespace"), target.get("resource"))
            if entry["verb"] == "create" and place == (namespace, "pods"):
                return entry
        return None

    entry = wait_for("the creation to be logged", logged, 30)
    assert entry["responseObject"]["spec"]["nodeName"] == "node-1"
    assert entry["user"]["username"] == "admin"


def test_the_api_servers_metrics_are_reachable(client: Client) -> None:
    answer = client.request("GET", "/metrics", accept="text/plain")
    assert answer.status == 200
    assert b"\napiserver_request_total{" in answer.body


def test_a_killed_kubelet_comes_back_and_its_pods_stay(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    create(client, namespace, pod("stays", nodeName="node-1"))
    before = await_phase(client, namespace, "stays")
    cluster.machine("node-1").restart("kubelet")
    cluster.await_nodes()
    after = await_phase(client, namespace, "stays")
    assert _started(after) == _started(before)


def test_what_a_node_reports_does_not_touch_this_machine(cluster: Cluster) -> None:
    for each in cluster.layout.nodes:
        inside = cluster.machine(each).run("cat", "/proc/sys/vm/overcommit_memory").strip()
        assert inside == "1"
    assert cluster.layout.nodes[1].runtime is Runtime.CONTAINERD_1


def _rule(resource: str, verb: str) -> Object:
    return {"apiGroups": [""], "resources": [resource], "verbs": [verb]}


def _started(pod: Object) -> list[str]:
    return [status["containerID"] for status in pod["status"]["containerStatuses"]]
