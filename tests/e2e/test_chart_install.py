"""`helm install` with Helm 4 on the real cluster: ordinary pods are placed.

One release with two replicas serves all tests. The cards are on a real node, behind the bare
plugin. What takes all replicas away brings them back; the last tests have it upgraded.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.auditor import pod_annotations
from tests.e2e.chart import asking
from tests.e2e.chart import release as releases
from tests.e2e.chart.asking import SOMEBODY, gpu_pod
from tests.e2e.chart.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.chart.load import Load
from tests.e2e.chart.release import Release
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machines import MachineError
from tests.e2e.install import installing, nodes
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group, namespaces
from tests.kubeapi.paths import pods as pods_path

REPLICAS = 2
VALUES = (f"scheduler.replicas={REPLICAS}",)
FAIL = "scheduler.admissionWebhook.failurePolicy=Fail"
GPU_NODE = "node-1"
IGNORED = {"hami.io/webhook": "ignore"}
SOON_S = 30
READY_S = 60
#: Long, so it comes early in a run of two workers.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with releases.installed(cluster, *VALUES) as installed:
        yield installed


@pytest.fixture
def cards(cluster: Cluster, release: Release) -> Iterator[None]:
    del release  # it must know the node before anybody asks
    with nodes.real(cluster, GPU_NODE, 1):
        yield


def test_both_replicas_are_ready_on_a_node_each_and_one_leads(release: Release) -> None:
    def roles() -> list[str]:
        return sorted(map(releases.role, release.pods()))

    wait_for("a leader and a follower", lambda: roles() == ["follower", "leader"], SOON_S)
    found = release.pods()
    assert len({pod["spec"]["nodeName"] for pod in found}) == REPLICAS
    for pod in found:
        states = {each["name"]: each["ready"] for each in pod["status"]["containerStatuses"]}
        assert states == {"kube-scheduler": True, "vgpu-scheduler-extender": True}


def test_the_api_server_trusts_the_authority_of_the_webhooks_certificate(release: Release) -> None:
    (webhook,) = release.webhook_configuration()["webhooks"]
    assert webhook["name"] == asking.WEBHOOK
    trusted = base64.b64decode(webhook["clientConfig"]["caBundle"])
    assert trusted == release.secret("scheduler-tls")["ca.crt"]


def test_an_ordinary_pod_with_a_gpu_is_placed_and_runs_and_so_does_its_copy(
    cluster: Cluster, client: Client, namespace: str, release: Release, cards: None
) -> None:
    (made,) = pods.create(client, namespace, gpu_pod("ordinary"))
    assert asking.is_ours(made)
    first = pods.await_phase(client, namespace, "ordinary")
    require_grant(first, release)
    cluster.kubectl(
        *("-n", namespace, "debug", "ordinary", "--copy-to=copied", "--same-node"),
        *("--profile=general", "--keep-annotations", "--keep-labels"),
        f"--set-image=*={first['spec']['containers'][0]['image']}",
    )
    copied = pods.await_phase(client, namespace, "copied")
    require_grant(copied, release)
    mac = annotation_keys.GRANT_MAC
    assert copied["metadata"]["annotations"][mac] != first["metadata"]["annotations"][mac]
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)


def require_grant(running: Object, release: Release) -> None:
    """Require that a pod has a grant of its own for the card of its node."""
    meta, node = running["metadata"], running["spec"]["nodeName"]
    assert node == GPU_NODE
    written = meta["annotations"]
    assert written[annotation_keys.ASSIGNED_NODE] == node
    devices = written[nodes.KEYS.allocated]
    assert f"GPU-{GPU_NODE}-0" in devices
    key = release.secret("grant-signing-key")["signing-current"]
    expected = pod_annotations.mac_v3(key, uid=meta["uid"], node=node, devices=devices)
    assert written[annotation_keys.GRANT_MAC] == expected


@pytest.mark.usefixtures("release")
def test_pods_without_gpus_stay_as_they_are(client: Client, namespace: str) -> None:
    assert not asking.is_ours(asking.tried(client, namespace, pods.pod("plain")))


@pytest.mark.usefixtures("release")
def test_a_label_on_the_pod_or_on_its_namespace_keeps_admission_away(
    client: Client, namespace: str
) -> None:
    assert asking.is_ours(asking.tried(client, namespace, gpu_pod("taken")))
    left_alone = gpu_pod("left-alone", metadata={"labels": IGNORED})
    assert not asking.is_ours(asking.tried(client, namespace, left_alone))
    client.patch(namespaces(namespace), {"metadata": {"labels": IGNORED}})

    def ignored() -> bool:
        # The API server reads namespaces from a cache of its own.
        return not asking.is_ours(asking.tried(client, namespace, gpu_pod("taken")))

    wait_for("the namespace's label to count", ignored, SOON_S)


@pytest.mark.usefixtures("release")
def test_a_copied_grant_is_removed_and_refused_without_the_webhook(
    client: Client, namespace: str
) -> None:
    grant = {annotation_keys.ASSIGNED_NODE: GPU_NODE}
    metadata = {"annotations": {"own": "1", **grant}, "labels": grant}
    body = gpu_pod("copy", metadata=metadata, nodeName=GPU_NODE)
    for headers in ({}, SOMEBODY):
        made = asking.tried(client, namespace, body, headers)
        assert asking.is_ours(made)
        assert made["metadata"]["annotations"] == {"own": "1"}
        assert annotation_keys.ASSIGNED_NODE not in made["metadata"].get("labels", {})
        assert "nodeName" not in made["spec"]
    body["metadata"]["labels"] = IGNORED
    error = asking.refused(client, namespace, body, SOMEBODY)
    assert "hami-pod-annotations" in error.message
    assert annotation_keys.ASSIGNED_NODE in error.message


@pytest.mark.usefixtures("release")
def test_what_the_quota_refuses_is_told_to_kubectl(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    hard = {f"limits.{nodes.MEMORY}": "1500"}
    quota = {"metadata": {"name": "cards"}, "spec": {"hard": hard}}
    client.create(core("resourcequotas", namespace), quota)
    body = yaml.safe_dump(gpu_pod("greedy", nodes.limits(1, memory=2000)))

    def words() -> str | None:
        try:
            cluster.kubectl("-n", namespace, "create", "--dry-run=server", "-f", "-", stdin=body)
        except MachineError as error:
            return str(error)
        return None

    told = wait_for("the quota to count", words, SOON_S)
    assert "exceeding resource quota" in told
    assert f"2000 MiB ({nodes.MEMORY}) where 1500 MiB are left" in told
    assert asking.is_ours(asking.tried(client, namespace, gpu_pod("modest")))


@contextlib.contextmanager
def nobody_answers(client: Client, release: Release) -> Iterator[None]:
    """Take all replicas away, as an accident would, and bring them back."""

    def endpoints() -> list[Object]:
        selector = f"kubernetes.io/service-name={release.fullname}-webhook"
        slices = group("discovery.k8s.io/v1", "endpointslices", release.namespace)
        found = client.get(slices, labelSelector=selector)["items"]
        return [end for each in found for end in each.get("endpoints") or ()]

    _scale(client, release, 0)
    wait_for("all replicas to be gone", lambda: not endpoints(), READY_S)
    # kube-proxy on the API server's machine learns it a moment later.
    wait_for("nobody to answer", lambda: not asking.answered(client), SOON_S)
    try:
        yield
    finally:
        _scale(client, release, REPLICAS)
        wait_for("somebody to answer", lambda: asking.answered(client), READY_S)
        wait_for("all replicas", lambda: len(release.ready()) == REPLICAS, READY_S)


def _scale(client: Client, release: Release, replicas: int) -> None:
    path = group("apps/v1", "deployments", release.namespace, f"{release.fullname}-scheduler")
    client.patch(path, {"spec": {"replicas": replicas}})


def _asked(client: Client) -> float:
    """Count how often the API server asked the webhook, whether it was answered or not."""
    text = client.request("GET", "/metrics", accept="text/plain").body.decode()
    return installing._sum(
        text, "apiserver_admission_webhook_request_total", {"name": asking.WEBHOOK}
    )


def test_with_ignore_a_silent_webhook_lets_gpu_pods_pass_and_is_not_asked_for_others(
    client: Client, namespace: str, release: Release
) -> None:
    with nobody_answers(client, release):
        before = _asked(client)
        assert not asking.is_ours(asking.tried(client, namespace, pods.pod("plain")))
        assert _asked(client) == before
        assert not asking.is_ours(asking.tried(client, namespace, gpu_pod("passes")))
        assert _asked(client) == before + 1


@dataclasses.dataclass(frozen=True)
class Upgraded:
    """A release whose webhook fails now, and what was seen on the way."""

    before: Kept
    after: Kept
    load: Load


class Kept(NamedTuple):
    """What an upgrade must not touch if nothing of it changes."""

    restarts: dict[str, list[int]]
    """By the pods' uids."""
    certificate: dict[str, bytes]
    grant_key: dict[str, bytes]
    trusted: str


def kept(release: Release) -> Kept:
    (webhook,) = release.webhook_configuration()["webhooks"]
    return Kept(
        {
            pod["metadata"]["uid"]: [c["restartCount"] for c in pod["status"]["containerStatuses"]]
            for pod in release.pods()
        },
        release.secret("scheduler-tls"),
        release.secret("grant-signing-key"),
        webhook["clientConfig"]["caBundle"],
    )


@pytest.fixture(scope="module")
def upgraded(release: Release) -> Upgraded:
    """Upgrade the release for good: the tests from here on have failurePolicy Fail."""
    before = kept(release)
    with Load(release.client, "default", per_second=20) as load:
        release.upgrade(*VALUES, FAIL)
    return Upgraded(before, kept(release), load)


def test_an_upgrade_of_the_policy_keeps_certificate_pods_and_service(
    release: Release, upgraded: Upgraded
) -> None:
    (webhook,) = release.webhook_configuration()["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert upgraded.after == upgraded.before
    assert upgraded.load.answered
    assert upgraded.load.held_up == []
    assert upgraded.load.not_ours == []


@pytest.mark.usefixtures("upgraded")
def test_with_fail_a_silent_webhook_holds_up_gpu_pods_and_no_others(
    client: Client, namespace: str, release: Release
) -> None:
    with nobody_answers(client, release):
        asking.tried(client, namespace, pods.pod("plain"))
        assert asking.could_not_ask(asking.refused(client, namespace, gpu_pod("held-up")))
