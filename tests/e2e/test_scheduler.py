"""`hami scheduler` beside kube-scheduler, newest and oldest."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hami.wire import annotation_keys, explanation_note, signature
from tests.e2e import pods
from tests.e2e.cluster import fleet, programs
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Scheduler
from tests.e2e.install import (
    audit,
    identity,
    installing,
    nodes,
    placing,
    replica,
    scheduler_config,
)
from tests.e2e.install.fixtures import _audited  # noqa: F401 (our grants are signed)
from tests.e2e.install.installing import Install
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group
from tests.kubeapi.paths import pods as pods_path

SIMULATED = 6
BOUND_S = 30
NOTE_S = 30
REAL = "node-1"

ASKS = (
    nodes.limits(1, memory=3000),
    nodes.limits(1, memory=3000, cores=30),
    nodes.limits(2, memory=1000),
    nodes.limits(1, percent=50),
    nodes.limits(1),  # a whole card's memory
    nodes.limits(2, percent=25, cores=10),
    nodes.limits(1, memory=5001),
    nodes.limits(1, memory=100, cores=100),
)


@pytest.fixture(scope="module")
def simulated(cluster: Cluster) -> Iterator[list[str]]:
    with nodes.simulated(cluster, SIMULATED, cards_each=2) as names:
        yield names


@pytest.fixture(scope="module", params=list(Scheduler), ids=str)
def install(
    request: pytest.FixtureRequest, cluster: Cluster, simulated: list[str]
) -> Iterator[Install]:
    with installing.running(cluster, scheduler=request.param) as install:
        yield install


def require_record(cluster: Cluster, bound: Object) -> None:
    """Check what the Binding wrote into the pod together with its node."""
    meta, node = bound["metadata"], bound["spec"]["nodeName"]
    written: dict[str, str] = meta["annotations"]
    assert written[annotation_keys.ASSIGNED_NODE] == node
    created = dt.datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    assert created <= int(written[annotation_keys.ASSIGNED_TIME]) <= time.time()
    assert written[annotation_keys.BIND_PHASE] == "allocating"
    devices = written[nodes.KEYS.allocated]
    assert written[nodes.KEYS.to_allocate] == devices
    current, _ = identity.keys(cluster)
    code = written[annotation_keys.GRANT_MAC]
    assert signature.verify(
        signature.GrantKeys(current), code, uid=meta["uid"], node=node, devices=devices
    )


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {
            annotation_keys.NODE_POLICY: "spread",
            annotation_keys.GPU_POLICY: "binpack",
        },
    ],
    ids=["policies of the scheduler", "policies of the pod"],
)
def test_pods_go_to_the_node_and_cards_that_the_core_names(
    client: Client, namespace: str, install: Install, simulated: list[str], wish: dict[str, str]
) -> None:
    for number, asked in enumerate(ASKS):
        body = placing.pod(f"pod-{number}", asked, metadata={"annotations": wish})
        wanted = placing.expected(client, body, simulated)
        pods.create(client, namespace, body)
        bound = placing.await_one_bound(client, namespace, f"pod-{number}", BOUND_S)
        assert placing.given(bound) == wanted
        require_record(install.cluster, bound)
    assert placing.overbooked(client) == []


def test_several_containers_have_a_slot_each(
    client: Client, namespace: str, install: Install, simulated: list[str]
) -> None:
    body = placing.pod("several", nodes.limits(1, memory=1000))
    spec = body["spec"]
    plain = {key: value for key, value in spec["containers"][0].items() if key != "resources"}
    spec["initContainers"] = [plain | {"name": "first"} | nodes.limits(1, memory=7000)]
    spec["containers"] += [
        plain | {"name": "plain"},
        plain | {"name": "last"} | nodes.limits(2, memory=500),
    ]
    wanted = placing.expected(client, body, simulated)
    pods.create(client, namespace, body)
    bound = placing.await_one_bound(client, namespace, "several", BOUND_S)
    assert placing.given(bound) == wanted
    assert [len(slot) for slot in wanted[1]] == [1, 1, 0, 2]


def test_one_id_leads_from_the_request_to_the_clusters_audit_log(
    cluster: Cluster, client: Client, namespace: str, install: Install, simulated: list[str]
) -> None:
    mark = audit.mark(cluster)
    pods.create(client, namespace, placing.pod("traced", nodes.limits(1, memory=100)))
    placing.await_one_bound(client, namespace, "traced", BOUND_S)
    (binding,) = wait_for("the audit log", lambda: mark.bindings(namespace), BOUND_S)

    def line() -> Object | None:
        told = map(json.loads, install.only.logs(replica.HAMI))
        named = f"{namespace}/traced"
        return next((e for e in told if (e["message"], e.get("pod")) == ("bound", named)), None)

    assert wait_for("the log line", line, BOUND_S)["id"] == binding.id


def test_a_pod_that_fits_nowhere_says_why(
    cluster: Cluster, client: Client, namespace: str, install: Install, simulated: list[str]
) -> None:
    pods.create(client, namespace, placing.pod("huge", nodes.limits(1, memory=80_000)))

    def said(key: str) -> Any:
        return lambda: (
            client.get(pods_path(namespace, "huge"))["metadata"].get("annotations", {}).get(key)
        )

    note = wait_for("the explanation", said(annotation_keys.EXPLANATION), NOTE_S)
    assert len(note.encode()) <= 1024
    assert "CardInsufficientMemory" in explanation_note.decode(note).summary
    scripts = pathlib.Path(sys.executable).parent
    for command in (["hami"], ["kubectl", "hami"]):
        told = subprocess.run(
            [*command, "explain", "huge", "-n", namespace],
            env={
                "PATH": f"{scripts}:{programs.search_path()}",
                "KUBECONFIG": str(cluster.layout.kubeconfig),
            },
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert "CardInsufficientMemory" in told

    def reasons() -> set[str] | None:
        found = client.get(core("events", namespace), fieldSelector="involvedObject.name=huge")
        said = {event["reason"] for event in found["items"]}
        return said if {"FailedScheduling", "FilteringFailed"} <= said else None

    wait_for("events of kube-scheduler and of ours", reasons, NOTE_S)
    assert "nodeName" not in client.get(pods_path(namespace, "huge"))["spec"]


@pytest.mark.parametrize("install", [Scheduler.NEWEST], indirect=True, ids=str)
def test_a_pod_runs_on_a_real_node(
    cluster: Cluster, client: Client, namespace: str, install: Install
) -> None:
    with nodes.real(cluster, REAL, 2):
        here = {"nodeSelector": {"kubernetes.io/hostname": REAL}, "tolerations": []}
        body = placing.pod("real", nodes.limits(2, memory=2000), **here)
        wanted = placing.expected(client, body, [REAL])
        pods.create(client, namespace, body)
        running = pods.await_phase(client, namespace, "real")
        assert placing.given(running) == wanted
        require_record(cluster, running)
        client.delete(pods_path(namespace))
        pods.await_gone(client, namespace)


def test_a_node_is_known_as_soon_as_it_says_what_it_has(
    client: Client, namespace: str, install: Install, simulated: list[str]
) -> None:
    """The pod waits until its node has a card; nobody else changes anything."""
    node = simulated[0]
    nodes.annotate(client, node, dict.fromkeys((nodes.KEYS.register, nodes.KEYS.binding)))
    here = {"nodeSelector": {"kubernetes.io/hostname": node, fleet.MARK: "true"}}
    try:
        pods.create(client, namespace, placing.pod("early", nodes.limits(1, memory=1000), **here))
        refused = f"spec.schedulerName={scheduler_config.NAME},spec.nodeName="
        wait_for(
            "the refusal",
            lambda: [
                condition
                for pod in client.get(pods_path(namespace), fieldSelector=refused)["items"]
                for condition in pod["status"].get("conditions", [])
                if condition["reason"] == "Unschedulable"
            ],
            BOUND_S,
        )
    finally:
        nodes.annotate(client, node, nodes.told(nodes.cards(node, 2)))
    placing.await_one_bound(client, namespace, "early", BOUND_S)


PRIORITY_CLASSES = "scheduling.k8s.io/v1"
URGENT = "hami-test-urgent"


@pytest.fixture
def urgent(client: Client) -> Iterator[str]:
    """Make a priority class above that of other pods."""
    path = group(PRIORITY_CLASSES, "priorityclasses")
    client.create(path, {"metadata": {"name": URGENT}, "value": 1000})
    yield URGENT
    client.delete(group(PRIORITY_CLASSES, "priorityclasses", None, URGENT))


def test_kube_scheduler_evicts_only_where_the_cards_fit_afterwards(
    client: Client, namespace: str, install: Install, simulated: list[str], urgent: str
) -> None:
    here = {"nodeSelector": {"kubernetes.io/hostname": simulated[0], fleet.MARK: "true"}}
    whole, cpu = nodes.limits(2), {"resources": {"requests": {"cpu": "40"}}}
    both = {"resources": {**whole["resources"], **cpu["resources"]}}
    pods.create(client, namespace, placing.pod("victim", cpu, **here))
    # As important as the pod that comes, so it is not evicted.
    pods.create(client, namespace, placing.pod("cards", whole, priorityClassName=urgent, **here))
    for name in ("victim", "cards"):
        placing.await_one_bound(client, namespace, name, BOUND_S)
    pods.create(client, namespace, placing.pod("urgent", both, priorityClassName=urgent, **here))

    def checked() -> list[int]:
        lines = map(json.loads, install.only.logs(replica.HAMI))
        ours = f"{namespace}/urgent"
        asked = [e for e in lines if (e["message"], e.get("pod")) == ("preemption checked", ours)]
        return [entry["kept"] for entry in asked]

    wait_for("kube-scheduler to ask about evictions", checked, BOUND_S)
    assert set(checked()) == {0}
    assert "deletionTimestamp" not in client.get(pods_path(namespace, "victim"))["metadata"]
    client.delete(pods_path(namespace, "cards"))
    placing.await_one_bound(client, namespace, "urgent", BOUND_S)
    assert checked()[-1] == 1
    assert client.find(pods_path(namespace, "victim")) is None
