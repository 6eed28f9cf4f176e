"""Pods for the tests: built in one line, awaited with a reason on failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.e2e.cluster.images import BUSYBOX
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, namespaces, pods

# With none at all the API forgets a pod at once, while kubelet is still taking it down.
GRACE_S = 1
STAY = ("sleep", "100000")
RUNNING_S = 120
GONE_S = 90
ACCOUNT_S = 30


def pod(name: str, command: Iterable[str] = STAY, **spec: Any) -> Object:
    """Describe a pod of one busybox container; `spec` adds to or replaces what a pod has."""
    container = {"name": "main", "image": BUSYBOX, "command": list(command)}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **spec.pop("metadata", {})},
        "spec": {"terminationGracePeriodSeconds": GRACE_S, "containers": [container], **spec},
    }


def create(client: Client, namespace: str, *bodies: Object) -> list[Object]:
    return [client.create(pods(namespace), body) for body in bodies]


def await_phase(client: Client, namespace: str, name: str, phase: str = "Running") -> Object:
    """Wait for a phase; a pod that cannot reach it any more is reported with its events."""

    def look() -> Object | None:
        found = client.get(pods(namespace, name))
        now = found["status"].get("phase")
        if now in {"Failed", "Succeeded"} and now != phase:
            raise AssertionError(f"{name} is {now}, not {phase}: {why(client, namespace, name)}")
        return found if now == phase and _has_started(found) else None

    try:
        return wait_for(f"pod {name} to be {phase}", look, RUNNING_S)
    except TimeoutError as error:
        raise AssertionError(f"{error}; {why(client, namespace, name)}") from None


def await_account(client: Client, namespace: str) -> None:
    """Wait for the account that a new namespace gets; pods need it."""
    account = core("serviceaccounts", namespace, "default")
    wait_for(f"the account of {namespace}", lambda: client.find(account), ACCOUNT_S)


def await_gone(client: Client, namespace: str) -> None:
    """Wait until no pod of the namespace is left, as the API and so the kubelets see it."""
    wait_for(
        f"the pods of {namespace} to be gone",
        lambda: not client.get(pods(namespace))["items"],
        GONE_S,
    )


def await_no_namespace(client: Client, namespace: str) -> None:
    """Wait until the namespace itself is gone and its name is free again."""
    wait_for(
        f"namespace {namespace} to be gone",
        lambda: client.find(namespaces(namespace)) is None,
        GONE_S,
    )


def logs(client: Client, namespace: str, name: str) -> str:
    return client.request("GET", pods(namespace, name, "log")).body.decode()


def why(client: Client, namespace: str, name: str) -> str:
    """Say what the cluster told of the pod: states of its containers, and events."""
    status = client.get(pods(namespace, name)).get("status", {})
    states = [c.get("state") for c in status.get("containerStatuses", [])]
    events = client.get(core("events", namespace), fieldSelector=f"involvedObject.name={name}")
    messages = [f"{e['reason']}: {e['message']}" for e in events["items"]]
    return f"phase {status.get('phase')}, containers {states}, events {messages}"


def _has_started(pod: Object) -> bool:
    if pod["status"]["phase"] != "Running":
        return True
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and all("running" in status["state"] for status in statuses)
