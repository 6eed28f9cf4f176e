"""Agents that are replaced while pods arrive: no pod fails for it.

kubelet asks a device plugin once for a pod, and fails the pod for ever if no plugin answers. A pod
without a controller that failed would stay. That happens only to an agent that is killed, and then
the owner learns why.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e import pods, sizes
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import COMPONENT, LATE, LOCK, Agents
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group
from tests.kubeapi.paths import pods as pods_path

NEW_S = 90
SETTLED_S = 240
REJECTED, EXPLAINED = "UnexpectedAdmissionError", "GPUPodRejected"
METRIC = "hami_scheduler_rejected_pods"
TRIES = 3


def share(agents: Agents, number: int) -> Object:
    node = agents.nodes[(LATE, LOCK)[number % 2]]
    main = workloads.container("main", "init", node=node, memory=200)
    return workloads.pod(f"p-{number}", main, node=node)


def _new_agents(agents: Agents, replaced: set[str]) -> set[str]:
    found = {pod["metadata"]["name"] for pod in agents.release.pods(COMPONENT)} - replaced
    return found if len(found) == len(agents.nodes) else set()


def test_pods_that_arrive_while_agents_are_replaced_all_run(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = sizes.PODS_OF_A_ROLLOUT
    replaced: set[str] = set()
    for number in range(count):
        pods.create(client, namespace, share(agents, number))
        if number in (count // 4, count // 2):
            # The second time as soon as there are new agents, which may not serve yet.
            found = wait_for("two new agents", lambda: _new_agents(agents, replaced), NEW_S)
            replaced.update(found)
            for name in found:
                client.delete(pods_path(agents.release.namespace, name))

    def phases() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pod in client.get(pods_path(namespace))["items"]:
            phase = pod["status"].get("reason") or pod["status"]["phase"]
            found.setdefault(phase, []).append(pod["metadata"]["name"])
        return found

    wait_for("the pods to settle", lambda: "Pending" not in phases(), SETTLED_S)
    with capsys.disabled():
        shown = {phase: len(names) for phase, names in phases().items()}
        print(f"\n{count} pods, {len(replaced)} agents replaced: {shown}")  # noqa: T201 (for the reader)
    assert phases().keys() == {"Running"}, phases()
    agents.await_ready(LATE)
    agents.await_ready(LOCK)


def _rejected(client: Client, namespace: str) -> set[str]:
    found = client.get(pods_path(namespace))["items"]
    return {pod["metadata"]["name"] for pod in found if pod["status"].get("reason") == REJECTED}


def _named_by_events(client: Client, namespace: str, reason: str) -> list[str]:
    events = client.get(core("events", namespace), fieldSelector=f"reason={reason}")["items"]
    return sorted(event["involvedObject"]["name"] for event in events)


def _strike(
    agents: Agents, client: Client, namespace: str, others: Callable[[], object]
) -> set[str]:
    """Kill an agent while pods arrive; give those that kubelet has rejected for it.

    `others` makes more of them.
    """
    if any(agents.restarts(LATE).values()):
        agents.renew(LATE)
    for attempt in range(TRIES):
        agents.await_registered(LATE)
        agents.kill(LATE)
        others()
        for number in range(2):
            body = share(agents, 2 * number)
            body["metadata"]["name"] = name = f"alone-{attempt}-{number}"
            pods.create(client, namespace, body)

        def settled() -> bool:
            found = client.get(pods_path(namespace))["items"]
            return all(
                pod["status"]["phase"] != "Pending"
                for pod in found
                if pod["metadata"]["name"].startswith("alone")
            )

        wait_for(f"{name} and others to run or to fail", settled, SETTLED_S)
        if found := {each for each in _rejected(client, namespace) if each.startswith("alone")}:
            return found
    raise AssertionError(f"the agent was back in time {TRIES} times")


def test_pods_that_fail_because_an_agent_was_killed_are_explained_and_counted(
    agents: Agents, client: Client, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a controller are also removed: it makes others in their place."""
    body = share(agents, 0)
    labels = {"app": "many"}
    template = {"metadata": {"labels": labels}, "spec": body["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    sets = group("apps/v1", "replicasets", namespace)
    client.create(sets, {"metadata": {"name": "many"}, "spec": spec})
    many = {"spec": {"replicas": 2}}
    alone = _strike(agents, client, namespace, lambda: client.patch(f"{sets}/many", many))

    def replaced() -> bool:
        found = client.get(f"{sets}/many")["status"]
        return found.get("readyReplicas") == 2 and _rejected(client, namespace) == alone

    try:
        wait_for("the pods of the controller to run, and those before to go", replaced, SETTLED_S)
        leader = agents.release.leader()

        def counted() -> bool:
            return agents.release.metric(leader, METRIC, cause="unanswered") == len(alone)

        wait_for("those that stay to be counted", counted, NEW_S)
        failed = _named_by_events(client, namespace, REJECTED)
        # One each, for those that are gone as well.
        assert _named_by_events(client, namespace, EXPLAINED) == failed
        assert alone <= set(failed)
        with capsys.disabled():
            print(f"\nkubelet rejected {len(failed)} pods, {len(alone)} without a controller")  # noqa: T201 (for the reader)
    finally:
        client.delete(f"{sets}/many")
