"""Many pods at once on one node, in both modes: each gets its own cards.

The times are for the reader; neither they nor the ratio to the bare plugin decide. The ratio is
measured in whole runs only (sizes.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.e2e import burst, sizes
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, MONITOR, Agents
from tests.e2e.bare_plugin import on_node
from tests.e2e.burst import INIT, Burst
from tests.e2e.install import audit
from tests.e2e.install.nodes import GPU, MEMORY
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import pods as pods_path

COUNT = sizes.PODS_ON_A_NODE
WAIT_S = 400
AIM = 1.6
MIB = 2**20
UNRESOLVABLE = "unresolvable"
REFUSED = "GPUStartRefused"


def limits(number: int, container: str) -> Mapping[str, str]:
    """Ask for memory that no other container asks for."""
    return {GPU: "1", MEMORY: str(200 + number + (COUNT if container == INIT else 0))}


@pytest.mark.timeout(900)
def test_many_pods_on_a_node_that_binds_late(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ""
    if sizes.WHOLE:
        bare = burst.measured.get("bare plugin") or _bare(agents, client, namespace)
        text = f" (aim: {AIM} times the bare plugin's {bare:.1f} s)"
    done = _burst(agents, client, namespace, LATE)
    _tell(agents, capsys, LATE, f"late: {done.seconds:.1f} s{text}")


@pytest.mark.timeout(900)
def test_many_pods_on_a_node_with_a_lock(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _burst(agents, client, namespace, LOCK)
    _tell(agents, capsys, LOCK, f"by the node's lock: {done.seconds:.1f} s")


def _burst(agents: Agents, client: Client, namespace: str, node: str) -> Burst:
    mark = audit.mark(agents.cluster)
    machine = agents.nodes[node].machine
    staying = burst.containers(machine)
    done = burst.run(client, namespace, COUNT, node=node, limits=limits, wait=WAIT_S)
    bindings = mark.bindings(namespace)
    assert [entry for entry in bindings if not entry.good] == []
    assert len(bindings) == COUNT
    said = [event["message"] for event in workloads.events(client, namespace)]
    assert [message for message in said if UNRESOLVABLE in message] == []
    assert [message for message in said if REFUSED in message] == []
    for pod in done.pods:
        _has_its_own(client, pod)
    burst.clear(client, namespace, machine, staying)
    return done


def _has_its_own(client: Client, pod: Object) -> None:
    """See that every container was told of its own card and its own limit."""
    meta, spec = pod["metadata"], pod["spec"]
    number = int(meta["name"].rpartition("-")[2])
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    for container, (grant,) in zip(containers, workloads.slots(pod), strict=True):
        name = container["name"]
        asked = int(limits(number, name)[MEMORY])
        path = pods_path(meta["namespace"], meta["name"], "log")
        log = client.request("GET", path, query={"container": name}).body.decode()
        env = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
        told = env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]
        assert told == (grant.card, f"{asked}m"), (meta["name"], name)
        assert grant.memory == asked


def _bare(agents: Agents, client: Client, namespace: str) -> float:
    """Measure the floor, where the bare plugin's own test did not run before."""
    machine = agents.nodes[LATE].machine
    staying = burst.containers(machine)
    with on_node.running(agents.cluster, LATE) as resource:
        done = burst.run(client, namespace, COUNT, node=LATE, limits={resource: "1"}, wait=WAIT_S)
        burst.clear(client, namespace, machine, staying)
    return done.seconds


def _tell(agents: Agents, capsys: pytest.CaptureFixture[str], node: str, text: str) -> None:
    resident = {name: agents.memory(node, name) / MIB for name in (AGENT, MONITOR)}
    shown = ", ".join(f"{name} {size:.0f} MiB" for name, size in resident.items())
    with capsys.disabled():
        print(  # noqa: T201 (figures for the reader; they decide nothing)
            f"\n{COUNT} pods on {node}, {text}; resident afterwards: {shown}"
        )
