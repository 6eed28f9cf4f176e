"""Real kubectl and the controllers: deployments, jobs, owners, permissions."""

from __future__ import annotations

import base64
import json

import pytest

from sandbox.tests.cluster.kubectl import HollowKubelet, Kubectl, KubectlError
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import group, pods


def images(api: Client, namespace: str) -> list[str]:
    found = api.get(pods(namespace))["items"]
    return sorted(each["spec"]["containers"][0]["image"] for each in found)


def test_a_deployment_is_scaled_rolled_out_and_undone(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    with HollowKubelet(api, namespace):
        kubectl("create", "deployment", "web", "--image=one", "--replicas=2")
        told = kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert 'deployment "web" successfully rolled out' in told
        kubectl("scale", "deployment", "web", "--replicas=3")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert kubectl.rows("get", "deployment", "web")[0][1:4] == ["3/3", "3", "3"]
        kubectl("set", "image", "deployment/web", "one=two")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert images(api, namespace) == ["two"] * 3
        assert [row[0] for row in kubectl.rows("rollout", "history", "deployment/web")[1:]] == [
            "1",
            "2",
        ]
        kubectl("rollout", "undo", "deployment/web")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert images(api, namespace) == ["one"] * 3
    described = kubectl("describe", "deployment", "web")
    assert "MinimumReplicasAvailable" in described
    assert "Scaled up replica set web-" in described
    # What it owns goes with it.
    kubectl("delete", "deployment", "web", "--cascade=foreground")
    assert api.get(pods(namespace))["items"] == []
    assert api.get(group("apps/v1", "replicasets", namespace))["items"] == []


def finish(api: Client, namespace: str, phase: str) -> None:
    """End the one pod that runs for a job."""

    def running() -> Object | None:
        found = api.get(pods(namespace))["items"]
        return next((each for each in found if each["status"]["phase"] == "Pending"), None)

    pod = wait_for("a pod of the job", running, 60)
    api.patch(pods(namespace, pod["metadata"]["name"], "status"), {"status": {"phase": phase}})


def test_a_job_ends_when_its_pods_have(api: Client, kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "job", "sum", "--image=one", "--", "true")
    finish(api, namespace, "Succeeded")
    kubectl("wait", "--for=condition=complete", "job/sum", "--timeout=60s")
    assert kubectl.rows("get", "job", "sum")[0][1:3] == ["Complete", "1/1"]
    (pod,) = kubectl.json("get", "pods", "-l", "job-name=sum")["items"]
    assert pod["spec"]["containers"][0]["command"] == ["true"]
    kubectl("delete", "job", "sum")
    wait_for("its pod to go", lambda: api.get(pods(namespace))["items"] == [], 60)


def test_a_job_that_fails_too_often_is_failed(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bad"},
        "spec": {"backoffLimit": 0, "template": template},
    }
    kubectl("create", "-f", "-", given=job)
    finish(api, namespace, "Failed")
    kubectl("wait", "--for=condition=failed", "job/bad", "--timeout=60s")
    assert "BackoffLimitExceeded" in kubectl("describe", "job", "bad")


def test_a_service_account_may_what_its_role_says(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    account = f"system:serviceaccount:{namespace}:robot"
    kubectl("create", "serviceaccount", "robot")
    assert kubectl("auth", "can-i", "list", "pods").strip() == "yes"
    with pytest.raises(KubectlError):  # it says "no" and ends with 1
        kubectl("auth", "can-i", "list", "pods", "--as", account)
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    kubectl(
        *("create", "rolebinding", "reader", "--role=reader"),
        f"--serviceaccount={namespace}:robot",
    )
    assert kubectl("auth", "can-i", "list", "pods", "--as", account).strip() == "yes"
    token = kubectl("create", "token", "robot", "--duration=10m").strip()
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == account
    robot = (f"--token={token}", "--kubeconfig", str(anonymous(kubectl)))
    assert account in kubectl(*robot, "auth", "whoami")
    assert kubectl(*robot, "get", "pods", "-o", "name") == ""
    with pytest.raises(KubectlError, match=r'cannot list resource "secrets" in API group ""'):
        kubectl(*robot, "get", "secrets")


def anonymous(kubectl: Kubectl) -> str:
    """Write a kubeconfig of nobody: a token given besides a user's would be left aside."""
    config = json.loads(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {}
    path = kubectl.kubeconfig.with_name("nobody.kubeconfig")
    path.write_text(json.dumps(config))
    return str(path)
