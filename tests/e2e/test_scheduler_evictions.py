"""A real API server evicts marked pods for the leader, and no others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from hami.scheduler import eviction_requests
from hami.wire import annotation_keys, pod_marks
from hami.wire.pod_marks import Overuse, Refusal
from tests.e2e import pods
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import identity, installing
from tests.e2e.install.installing import Install
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group
from tests.kubeapi.paths import pods as pods_path

NODE = "node-1"
GRACE_S = 10
RENEWED_S = 2.0
#: They catch hangs.
DONE_S = 120
RBAC = f"{identity.RBAC}/v1"
ROLE = "test-hami-scheduler-evicts"
MIB = 2**20


@pytest.fixture(scope="module")
def install(cluster: Cluster) -> Iterator[Install]:
    flags = ("--overuse=evict", f"--overuse-grace={GRACE_S}s", "--evict-refused=true")
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.joined_network())
        client = stack.enter_context(cluster.client)
        _allow(client, stack)
        yield stack.enter_context(
            installing.running(cluster, product=(*installing.PRODUCT, *flags))
        )


def _allow(client: Client, stack: contextlib.ExitStack) -> None:
    """Give the scheduler the right that the chart gives it where it is to evict."""
    rule = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    account = {
        "kind": "ServiceAccount",
        "name": identity.ACCOUNT,
        "namespace": identity.NAMESPACE,
    }
    role = {"apiGroup": identity.RBAC, "kind": "ClusterRole", "name": ROLE}
    for resource, body in (
        ("clusterroles", {"rules": [rule]}),
        ("clusterrolebindings", {"roleRef": role, "subjects": [account]}),
    ):
        client.create(group(RBAC, resource), {"metadata": {"name": ROLE}, **body})
        stack.callback(client.delete, group(RBAC, resource, name=ROLE))


def _annotate(client: Client, pod: Object, key: str, value: str) -> None:
    meta = pod["metadata"]
    path = pods_path(meta["namespace"], meta["name"])
    if client.find(path) is not None:
        client.patch(path, {"metadata": {"annotations": {key: value}}})


def _overused_until(client: Client, done: Callable[[], object], *marked: Object) -> None:
    """Write the marks again and again, as monitors do, until something is so."""
    written = itertools.count()

    def write() -> object:
        for pod in marked:
            mark = Overuse(
                uid=pod["metadata"]["uid"],
                node=NODE,
                container="main",
                card="GPU-0",
                used=9000 * MIB,
                limit=4096 * MIB,
                since="at first",
                seen=f"time {next(written)}",
            )
            _annotate(client, pod, annotation_keys.OVERUSE, pod_marks.encode(mark))
        return done()

    wait_for("the leader", write, DONE_S, RENEWED_S)


def _messages(client: Client, namespace: str, reason: str) -> list[str]:
    found = client.get(core("events", namespace))["items"]
    return [event["message"] for event in found if event["reason"] == reason]


def test_a_pod_that_goes_on_with_too_much_is_evicted_but_not_against_its_budget(
    client: Client, namespace: str, install: Install
) -> None:
    labels = {"labels": {"app": "guarded"}}
    free, guarded, honest = pods.create(
        client,
        namespace,
        pods.pod("free", nodeName=NODE),
        pods.pod("guarded", nodeName=NODE, metadata=labels),
        pods.pod("honest", nodeName=NODE),
    )
    for pod in (free, guarded, honest):
        pods.await_phase(client, namespace, pod["metadata"]["name"])
    budgets = group("policy/v1", "poddisruptionbudgets", namespace)
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels["labels"]}}
    client.create(budgets, {"metadata": {"name": "one"}, "spec": budget})

    def blocked() -> bool:
        told = _messages(client, namespace, "GPUPodEvictionBlocked")
        return bool(told) and client.find(pods_path(namespace, "free")) is None

    _overused_until(client, blocked, free, guarded)
    (evicted,) = _messages(client, namespace, "GPUPodEvicted")
    assert "had 9000 MiB of card GPU-0 on node-1 in container main" in evicted
    assert "budget" in _messages(client, namespace, "GPUPodEvictionBlocked")[0]
    assert client.find(pods_path(namespace, "guarded")) is not None

    client.delete(f"{budgets}/one")
    _overused_until(client, lambda: client.find(pods_path(namespace, "guarded")) is None, guarded)
    assert (
        client.get(pods_path(namespace, "honest"))["metadata"]["uid"] == honest["metadata"]["uid"]
    )


def test_a_pod_that_was_deleted_with_years_to_end_has_minutes(
    client: Client, namespace: str, install: Install
) -> None:
    deaf = ("sh", "-c", "trap '' TERM; while true; do sleep 1; done")
    (endless,) = pods.create(
        client,
        namespace,
        pods.pod("endless", deaf, nodeName=NODE, terminationGracePeriodSeconds=10**8),
    )
    pods.await_phase(client, namespace, "endless")
    path = pods_path(namespace, "endless")
    try:
        client.delete(path)
        assert client.get(path)["metadata"]["deletionGracePeriodSeconds"] == 10**8

        def shortened() -> bool:
            left: int = client.get(path)["metadata"]["deletionGracePeriodSeconds"]
            return left <= eviction_requests.LONGEST_END_S

        _overused_until(client, shortened, endless)
    finally:
        client.delete(path, gracePeriodSeconds=0)


def test_a_refused_pod_is_evicted_and_one_that_runs_is_not(
    client: Client, namespace: str, install: Install
) -> None:
    (runs,) = pods.create(client, namespace, pods.pod("runs", nodeName=NODE))
    pods.await_phase(client, namespace, "runs")
    waits = {"container": {"image": "hami.test/there-is-no-such-image"}}
    (refused,) = pods.create(client, namespace, pods.pod("refused", nodeName=NODE, **waits))
    for pod in (runs, refused):
        mark = Refusal(uid=pod["metadata"]["uid"], node=NODE, reason="not signed", seen="now")
        _annotate(client, pod, annotation_keys.START_REFUSED, pod_marks.encode(mark))
    wait_for(
        "the refused pod to go",
        lambda: client.find(pods_path(namespace, "refused")) is None,
        DONE_S,
    )
    assert "deletionTimestamp" not in client.get(pods_path(namespace, "runs"))["metadata"]
