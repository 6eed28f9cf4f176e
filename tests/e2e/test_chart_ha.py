"""Two replicas under 200 admissions a second; the leader is killed or ends.

failurePolicy is Fail, so that whoever is not answered hears of it, and nothing passes unchanged.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator

import pytest

from tests.e2e.chart import asking, striking
from tests.e2e.chart import release as releases
from tests.e2e.chart.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.chart.load import Load
from tests.e2e.chart.release import Release
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import nodes, placing
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

REPLICAS = 2
PER_SECOND = 200
MANY = 2 * PER_SECOND
ENOUGH = 10
AT_ONCE = 40
# Most ends of a replica go well by luck: a request must come just as it closes a connection.
DELETIONS = 3
# These catch hangs only.
ADMITTED_S = 60.0
AGAIN_S = 120.0
READY_S = 120.0


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with (
        releases.installed(
            cluster,
            f"scheduler.replicas={REPLICAS}",
            "scheduler.admissionWebhook.failurePolicy=Fail",
        ) as release,
        nodes.simulated(cluster, 2),
    ):
        yield release


def await_leader(release: Release) -> Object:
    """Wait until both replicas are ready and one of them leads; give that one."""

    def found() -> Object | None:
        leaders = [pod for pod in release.ready() if releases.role(pod) == "leader"]
        return leaders[0] if (len(leaders), len(release.ready())) == (1, REPLICAS) else None

    return wait_for("both replicas to be ready and one to lead", found, READY_S)


def await_answers_of(release: Release, pod: Object, namespace: str) -> None:
    """Wait until a replica has its part of the load.

    The API server keeps its connections, so a newer replica may have none. Where many are needed
    at once, new ones are opened, and go to either.
    """

    def count() -> float:
        name = "gpu_webhook_response_time_seconds_count"
        return release.metric(pod, name, result="changed")

    def try_one(number: int) -> Object:
        return asking.tried(release.client, namespace, asking.gpu_pod(f"at-once-{number}"))

    def answers() -> bool:
        if count() >= before + ENOUGH:
            return True
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(try_one, range(AT_ONCE)))
        return False

    before = count()
    wait_for(f"{pod['metadata']['name']} to answer", answers, READY_S, 0.5)


def require_placed(client: Client, namespace: str, name: str) -> None:
    """See that somebody schedules: a pod that is created now gets its node."""
    body = asking.for_simulated_nodes(name)

    def created() -> bool:
        try:
            asking.created(client, namespace, body)
        except ApiError as error:
            if not asking.could_not_ask(error):
                raise
            return False
        return True

    wait_for("the pod to be admitted", created, ADMITTED_S)
    placing.await_one_bound(client, namespace, name, AGAIN_S)


def await_gone(client: Client, path: str) -> None:
    wait_for(f"{path} to be gone", lambda: client.find(path) is None, READY_S)


def tell(load: Load) -> None:
    print(f"{len(load.answered)} admissions, {load.per_second:.0f} per second")  # noqa: T201 - measured, for the reader


def test_leaders_that_are_deleted_are_missed_by_nobody(
    client: Client, namespace: str, release: Release
) -> None:
    struck: list[str] = []
    with Load(client, namespace, per_second=PER_SECOND) as load:
        for _ in range(DELETIONS):
            leader = await_leader(release)
            await_answers_of(release, leader, namespace)
            name = leader["metadata"]["name"]
            client.delete(pods_path(release.namespace, name))
            require_placed(client, namespace, f"after-{name}")
            await_gone(client, pods_path(release.namespace, name))
            struck.append(name)
        load.await_more(MANY)
    tell(load)
    assert len(set(struck)) == DELETIONS
    assert load.held_up == []
    assert load.not_ours == []


def test_a_leader_that_is_killed_fails_only_what_it_was_asked_and_that_can_be_asked_again(
    client: Client, namespace: str, release: Release
) -> None:
    struck = await_leader(release)
    with Load(client, namespace, per_second=PER_SECOND) as load:
        await_answers_of(release, struck, namespace)
        killed_at = time.time()
        striking.kill_containers(release.cluster, struck)
        require_placed(client, namespace, "afterwards")
        await_leader(release)
        well_at = time.time()
        load.await_more(MANY)
    tell(load)
    assert load.not_ours == []
    for admission in load.held_up:
        for when, refusal in admission.unanswered:
            assert killed_at <= when <= well_at, refusal
    restarted = client.get(pods_path(release.namespace, struck["metadata"]["name"]))
    assert all(each["restartCount"] for each in restarted["status"]["containerStatuses"])
