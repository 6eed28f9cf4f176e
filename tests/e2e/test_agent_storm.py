"""A storm on living nodes: driver, kubelet and runtime restart, pods are deleted.

After each blow the agent is ready again, and the next pod gets its share. Pods that run keep what
they have, and nothing is granted twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hami_sandbox import gpus
from tests.e2e import pods
from tests.e2e.agent import node_side, workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed, sources  # noqa: F401 (for every test)
from tests.e2e.agent.installation import Agents
from tests.e2e.agent.workloads import MIB
from tests.e2e.fakegpu.nodes import FOLDER, PLACE
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

#: Seconds; catches hangs only.
BACK_S = 120
AIM_S = 10
LIBRARY = "libnvidia-ml.so.1"
#: What the library of the driver before answers.
MISMATCH = 18
CALLS = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlEventSetWait_v2")
ASKED = ("init", "count", "total 0")
MEMORY = 600
#: More than half of a card: two fit on none.
LARGE = 16_000
REGISTERED = "registered with kubelet"

Blow = Callable[[Agents, Client, str], Callable[[], bool]]
"""Strikes, and gives what tells that the agents have noticed."""


def _replaced_driver(agents: Agents, client: Client, namespace: str) -> Callable[[], bool]:
    """Load another driver: the library that the agent has open does not belong to it.

    The stand-in's faults are those of all processes, so they end when the old agent has.
    """
    del client, namespace
    old = {where: agents.pid(where) for where in agents.nodes}
    for node in agents.nodes.values():
        library = node.path(f"{PLACE}/{LIBRARY}")
        new = library.with_name("new")
        shutil.copy(library, new)
        gpus.set_faults(node.path(FOLDER), [f"{call} 1+ {MISMATCH}" for call in CALLS])
        new.replace(library)

    def ended() -> bool:
        for where in [each for each, pid in old.items() if not Path(f"/proc/{pid}").exists()]:
            gpus.set_faults(agents.nodes[where].path(FOLDER), [])
            del old[where]
        return not old

    try:
        wait_for("the agents to end", ended, BACK_S)
    finally:
        for node in agents.nodes.values():
            gpus.set_faults(node.path(FOLDER), [])
    return lambda: True


def _restarted_kubelet(agents: Agents, client: Client, namespace: str) -> Callable[[], bool]:
    del client, namespace
    before = {node: _registrations(agents, node) for node in agents.nodes}
    for node in agents.nodes:
        agents.cluster.machine(node).restart("kubelet")
    return lambda: all(_registrations(agents, node) > old for node, old in before.items())


def _registrations(agents: Agents, node: str) -> int:
    return len(node_side.log_lines(agents, node, REGISTERED))


def _restarted_runtime(agents: Agents, client: Client, namespace: str) -> Callable[[], bool]:
    del client, namespace
    for node in agents.nodes:
        agents.cluster.machine(node).restart("containerd")
    return lambda: True


def _forced_deletion(agents: Agents, client: Client, namespace: str) -> Callable[[], bool]:
    """Delete pods that fill all cards by force: kubelet still ends their containers."""
    del agents
    for pod in client.get(pods_path(namespace))["items"]:
        if pod["metadata"]["name"].startswith("large"):
            client.delete(pods_path(namespace, pod["metadata"]["name"]), gracePeriodSeconds=0)
    return lambda: True


BLOWS: dict[str, Blow] = {
    "driver replaced": _replaced_driver,
    "kubelet restarted": _restarted_kubelet,
    "containerd restarted": _restarted_runtime,
    "pods deleted by force": _forced_deletion,
}


def _share(agents: Agents, where: str, name: str, memory: int = MEMORY) -> Object:
    node = agents.nodes[where]
    main = workloads.container("main", *ASKED, node=node, memory=memory)
    return workloads.pod(f"{name}-{where}", main, node=node)


def _await_ready(agents: Agents) -> None:
    def ready() -> bool:
        try:
            return not any(node_side.why_not_ready(agents, node) for node in agents.nodes)
        except (OSError, LookupError):
            return False  # its container is not there yet

    wait_for("the agents to be ready", ready, BACK_S)


@pytest.mark.timeout(600)
def test_after_each_blow_the_agents_are_ready_and_nothing_is_granted_twice(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in agents.nodes:
        if any(agents.restarts(where).values()):
            agents.renew(where)
    large = [f"large-{number}" for number in range(len(agents.nodes[where].cards))]
    bodies = [_share(agents, where, "stays") for where in agents.nodes]
    bodies += [_share(agents, where, name, LARGE) for where in agents.nodes for name in large]
    names = [made["metadata"]["name"] for made in pods.create(client, namespace, *bodies)]
    running = [pods.await_phase(client, namespace, name) for name in names]
    stays = running[: len(agents.nodes)]

    took: dict[str, str] = {}
    for number, (what, blow) in enumerate(BLOWS.items()):
        begin = time.monotonic()
        noticed = blow(agents, client, namespace)
        wait_for(f"the agents to notice: {what}", noticed, BACK_S)
        _await_ready(agents)
        ready = time.monotonic() - begin
        # After the deletions a pod of the same size: it fits only where they have ended.
        memory = LARGE if blow is _forced_deletion else MEMORY + number
        for where in agents.nodes:
            pods.create(client, namespace, _share(agents, where, f"next-{number}", memory))
        for where in agents.nodes:
            pod = pods.await_phase(client, namespace, f"next-{number}-{where}")
            expected = ["ok", "ok 1", f"ok {memory * MIB}"]
            assert workloads.answers(client, pod, "main", len(ASKED)) == expected, what
        took[what] = f"{ready:.1f} s, a pod ran after {time.monotonic() - begin:.1f} s"
        assert sources(agents, quiet=False).settle() == [], what
    with capsys.disabled():
        print(f"\nready again (aim {AIM_S} s): {took}")  # noqa: T201 - measured, for the reader
    assert [node_side.restarts(client, pod) for pod in stays] == [0] * len(stays)
    for pod in stays:
        assert workloads.ask(agents, pod, *ASKED)[2] == f"ok {MEMORY * MIB}"
