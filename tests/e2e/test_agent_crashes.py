"""Crashes in the middle: a container starts with its own share or not at all.

Nothing is granted twice, and nothing stays stuck. The product has no points to stop it at, so what
it leaves on disk tells where it is: it is killed at just that moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import pods
from tests.e2e.agent import rebooting, workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed, sources  # noqa: F401 (for every test)
from tests.e2e.agent.installation import LATE, LOCK, Agents
from tests.e2e.agent.workloads import MIB
from tests.e2e.auditor import layouts
from tests.e2e.chart import asking
from tests.e2e.cluster.layout import CONTROL_PLANE
from tests.e2e.install import placing
from tests.e2e.kubelet_api import checkpoint
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

ASKED = ("init", "count", "total 0")
SOON_S = 90
# A kubelet that starts looks for seconds at each container that was being made when it ended.
PATIENCE_S = 240
AGAIN_S = 60
BURST = 8
FEW = 3
BACK_S = 10
LEDGER = str(layouts.HAMI.ledger)
SPECS = "/run/cdi"
TRIES = 5


def share(agents: Agents, where: str, name: str, memory: int = 300) -> Object:
    node = agents.nodes[where]
    main = workloads.container("main", *ASKED, node=node, memory=memory)
    return workloads.pod(name, main, node=node)


def has(client: Client, pod: Object, memory: int) -> None:
    """See that a running pod has the limit that it asked for, and one card."""
    said = workloads.answers(client, pod, "main", len(ASKED))
    assert said == ["ok", "ok 1", f"ok {memory * MIB}"], pod["metadata"]["name"]


def works(agents: Agents, client: Client, namespace: str, where: str) -> None:
    """See that the next pod gets its cards, so nothing is stuck."""
    agents.await_registered(where)
    pods.create(client, namespace, share(agents, where, f"next-{where}", 500))
    has(client, pods.await_phase(client, namespace, f"next-{where}"), 500)


@contextlib.contextmanager
def killing(agents: Agents, where: str, at: Callable[[], bool]) -> Iterator[None]:
    """Kill the node's agent as soon as something is seen that the block makes happen."""
    if any(agents.restarts(where).values()):
        agents.renew(where)
    pid = agents.pid(where)
    yield
    deadline = time.monotonic() + SOON_S
    while not at():
        assert time.monotonic() < deadline, "the moment did not come"
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def is_recorded(agents: Agents, where: str, pod: Object) -> bool:
    return agents.nodes[where].path(f"{LEDGER}/{pod['metadata']['uid']}.json").exists()


def test_killed_between_allocate_and_prestart(
    agents: Agents, client: Client, namespace: str
) -> None:
    file = agents.nodes[LATE].path(str(checkpoint.PATH))
    made: list[Object] = []

    def allocated() -> bool:
        return bool(made) and made[0]["metadata"]["uid"].encode() in file.read_bytes()

    with killing(agents, LATE, allocated):
        made += pods.create(client, namespace, share(agents, LATE, "struck"))
    assert not is_recorded(agents, LATE, made[0])
    has(client, pods.await_phase(client, namespace, "struck"), 300)
    works(agents, client, namespace, LATE)


def test_killed_between_prestart_and_start(agents: Agents, client: Client, namespace: str) -> None:
    folder = agents.nodes[LATE].path(SPECS)

    def prepared() -> bool:
        return any(name.startswith(layouts.HAMI.spec_prefix) for name in _names(folder))

    with killing(agents, LATE, prepared):
        (made,) = pods.create(client, namespace, share(agents, LATE, "struck"))
    assert is_recorded(agents, LATE, made)
    has(client, pods.await_phase(client, namespace, "struck"), 300)
    works(agents, client, namespace, LATE)


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_killed_during_the_write_of_the_ledger(
    agents: Agents, client: Client, namespace: str, where: str
) -> None:
    """It is stopped first: if the write has ended by then, the next pod is tried."""
    if any(agents.restarts(where).values()):
        agents.renew(where)
    folder = agents.nodes[where].path(LEDGER)
    pid = agents.pid(where)
    for number in range(TRIES):
        (made,) = pods.create(client, namespace, share(agents, where, f"struck-{number}"))
        deadline = time.monotonic() + SOON_S
        while not _names(folder):
            assert time.monotonic() < deadline, "nothing was written"
        os.kill(pid, signal.SIGSTOP)
        names = _names(folder)
        if names and all(name.startswith(".") for name in names):
            os.kill(pid, signal.SIGKILL)
            break
        os.kill(pid, signal.SIGCONT)
        pods.await_phase(client, namespace, made["metadata"]["name"])
        client.delete(pods_path(namespace))
        pods.await_gone(client, namespace)
        wait_for("its record to go", lambda: not _names(folder), SOON_S)
    else:
        raise AssertionError(f"{TRIES} writes were too fast to be interrupted")
    name = made["metadata"]["name"]

    def settled() -> str | None:
        phase: str = client.get(pods_path(namespace, name))["status"]["phase"]
        return phase if phase in {"Running", "Failed"} else None

    # Where the lock is, kubelet does not ask twice: the pod has failed, and another is made of it.
    assert (
        wait_for("a right start or none", settled, SOON_S)
        in {
            LATE: {"Running"},
            LOCK: {"Running", "Failed"},
        }[where]
    )
    if settled() == "Running":
        has(client, pods.await_phase(client, namespace, name), 300)
    works(agents, client, namespace, where)


def _phases(client: Client, namespace: str) -> Counter[str]:
    """Count pods by node and phase; the node is the end of their names."""
    return Counter(
        f"{pod['metadata']['name'].partition('-')[2]} {pod['status']['phase']}"
        for pod in client.get(pods_path(namespace))["items"]
    )


def _burst(agents: Agents, client: Client, namespace: str, count: int) -> None:
    """Create pods for both nodes; no two of a node ask for the same."""
    bodies = [
        share(agents, where, f"{number}-{where}", _memory(f"{number}-{where}"))
        for number in range(count)
        for where in agents.nodes
    ]
    placing.create_at_once(client, namespace, bodies)


def _memory(name: str) -> int:
    return 300 + int(name.partition("-")[0])


def _await_running(agents: Agents, client: Client, namespace: str, count: int) -> None:
    def run() -> bool:
        phases = _phases(client, namespace)
        return all(phases[f"{where} Running"] >= count for where in agents.nodes)

    wait_for(f"{count} to run on each node", run, PATIENCE_S)


def _settled(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Wait until every pod runs or has failed; those that run have their own share."""

    def settled() -> bool:
        return {phase.split()[-1] for phase in _phases(client, namespace)} <= {"Running", "Failed"}

    wait_for("a right start or none", settled, PATIENCE_S)
    with capsys.disabled():
        print(f"\nafter {what}: {dict(_phases(client, namespace))}")  # noqa: T201 (for the reader)
    for pod in client.get(pods_path(namespace))["items"]:
        if pod["status"]["phase"] == "Running":
            has(client, pod, _memory(pod["metadata"]["name"]))
        else:
            assert pod["status"]["reason"] == "UnexpectedAdmissionError", pod["status"]
    assert sources(agents, quiet=False).settle() == []
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)
    for where in agents.nodes:
        works(agents, client, namespace, where)


@pytest.mark.timeout(600)
def test_kubelet_and_runtime_restarted_in_the_middle_of_a_burst(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _burst(agents, client, namespace, BURST)
    _await_running(agents, client, namespace, BURST // 4)
    for where in agents.nodes:
        agents.cluster.machine(where).restart("kubelet")
    _await_running(agents, client, namespace, BURST // 2)
    for where in agents.nodes:
        agents.cluster.machine(where).restart("containerd")
    _settled(agents, client, namespace, capsys, "restarts of kubelet and runtime")


def test_nodes_that_were_switched_off_and_on(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _burst(agents, client, namespace, FEW)
    _await_running(agents, client, namespace, FEW)
    for where in agents.nodes:
        rebooting.reboot(agents, where)
    wait_for("the nodes to notice", lambda: _is_another_start(client, namespace), SOON_S)
    agents.cluster.await_nodes()
    for where in agents.nodes:
        agents.await_registered(where)
    # The scheduler was on one of them.
    asking.await_admission(client, webhook_only=False)
    _settled(agents, client, namespace, capsys, "the nodes were switched off and on")


def _is_another_start(client: Client, namespace: str) -> bool:
    """Tell whether kubelet has seen that its containers are gone."""
    for pod in client.get(pods_path(namespace))["items"]:
        statuses = pod["status"].get("containerStatuses", [])
        if pod["status"]["phase"] != "Failed" and not any(s["restartCount"] for s in statuses):
            return False
    return True


def test_without_the_api_server_a_crashed_container_is_back_soon(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [share(agents, where, f"alone-{where}", 300) for where in (LATE, LOCK)]
    pods.create(client, namespace, *bodies)
    running = {
        where: pods.await_phase(client, namespace, f"alone-{where}") for where in (LATE, LOCK)
    }
    control_plane = agents.cluster.machine(CONTROL_PLANE)
    took: dict[str, float] = {}
    control_plane.daemon("kube-apiserver").stop(signal.SIGKILL)
    try:
        for where, pod in running.items():
            took[where] = _back_after_crash(agents, pod)
    finally:
        control_plane.start_again("kube-apiserver")
        agents.cluster.await_api_server()
    with capsys.disabled():
        told = ", ".join(f"{where} {seconds:.1f} s" for where, seconds in took.items())
        print(f"\nwithout an API server, a crashed container is back: {told} (aim {BACK_S})")  # noqa: T201 - measured, for the reader
    for pod in running.values():
        _await_restart(client, pod)
        has(client, pod, 300)


def _back_after_crash(agents: Agents, pod: Object) -> float:
    """Kill the container; give the seconds until another one of it has a process."""
    (status,) = pod["status"]["containerStatuses"]
    _, _, old = status["containerID"].rpartition("/")
    known = {each.id: each.pids for each in workloads.containers(agents, pod)}
    begin = time.monotonic()
    for pid in known[old]:
        with contextlib.suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)

    def another() -> bool:
        return any(each.id not in known for each in workloads.containers(agents, pod))

    wait_for("another container", another, AGAIN_S)
    return time.monotonic() - begin


def _await_restart(client: Client, pod: Object) -> None:
    meta = pod["metadata"]

    def restarted() -> bool:
        found = client.get(pods_path(meta["namespace"], meta["name"]))
        (status,) = found["status"]["containerStatuses"]
        return bool(status["restartCount"] and "running" in status["state"])

    wait_for(f"{meta['name']} to be known as restarted", restarted, SOON_S)
