"""Bad input of the agent: it is named, and harms nothing else."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e import pods
from tests.e2e.agent import by_hand, node_side, workloads
from tests.e2e.agent.fixtures import _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, Agents
from tests.e2e.agent.tolerating import _audited, tolerated  # noqa: F401 (for every test)
from tests.e2e.agent.workloads import MIB
from tests.e2e.auditor import node_annotations, pod_annotations
from tests.e2e.auditor.findings import Kind
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.kubelet_api import device_plugin
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import config_maps
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

MEMORY = 1024
SOON_S = 60
SCHEDULERS_REASON = "GrantInvalid"
"""The scheduler warns about such a pod, too; here the node's words count."""
DAMAGED = "hami_agent_damaged_records"
CONFIG = "config.json"
NO_ENTRIES = '{"nodeconfig": []}'
BOTH = (LATE, LOCK)


def _container(node: GpuNode) -> Object:
    return workloads.container("main", "init", "device 0", node=node, memory=MEMORY)


def _start(agents: Agents, namespace: str, where: str, *names: str) -> list[Object]:
    """Have pods with a share of a card run on a node."""
    node = agents.nodes[where]
    bodies = [workloads.pod(name, _container(node), node=node) for name in names]
    pods.create(agents.client, namespace, *bodies)
    return [pods.await_phase(agents.client, namespace, name) for name in names]


def _require_share(agents: Agents, pod: Object) -> None:
    said = workloads.ask(agents, pod, "init", "device 0", "total 0")
    assert said == ["ok", "ok", f"ok {MEMORY * MIB}"]


# The ledger.


def test_a_damaged_record_concerns_nobody_else(
    agents: Agents, client: Client, namespace: str
) -> None:
    started = {
        where: _start(agents, namespace, where, f"hurt-{where}", f"well-{where}") for where in BOTH
    }
    hurt = {where: both[0] for where, both in started.items()}
    halves = {where: _cut_off(agents.nodes[where], hurt[where]) for where in BOTH}
    # One more, whose pod nobody knows: nothing can be put in its place.
    strays = {where: _stray(agents.nodes[where], halves[where]) for where in BOTH}
    try:
        node_side.renew(agents, *BOTH)
        for where, (broken, well) in started.items():
            _require_named(agents, where, broken["metadata"]["uid"], strays[where].stem)
            assert well["metadata"]["uid"] not in _damage(agents, where)
            # kubelet and the API server know the pod: it is taken in again, and nothing is lost.
            aside = _await_replaced(node_side.record_file(agents.nodes[where], broken))
            assert (aside.read_bytes(), strays[where].read_bytes()) == (halves[where],) * 2
        everybody = [pod for both in started.values() for pod in both]
        for pod in everybody:
            node_side.crash(agents, pod)
        for pod in everybody:
            _await_restart(client, pod)
            _require_share(agents, pod)
    finally:
        for where in BOTH:
            strays[where].unlink()
            for aside in node_side.ledger(agents.nodes[where]).glob("*.damaged-*"):
                aside.unlink()
        node_side.renew(agents, *BOTH)
    for where in BOTH:
        assert agents.metric(where, DAMAGED, AGENT) == 0


def _damage(agents: Agents, where: str) -> str:
    return "".join(node_side.log_lines(agents, where, "cannot read a ledger record"))


def _require_named(agents: Agents, where: str, hurt: str, stray: str) -> None:
    """Both are named; the one that stays as it is is counted for as long as it is there."""
    assert hurt in _damage(agents, where)
    assert stray in _damage(agents, where)
    wait_for("it to be counted", lambda: agents.metric(where, DAMAGED, AGENT) == 1, SOON_S)


def _await_replaced(record: Path) -> Path:
    """Wait until a record can be read again; give where the damaged one is."""
    wait_for(f"{record.name} to be whole", lambda: _is_whole(record), SOON_S)
    return record.with_name(f"{record.name}.damaged-1")


def _await_restart(client: Client, pod: Object) -> None:
    name = pod["metadata"]["name"]
    wait_for(f"{name} to be back", lambda: node_side.restarts(client, pod) == 1, SOON_S)


def _cut_off(node: GpuNode, pod: Object) -> bytes:
    record = node_side.record_file(node, pod)
    half = record.read_bytes()[: record.stat().st_size // 2]
    record.write_bytes(half)
    return half


def _stray(node: GpuNode, content: bytes) -> Path:
    path = node_side.ledger(node) / f"{uuid.uuid4()}.json"
    path.write_bytes(content)
    return path


def _is_whole(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes()))
    except ValueError:
        return False


# The node's configuration.


def test_a_key_that_nobody_knows_offers_nothing_on_its_own_node_only(
    agents: Agents, client: Client, namespace: str
) -> None:
    (runs,) = _start(agents, namespace, LATE, "runs")
    before, since = agents.restarts(LOCK), time.time()
    try:
        _configure(agents, json.dumps({"nodeconfig": [{"name": LATE, "deviceSpltCount": 5}]}))
        wait_for("nothing to be offered", lambda: not node_side.card_health(client, LATE), SOON_S)
        wait_for("kubelet to know it", lambda: not node_side.registered(agents.nodes[LATE]), SOON_S)
        (line,) = node_side.log_lines(agents, LATE, "no card is offered")
        (event,) = wait_for(
            "an event to say so",
            lambda: node_side.event_messages(client, LATE, "NodeConfigWrong", since) or None,
            SOON_S,
        )
        for words in (line, event, node_side.why_not_ready(agents, LATE)):
            assert "deviceSpltCount" in words, words
            assert "devicesplitcount" in words, words

        _require_share(agents, runs)
        node_side.crash(agents, runs)
        _await_restart(client, runs)
        _require_share(agents, runs)
        (other,) = _start(agents, namespace, LOCK, "elsewhere")
        _require_share(agents, other)
        assert agents.restarts(LOCK) == before
    finally:
        _configure(agents, NO_ENTRIES)
        node_side.renew(agents, LATE)
    agents.await_offers()
    (after,) = _start(agents, namespace, LATE, "after")
    _require_share(agents, after)
    assert agents.restarts(LOCK) == before


def _configure(agents: Agents, text: str) -> None:
    """Change the ConfigMap, and have kubelet bring it: a pod that changes is looked at at once."""
    path = config_maps(agents.release.namespace, f"{agents.release.fullname}-device-plugin")
    agents.client.patch(path, {"data": {CONFIG: text}})
    for where in BOTH:
        meta = agents.pod(where)["metadata"]
        touched = {"metadata": {"annotations": {"hami.test/touched": secrets.token_hex(4)}}}
        agents.client.patch(pods_path(meta["namespace"], meta["name"]), touched)


# kubelet.


def test_a_missing_socket_of_kubelet_is_named_and_waited_for(
    agents: Agents, client: Client, namespace: str
) -> None:
    before = {where: agents.restarts(where) for where in BOTH}
    running = [pod for where in BOTH for pod in _start(agents, namespace, where, f"runs-{where}")]
    seen = str(device_plugin.FOLDER / device_plugin.KUBELET_SOCKET)
    with contextlib.ExitStack() as stack:
        for where in BOTH:
            stack.enter_context(_away(agents.nodes[where].path(seen)))
        for where in BOTH:
            _await_words(agents, where, seen)
            assert seen in "".join(
                node_side.log_lines(agents, where, "not registered with kubelet")
            )
        for pod in running:
            node_side.crash(agents, pod)
        for pod in running:
            _await_restart(client, pod)
            _require_share(agents, pod)
    for where in BOTH:
        agents.await_ready(where)
        (pod,) = _start(agents, namespace, where, f"after-{where}")
        _require_share(agents, pod)
        assert agents.restarts(where) == before[where]


def _await_words(agents: Agents, where: str, words: str) -> None:
    wait_for(
        f"the agent to name {words}",
        lambda: words in node_side.why_not_ready(agents, where),
        SOON_S,
    )


@contextlib.contextmanager
def _away(path: Path) -> Iterator[None]:
    place = path.with_name("away")
    path.rename(place)
    try:
        yield
    finally:
        place.rename(path)


# Grants.


@pytest.mark.parametrize("where", BOTH)
def test_a_grant_that_cannot_be_believed_is_refused(
    agents: Agents,
    namespace: str,
    where: str,
    tolerated: set[Kind],  # noqa: F811 (the fixture)
) -> None:
    tolerated |= {Kind.POD_ANNOTATION, Kind.GRANT_MAC}
    card = agents.nodes[where].card.uuid
    (honest,) = _start(agents, namespace, where, "honest")
    with _liar(agents, namespace, where, "forger") as forger:
        # A good code, but another pod's, and for more than anybody was given.
        mac = honest["metadata"]["annotations"][pod_annotations.MAC]
        grant = by_hand.granted(f"{card},NVIDIA,{20 * MEMORY},0:;", mac)
        assert pod_annotations.MAC in _refusal(agents.client, where, forger, grant)
    with _liar(agents, namespace, where, "mumbler") as mumbler:
        # Signed as it should be, but nobody can read it.
        devices = f"{card},NVIDIA,lots,0:;"
        (key, *_) = agents.release.grant_keys()
        uid = mumbler["metadata"]["uid"]
        mac = pod_annotations.mac_v3(key, uid=uid, node=where, devices=devices)
        words = _refusal(agents.client, where, mumbler, by_hand.granted(devices, mac))
        assert pod_annotations.ALLOCATED in words
        assert "lots" in words
    (after,) = _start(agents, namespace, where, "after")
    for pod in (honest, after):
        _require_share(agents, pod)


@contextlib.contextmanager
def _liar(agents: Agents, namespace: str, where: str, name: str) -> Iterator[Object]:
    """Give a pod that waits to be bound, and take it away at the end."""
    node = agents.nodes[where]
    body = workloads.pod(name, _container(node), node=node)
    made = by_hand.create(agents.client, namespace, body)
    try:
        yield made
    finally:
        gpu_pods.remove(agents.client, made)


def _refusal(client: Client, where: str, pod: Object, grant: Mapping[str, str]) -> str:
    """Bind a pod with a grant; give the warning that whoever describes the pod reads."""
    meta = pod["metadata"]
    if where == LOCK:
        _lock(client, where, pod)
    by_hand.bind(client, pod, where, grant)

    def warned() -> str | None:
        for event in workloads.events(client, meta["namespace"], meta["name"]):
            if event["type"] == "Warning" and event["reason"] != SCHEDULERS_REASON:
                return str(event["message"])
        return None

    words = wait_for("the refusal", warned, SOON_S)
    assert f"{meta['namespace']}/{meta['name']}" in words
    status = client.get(pods_path(meta["namespace"], meta["name"]))["status"]
    assert not any(each.get("containerID") for each in status.get("containerStatuses", []))
    return words


def _lock(client: Client, node: str, pod: Object) -> None:
    """Say whose turn it is, as the scheduler does."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    meta = pod["metadata"]
    value = f"{now},{meta['namespace']},{meta['name']}"
    body = {"metadata": {"annotations": {node_annotations.LOCK_PREFIX: value}}}
    client.patch(nodes_path(node), body)
