"""One pod's life from `kubectl apply` to its end, with the time of each step."""

from __future__ import annotations

import datetime as dt
import time

import msgspec
import pytest

from hami.wire import policy_file, state_file
from tests.e2e import pods
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed, sources  # noqa: F401 (for every test)
from tests.e2e.agent.installation import LATE, LOCK, Agents
from tests.e2e.agent.workloads import CONTEXT, MIB, OUT_OF_MEMORY
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.layouts import HAMI
from tests.e2e.chart import asking
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.install import audit
from tests.kubeapi.client import Client, Object, wait_for

LIMIT = 1024
TAKEN = 400
SOON_S = 30
COMMANDS = ("init", "device 0", "total 0", f"take alloc a {TAKEN}m", f"take alloc b {TAKEN}m")
USED, ALLOWED = "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_a_pods_life(
    agents: Agents,
    client: Client,
    namespace: str,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = agents.nodes[where]
    mark = audit.mark(agents.cluster)
    described = workloads.container("main", *COMMANDS, node=node, memory=LIMIT)
    begin = time.time()
    (made,) = pods.create(client, namespace, workloads.pod("life", described, node=node))
    admitted = time.time()
    assert asking.is_ours(made)
    pod = pods.await_phase(client, namespace, "life")
    running = time.time()

    said = workloads.answers(client, pod, "main", len(COMMANDS))
    assert (said[2], said[4]) == (f"ok {LIMIT * MIB}", OUT_OF_MEMORY)
    assert said[3].startswith("ok ")
    ((grant,),) = workloads.slots(pod)
    assert (grant.memory, pod["spec"]["nodeName"]) == (LIMIT, where)
    assert grant.card in {card.uuid for card in node.cards}

    labels = {"namespace": namespace, "pod": "life", "container": "main"}

    def shown() -> dict[str, float]:
        return {name: agents.metric(where, name, **labels) for name in (USED, ALLOWED)}

    taken = {USED: CONTEXT + TAKEN * MIB, ALLOWED: LIMIT * MIB}
    wait_for("the metrics to show its use", lambda: shown() == taken, SOON_S)

    # A process of its own sees the same limit, and what the first one has left of it.
    said = workloads.ask(agents, pod, "init", "device 0", "total 0", f"take alloc c {LIMIT}m")
    assert said == ["ok", "ok", f"ok {LIMIT * MIB}", OUT_OF_MEMORY]
    assert sources(agents, quiet=False).settle() == []

    bound = next(entry.received for entry in mark.bindings(namespace) if entry.good)
    # The scheduler may be faster than the answer to us.
    steps = [
        (begin, "apply"),
        (admitted, "admitted"),
        (bound, "bound"),
        (_said(agents, where, "Allocate", begin), "Allocate"),
        (_said(agents, where, "PreStart", begin), "PreStart"),
        (running, "Running"),
    ]
    with capsys.disabled():
        print(  # noqa: T201 (for the reader; it decides nothing)
            f"\n{where}, {_mode(agents, where)}: "
            + " -> ".join(f"{name} {(at - begin) * 1000:.0f} ms" for at, name in sorted(steps))
        )
    gpu_pods.remove(client, pod)
    wait_for("its series to end", lambda: shown() == {USED: 0, ALLOWED: 0}, SOON_S)


def test_the_auditor_compares_the_policy_with_the_grant(
    agents: Agents, client: Client, namespace: str
) -> None:
    node = agents.nodes[LATE]
    described = workloads.container("main", *COMMANDS, node=node, memory=LIMIT)
    pods.create(client, namespace, workloads.pod("judged", described, node=node))
    pod = pods.await_phase(client, namespace, "judged")
    workloads.answers(client, pod, "main", len(COMMANDS))
    (token,) = workloads.allocation_ids(agents, pod)
    ((grant,),) = workloads.slots(pod)
    state = state_file.decode(node.path(f"{HAMI.states}/{token}/state").read_bytes())
    (shown,) = state.cards
    assert (shown.uuid, shown.limit) == (grant.card, LIMIT * MIB)
    assert shown.refused > 0

    path = node.path(f"{HAMI.tokens}/{token}/{HAMI.policy_file}")
    right = policy_file.decode(path.read_bytes())
    (share,) = right.shares
    twice = msgspec.structs.replace(share, memory_mib=2 * share.memory_mib)
    judge = sources(agents, quiet=False)
    assert judge.settle() == []
    path.write_bytes(policy_file.encode(msgspec.structs.replace(right, shares=(twice,))))
    assert {finding.kind for finding in judge.settle()} == {Kind.POLICY_LIMITS}
    path.write_bytes(policy_file.encode(right))


def _said(agents: Agents, node: str, message: str, since: float) -> float:
    """Give when the agent said that it answered kubelet."""
    for line in agents.log(node):
        at = dt.datetime.fromisoformat(line["time"]).timestamp() if "time" in line else 0.0
        if line["message"] == message and at >= since:
            return at
    raise AssertionError(f"the agent of {node} did not say {message}")


def _mode(agents: Agents, node: str) -> str:
    late = agents.metric(node, "hami_agent_late_binding", "device-plugin")
    return "late" if late else "by the node's lock"


def test_a_whole_card_has_nothing_of_ours_in_it(
    agents: Agents, client: Client, namespace: str
) -> None:
    for where in (LATE, LOCK):
        node = agents.nodes[where]
        whole = workloads.container("main", "init", "count", "total 0", node=node)
        pods.create(client, namespace, workloads.pod(f"whole-{where}", whole, node=node))
    for where in (LATE, LOCK):
        pod = pods.await_phase(client, namespace, f"whole-{where}")
        card = agents.nodes[where].card
        assert workloads.answers(client, pod, "main", 3) == ["ok", "ok 1", f"ok {card.memory}"]
        assert _files(agents, pod) == "none"


def _files(agents: Agents, pod: Object) -> str:
    meta = pod["metadata"]
    return agents.cluster.kubectl(
        *("-n", meta["namespace"], "exec", meta["name"], "--", "sh", "-c"),
        "ls -d /usr/local/vgpu /etc/ld.so.preload 2>/dev/null || echo none",
    ).strip()
