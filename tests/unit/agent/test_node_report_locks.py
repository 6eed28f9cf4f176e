"""HAMi's node lock is given back by the pod that it names, and by no other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hami.agent import pod_status
from hami.kube.client import Client
from tests.scripted_api.server import Lost, ScriptedApi
from tests.unit.agent.reporting import LOCK, NODE, change, node, patches, reporting, says
from tests.unit.kube.following import quick

OURS = "2025-10-20T03:07:02Z,team-a,train-0"


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as running:
        running.put(node(**{LOCK: OURS}))
        yield running


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[Client]:
    async with Client(api.access(), user_agent="hami-tests", timeout=30) as made:
        yield made


async def release(client: Client) -> bool:
    return await pod_status.release_lock(
        client, NODE, namespace="team-a", name="train-0", uid="u-0", sleep=quick
    )


async def test_the_lock_goes_and_the_patch_names_what_was_read(
    api: ScriptedApi, client: Client
) -> None:
    found = api.find("nodes", NODE)
    assert found is not None
    assert await release(client)
    assert says(api) == {}
    assert patches(api) == [
        {
            "metadata": {
                "annotations": {LOCK: None},
                "resourceVersion": found["metadata"]["resourceVersion"],
            }
        }
    ]


async def test_the_report_gives_it_back(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        assert report.lock() == OURS
        assert await release(client)
    assert says(api) == {}


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        (f"u-1,{OURS}", True),
        (f"u-0,{OURS}", False),
        ("u-1,2025-10-20T03:00:00Z,team-a,train-0", False),
        ("nonsense", False),
    ],
)
async def test_the_lock_of_a_later_pod_of_the_same_name_stays(
    api: ScriptedApi, client: Client, owner: str, *, stays: bool
) -> None:
    change(api, **{"hami.io/lock-owner": owner})
    assert await release(client)
    assert (LOCK in says(api)) is stays


@pytest.mark.parametrize(
    "lock",
    [
        "2025-10-20T03:07:02Z,team-a,train-1",
        "2025-10-20T03:07:02Z,team-b,train-0",
        "2025-10-20T03:07:02Z,team-a,x-train-0",
        "2025-10-20T03:07:02Z",
        "no lock,team-a,train-0",
        None,
    ],
)
async def test_what_does_not_name_the_pod_stays(
    api: ScriptedApi, client: Client, lock: str | None
) -> None:
    change(api, **{LOCK: lock})
    assert await release(client)
    assert says(api).get(LOCK) == lock
    assert patches(api) == []


async def test_a_lock_that_changes_hands_meanwhile_stays(api: ScriptedApi, client: Client) -> None:
    other = "2025-10-20T03:07:09Z,team-b,train-9"
    api.fault(method="PATCH", on_hit=lambda: change(api, **{LOCK: other}))
    assert await release(client)
    assert says(api) == {LOCK: other}


async def test_a_node_that_changes_meanwhile_is_read_again(
    api: ScriptedApi, client: Client
) -> None:
    api.fault(method="PATCH", on_hit=lambda: change(api, its="own", more="news"))
    assert await release(client)
    assert says(api) == {"more": "news"}
    assert len(patches(api)) == 2


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"lost": Lost.BEFORE},
        {"lost": Lost.AFTER},
        {"method": "GET", "status": 503, "retry_after": 0},
    ],
    ids=str,
)
async def test_a_failure_is_tried_again(
    api: ScriptedApi, client: Client, fault: dict[str, object]
) -> None:
    scripted = api.fault(**{"method": "PATCH", "times": 3, **fault})
    assert await release(client)
    assert scripted.hits > 0
    assert says(api) == {}


async def test_no_node_has_no_lock(api: ScriptedApi, client: Client) -> None:
    api.remove("nodes", NODE)
    assert await release(client)


@pytest.mark.parametrize(("status", "hits"), [(403, 1), (500, pod_status._RELEASE_ATTEMPTS)])
async def test_a_lock_that_cannot_be_released_is_logged(
    api: ScriptedApi,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    status: int,
    hits: int,
) -> None:
    fault = api.fault(method="PATCH", status=status, times=None)
    assert not await release(client)
    assert fault.hits == hits
    assert says(api) == {LOCK: OURS}
    (logged,) = caplog.records
    assert (logged.__dict__["namespace"], logged.__dict__["pod"]) == ("team-a", "train-0")
    assert str(status) in logged.__dict__["error"]
