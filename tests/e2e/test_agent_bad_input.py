"""Input that cannot be right: it is named, nobody else is affected, and nothing is deleted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

from hami.wire import grant
from tests.e2e import pods
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, Agents
from tests.e2e.agent.workloads import MIB
from tests.e2e.auditor import layouts, pod_annotations
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.kubelet_api import device_plugin
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core
from tests.kubeapi.paths import pods as pods_path

ASKED = ("init", "count", "total 0")
LEDGER = str(layouts.HAMI.ledger)
SOON_S = 90
IGNORED = {"hami.io/webhook": "ignore"}


def share(agents: Agents, where: str, name: str, memory: int = 300, **spec: Any) -> Object:
    node = agents.nodes[where]
    main = workloads.container("main", *ASKED, node=node, memory=memory)
    return workloads.pod(name, main, node=node, **spec)


def runs(agents: Agents, client: Client, namespace: str, where: str, name: str) -> Object:
    """See that a new pod gets its share."""
    pods.create(client, namespace, share(agents, where, name))
    pod = pods.await_phase(client, namespace, name)
    said = workloads.answers(client, pod, "main", len(ASKED))
    assert said == ["ok", "ok 1", f"ok {300 * MIB}"]
    return pod


def said(agents: Agents, where: str, *words: str) -> bool:
    """Tell whether the agent has a line in its log with all these words."""
    return any(all(word in str(line) for word in words) for line in agents.log(where))


def crash(agents: Agents, client: Client, pod: Object) -> None:
    """Kill a pod's container, and wait until it runs again."""
    meta = pod["metadata"]
    path = pods_path(meta["namespace"], meta["name"])
    (status,) = client.get(path)["status"]["containerStatuses"]
    _, _, number = status["containerID"].rpartition("/")
    for each in workloads.containers(agents, pod):
        for pid in each.pids if each.id == number else ():
            with contextlib.suppress(ProcessLookupError):  # it went with its parent
                os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        (now,) = client.get(path)["status"]["containerStatuses"]
        return bool(now["restartCount"] > status["restartCount"] and "running" in now["state"])

    wait_for(f"{meta['name']} to run again", again, SOON_S)


def test_a_record_of_the_ledger_that_was_cut_off(
    agents: Agents, client: Client, namespace: str
) -> None:
    cut, other = (runs(agents, client, namespace, LATE, name) for name in ("cut", "other"))
    if any(agents.restarts(LATE).values()):
        agents.renew(LATE)
    record = agents.nodes[LATE].path(f"{LEDGER}/{cut['metadata']['uid']}.json")
    half = record.read_bytes()[:100]
    before = sum(agents.restarts(LATE).values())
    record.write_bytes(half)
    agents.kill(LATE)
    wait_for("its restart", lambda: sum(agents.restarts(LATE).values()) > before, SOON_S)
    agents.await_registered(LATE)
    wait_for("a named error", lambda: said(agents, LATE, record.name, "error"), SOON_S)
    kept = [path for path in record.parent.iterdir() if path.name.startswith(record.stem)]
    assert half in [path.read_bytes() for path in kept]
    crash(agents, client, other)
    runs(agents, client, namespace, LATE, "next")
    # Whoever looks at it removes it.
    for path in kept:
        if path.read_bytes() == half:
            path.unlink()


@contextlib.contextmanager
def node_config(agents: Agents, client: Client, where: str, entry: Object) -> Iterator[None]:
    """Let the configuration say something of one node, which its agent reads when it starts."""
    path = core("configmaps", agents.release.namespace, f"{agents.release.fullname}-{AGENT}")
    good = client.get(path)["data"]["config.json"]
    bad = json.dumps({"nodeconfig": [{"name": where, **entry}]})

    def start_with(text: str) -> None:
        client.patch(path, {"data": {"config.json": text}})
        old = agents.pod(where)["metadata"]
        client.delete(pods_path(old["namespace"], old["name"]))

        def another() -> bool:
            found = agents.pod(where)
            states = found["status"].get("containerStatuses", [])
            return found["metadata"]["uid"] != old["uid"] and any(
                "running" in state["state"] for state in states if state["name"] == AGENT
            )

        wait_for("another agent", another, SOON_S)

    try:
        start_with(bad)
        yield
    finally:
        start_with(good)
        agents.await_ready(where)
        agents.await_offers(where)


def test_a_key_of_the_node_configuration_that_nobody_knows(
    agents: Agents, client: Client, namespace: str
) -> None:
    running = runs(agents, client, namespace, LOCK, "before")
    with node_config(agents, client, LOCK, {"devicesplitcuont": 5}):
        wait_for(
            "a named error",
            lambda: said(agents, LOCK, "devicesplitcuont", "devicesplitcount"),
            SOON_S,
        )
        assert agents.metric(LOCK, "hami_agent_cards", AGENT) == 0
        # What was there before goes on, and the other node does not notice.
        crash(agents, client, running)
        runs(agents, client, namespace, LATE, "elsewhere")
    runs(agents, client, namespace, LOCK, "after")


def test_kubelets_socket_is_missing(agents: Agents, client: Client, namespace: str) -> None:
    running = runs(agents, client, namespace, LATE, "before")
    folder = agents.nodes[LATE].path(str(device_plugin.FOLDER))
    socket, aside = folder / device_plugin.KUBELET_SOCKET, folder / "aside"
    before = agents.restarts(LATE)
    socket.rename(aside)
    try:
        wait_for("a named error", lambda: said(agents, LATE, socket.name, "warning"), SOON_S)
        crash(agents, client, running)
        runs(agents, client, namespace, LOCK, "elsewhere")
    finally:
        aside.rename(socket)
    agents.await_registered(LATE)
    runs(agents, client, namespace, LATE, "after")
    assert agents.restarts(LATE) == before


def test_grants_that_were_forged_or_do_not_decode(
    agents: Agents, client: Client, namespace: str
) -> None:
    """Somebody whom the policies trust has written them; admission and scheduler were not asked."""
    keys = grant.GrantKeys(agents.release.secret("grant-key")["current"])
    card = agents.nodes[LATE].card.uuid
    garbled = f"{card},NVIDIA"
    made = {
        "forged": f"{card},NVIDIA,300,0:;",
        "garbled": garbled,
    }
    for name, devices in made.items():
        body = share(
            agents, LATE, name, metadata={"labels": IGNORED}, schedulerName=gpu_pods.SCHEDULER
        )
        (pod,) = pods.create(client, namespace, body)
        uid = pod["metadata"]["uid"]
        signed = uid if name == "garbled" else "somebody-else"
        written = {
            pod_annotations.NODE: LATE,
            pod_annotations.ALLOCATED: devices,
            pod_annotations.MAC: grant.sign(keys, uid=signed, node=LATE, devices=devices),
        }
        gpu_pods.bind_with(client, pod, LATE, written)

    def refused(name: str, word: str) -> bool:
        found = workloads.events(client, namespace, name)
        return any(word in event["message"] for event in found)

    wait_for("its code to be named", lambda: refused("forged", pod_annotations.MAC), SOON_S)
    wait_for("its text to be named", lambda: refused("garbled", pod_annotations.ALLOCATED), SOON_S)
    runs(agents, client, namespace, LATE, "other")
    for name, devices in made.items():
        found = client.get(pods_path(namespace, name))
        assert found["metadata"]["annotations"][pod_annotations.ALLOCATED] == devices
        assert not any(each.get("containerID") for each in found["status"]["containerStatuses"])
        gpu_pods.remove(client, found)
