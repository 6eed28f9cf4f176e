"""Agents that are replaced while pods arrive: no pod fails for it.

kubelet asks a device plugin once for a pod, and fails the pod for ever if no plugin answers. The
pods here have no controller: a failed one would stay.
"""

from __future__ import annotations

import pytest

from tests.e2e import pods, sizes
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import COMPONENT, LATE, LOCK, Agents
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

NEW_S = 90
SETTLED_S = 240


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
