"""Many pods at once on one node, and how long until all of them run."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e import pods
from tests.e2e.cluster.machines import Machine
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

WRITERS = 4
# A quarter has an init container that uses a device too: kubelet then gives both the same one.
WITH_INIT = 4
SHOW = "env; cat /run/bare/policy/* 2>/dev/null; echo"
LOOK_S = 0.25
CLEARED_S = 300
TASKS = "run/containerd/io.containerd.runtime.v2.task/k8s.io"


INIT, MAIN = "first", "main"
Limits = Mapping[str, str] | Callable[[int, str], Mapping[str, str]]
"""Of every container, or by the number of the pod and the name of the container."""


@dataclass(frozen=True)
class Burst:
    seconds: float
    pods: tuple[Object, ...]


measured: dict[str, float] = {}
"""Seconds of earlier bursts of this run, for those that are compared with them."""


def run(
    client: Client, namespace: str, count: int, *, node: str, limits: Limits, wait: float
) -> Burst:
    """Create the pods and wait until all are Running; the time is from the first creation on."""
    bodies = [_pod(number, node, limits) for number in range(count)]
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda body: client.create(pods_path(namespace), body), bodies))
    deadline = started + wait
    while late := _one_not_running(client, namespace):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"after {wait:g} s {late} and others do not run: "
                f"{pods.why(client, namespace, late)}"
            )
        time.sleep(LOOK_S)
    return Burst(time.monotonic() - started, tuple(client.get(pods_path(namespace))["items"]))


def clear(
    client: Client, namespace: str, node: Machine, staying: frozenset[str] = frozenset()
) -> None:
    """Delete the pods and wait until the node has finished with them, not only the API.

    Taking a hundred pods down costs as much as starting them; the next burst must not pay for it.
    """
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)
    wait_for(
        f"{node.name} to have no container left", lambda: containers(node) <= staying, CLEARED_S
    )


def containers(node: Machine) -> frozenset[str]:
    """Name those that the node's runtime has now."""
    tasks = node.root / TASKS
    return frozenset(path.name for path in tasks.iterdir()) if tasks.exists() else frozenset()


def _one_not_running(client: Client, namespace: str) -> str | None:
    """Ask for one only: a list of all, four times a second, would slow down what is measured."""
    found = client.get(pods_path(namespace), fieldSelector="status.phase!=Running", limit=1)
    return found["items"][0]["metadata"]["name"] if found["items"] else None


def _pod(number: int, node: str, limits: Limits) -> Object:
    """Describe a pod whose containers say what they were given, and stay."""

    def resources(container: str) -> dict[str, Any]:
        asked = limits(number, container) if callable(limits) else limits
        return {"resources": {"limits": dict(asked)}} if asked else {}

    first: dict[str, Any] = {}
    if number % WITH_INIT == 0:
        init = pods.pod("init", ("sh", "-c", SHOW))["spec"]["containers"][0]
        first = {"initContainers": [init | {"name": INIT} | resources(INIT)]}
    command = ("sh", "-c", f"{SHOW}; exec sleep 100000")
    return pods.pod(
        f"pod-{number}",
        command,
        nodeSelector={"kubernetes.io/hostname": node},
        container=resources(MAIN),
        **first,
    )
