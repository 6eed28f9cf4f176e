"""No pod escapes an eviction for ever, and none is evicted for what is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami.scheduler import eviction_requests, evictions
from hami.wire import annotation_keys
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_evictions import (
    GRACE,
    Cluster,
    overuse,
    refusal,
    running,
)

REFUSED_AT = "2026-01-01T12:00:00+00:00"
BEFORE, AFTER = "2026-01-01T11:59:00Z", "2026-01-01T12:00:30Z"


async def unmark(cluster: Cluster, *names: str) -> None:
    for name in names:
        if cluster.api.find("pods", name) is not None:
            cluster.annotate(name, annotation_keys.OVERUSE, None)
    await cluster.seen()


def change(cluster: Cluster, name: str, **parts: dict[str, Any]) -> None:
    """Add to metadata, spec or status of a pod."""
    found = cluster.api.find("pods", name)
    assert found is not None
    for part, values in parts.items():
        found[part] |= values
    cluster.api.put(found)


async def test_dropping_below_the_limit_before_each_renewal_does_not_help(times: Times) -> None:
    """Too much for fifteen of every twenty seconds, so that no mark is ever renewed."""
    async with running(times, "p") as cluster:
        for _ in range(int(GRACE // 15) + 1):  # the first one proves nothing yet
            await cluster.mark("p", since=str(times.seconds))
            times.pass_by(15)
            await cluster.round()
            assert cluster.evicted() == []
            await unmark(cluster, "p")
            times.pass_by(5)
            await cluster.round()
        assert cluster.evicted() == []  # it is within its limit now
        await cluster.mark("p", since="again")
        await cluster.round()
        assert cluster.evicted() == ["p"]


async def test_a_mark_that_comes_back_as_it_was_is_no_renewal(times: Times) -> None:
    """As a restore of the pod's annotations, or a client with an old copy, would write it."""
    async with running(times, "p") as cluster:
        old = overuse("p")
        for _ in range(10):
            cluster.annotate("p", annotation_keys.OVERUSE, old)
            await cluster.seen()
            times.pass_by(15)
            await unmark(cluster, "p")
            times.pass_by(5)
        cluster.annotate("p", annotation_keys.OVERUSE, old)
        await cluster.seen()
        await cluster.round()
        assert cluster.evicted() == []


async def test_a_stale_mark_that_a_monitor_removes_counts_nothing(times: Times) -> None:
    """Its monitor had stopped; what the pod had meanwhile is not known."""
    async with running(times, "p", overuse_grace=evictions.FRESH_S + 20) as cluster:
        await cluster.mark("p")
        times.pass_by(10 * GRACE)
        await unmark(cluster, "p")
        await cluster.overused("p", seconds=20)
        await cluster.round()
        assert cluster.evicted() == []


@pytest.mark.parametrize(("own", "sent"), [(10**9, eviction_requests.LONGEST_END_S), (30, None)])
async def test_a_pod_has_a_bounded_time_to_end(times: Times, own: int, sent: int | None) -> None:
    async with running(times, "p") as cluster:
        change(cluster, "p", spec={"terminationGracePeriodSeconds": own})
        await cluster.overused("p")
        await cluster.round()
        (eviction,) = cluster.api.sent("POST", "/eviction")
        assert json.loads(eviction.body)["deleteOptions"].get("gracePeriodSeconds") == sent


@pytest.mark.parametrize(("left", "evicted"), [(10**9, ["p"]), (30, [])])
async def test_a_pod_that_its_owner_deleted_with_years_to_end_is_evicted_once(
    times: Times, left: int, evicted: list[str]
) -> None:
    async with running(times, "p") as cluster:
        deleted = {"deletionTimestamp": "2100-01-01T00:00:00Z", "deletionGracePeriodSeconds": left}
        change(cluster, "p", metadata=deleted | {"finalizers": ["example.com/slow"]})
        await cluster.overused("p")
        for _ in range(3):
            await cluster.round()
            times.pass_by(20)
            await cluster.mark("p")
        assert cluster.evicted() == evicted


def ran(state: str, at: str) -> dict[str, Any]:
    return {"name": "main", "state": {state: {"startedAt": at}}}


RESTARTED = {
    "name": "main",
    "state": {"waiting": {}},
    "lastState": ran("terminated", AFTER)["state"],
}


@pytest.mark.parametrize(
    ("status", "evicted"),
    [
        # It starts after all, and later one of its containers ends: the agent could not unmark it.
        ({"containerStatuses": [ran("running", AFTER), ran("terminated", AFTER)]}, []),
        ({"containerStatuses": [RESTARTED]}, []),
        (
            {
                "initContainerStatuses": [ran("running", AFTER)],
                "containerStatuses": [{"name": "main", "state": {"waiting": {}}}],
            },
            [],
        ),
        # Another container has run all the time.
        ({"containerStatuses": [ran("running", BEFORE), {"name": "b", "state": {}}]}, ["p"]),
        ({"containerStatuses": [ran("running", "no time"), {"name": "b", "state": {}}]}, ["p"]),
    ],
)
async def test_a_refused_pod_that_has_started_since_stays(
    times: Times, status: dict[str, Any], evicted: list[str]
) -> None:
    async with running(times, "p") as cluster:
        change(cluster, "p", status=status)
        cluster.annotate("p", annotation_keys.START_REFUSED, refusal("uid-p", REFUSED_AT))
        await cluster.seen()
        await cluster.round()
        assert cluster.evicted() == evicted
