"""What our node says of itself is true, and written no more often than it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from hami.agent import node_status
from hami.kube.client import Client
from hami.wire import node_marks, objects
from tests.scripted_api.server import Kind, Lost, ScriptedApi
from tests.unit.agent.reporting import (
    BINDING,
    LOCK,
    NODE,
    REASON,
    REGISTER,
    SCORES,
    change,
    desired,
    node,
    patches,
    reporting,
    says,
    stored,
)
from tests.unit.kube.following import until


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as running:
        running.put(node())
        yield running


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[Client]:
    async with Client(api.access(), user_agent="hami-tests", timeout=30) as made:
        yield made


async def test_register_scores_and_mark_come_in_one_patch(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", scores="[2]", late=True)
        await until(lambda: report.fulfilled)
    wanted = {REGISTER: "[1]", SCORES: "[2]", BINDING: node_marks.late_binding_mark("[1]")}
    assert patches(api) == [{"metadata": {"annotations": wanted}}]
    assert says(api) == wanted
    assert api.sent("PATCH")[0].headers["Content-Type"] == "application/merge-patch+json"


async def test_only_our_node_is_watched(api: ScriptedApi, client: Client) -> None:
    api.put({"kind": "Node", "metadata": {"name": "gpu-2", "annotations": {LOCK: "x"}}})
    async with reporting(client) as report:
        assert report.lock() == ""
        found = report.node()
        assert found is not None
        assert found.name == NODE
    assert {r.query.get("fieldSelector") for r in api.sent("GET")} == {f"metadata.name={NODE}"}


async def test_nothing_is_written_before_somebody_says_what(
    api: ScriptedApi, client: Client
) -> None:
    change(api, **{REGISTER: "[old]"})
    async with reporting(client) as report:
        change(api, **{LOCK: "x"})
        await until(lambda: report.lock() == "x")
        assert not report.fulfilled
    assert api.sent("PATCH") == []


async def test_nothing_is_written_where_nothing_differs(api: ScriptedApi, client: Client) -> None:
    change(api, **{REGISTER: "[1]", BINDING: node_marks.late_binding_mark("[1]")})
    async with reporting(client) as report:
        desired(report, "[1]", late=True)
        await until(lambda: report.fulfilled)
        desired(report, "[1]", late=True)
        change(api, **{LOCK: "x", "somebody": "else's"})
        await until(lambda: report.lock() == "x")
    assert api.sent("PATCH") == []


async def test_only_what_differs_is_written(api: ScriptedApi, client: Client) -> None:
    change(api, **{REGISTER: "[1]", SCORES: "[2]"})
    async with reporting(client) as report:
        desired(report, "[1]", scores="[3]")
        await until(lambda: report.fulfilled)
    assert patches(api) == [{"metadata": {"annotations": {SCORES: "[3]"}}}]


async def test_in_lock_mode_the_reason_stands_in_place_of_the_mark(
    api: ScriptedApi, client: Client
) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", late=True)
        await until(lambda: report.fulfilled)
        desired(report, "[1]", late=False, lock_reason="kubelet v1.28 is older than v1.29")
        await until(lambda: report.fulfilled)
        assert says(api) == {REGISTER: "[1]", REASON: "kubelet v1.28 is older than v1.29"}
        desired(report, "[1]", late=True, lock_reason="of no interest")
        await until(lambda: report.fulfilled)
    assert says(api) == {REGISTER: "[1]", BINDING: node_marks.late_binding_mark("[1]")}
    assert len(patches(api)) == 3


async def test_without_cards_nothing_of_them_stays(api: ScriptedApi, client: Client) -> None:
    """The driver is gone since the last agent of this node ran."""
    change(
        api,
        **{
            REGISTER: "[1]",
            SCORES: "[2]",
            BINDING: node_marks.late_binding_mark("[1]"),
            REASON: "?",
        },
    )
    async with reporting(client) as report:
        desired(report, None, scores="[2]", late=True, lock_reason="no matter")
        await until(lambda: report.fulfilled)
    assert says(api) == {}
    assert patches(api) == [
        {"metadata": {"annotations": dict.fromkeys([REGISTER, SCORES, BINDING, REASON])}}
    ]


async def test_a_node_that_comes_later_is_served(api: ScriptedApi, client: Client) -> None:
    api.remove("nodes", NODE)
    async with reporting(client) as report:
        desired(report, "[1]")
        assert report.node() is None
        assert (report.lock(), report.kubelet_version()) == ("", "")
        api.put(node())
        await until(lambda: report.fulfilled)
        # Made anew, for example because kubelet registered again.
        api.remove("nodes", NODE)
        await until(lambda: report.node() is None)
        api.put(node())
        await until(lambda: says(api) == {REGISTER: "[1]"})


async def test_what_somebody_else_changes_is_put_right(
    api: ScriptedApi, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", late=True)
        await until(lambda: report.fulfilled)
        change(api, **{REGISTER: "[HAMi's]", BINDING: None, LOCK: "x"})
        await until(lambda: len(patches(api)) == 2)
        await until(lambda: says(api)[REGISTER] == "[1]")
    assert says(api) == {REGISTER: "[1]", BINDING: node_marks.late_binding_mark("[1]"), LOCK: "x"}
    (told,) = [r for r in caplog.records if "another writer" in r.getMessage()]
    assert set(told.__dict__["keys"]) == {REGISTER, BINDING}


async def test_a_quarrel_slows_down_but_our_own_news_do_not_wait(
    api: ScriptedApi, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def waits() -> list[float]:
        return [r.__dict__["wait"] for r in caplog.records if "another writer" in r.getMessage()]

    async with reporting(client, random=lambda: 1000.0) as report:
        desired(report, "[1]")
        await until(lambda: report.fulfilled)
        change(api, **{REGISTER: "[HAMi's]"})
        await until(lambda: says(api)[REGISTER] == "[1]")
        await until(lambda: waits() == [0.0])  # the first time at once
        seen = stored(api)["metadata"]["resourceVersion"]
        await until(lambda: _version(report.node()) == seen)
        change(api, **{REGISTER: "[HAMi's]"})
        await until(lambda: len(waits()) == 2)
        assert waits()[1] > 0
        desired(report, "[1]")  # no news
        await report.read()
        await report.read()
        desired(report, "[2]")
        await until(lambda: says(api)[REGISTER] == "[2]")
    assert len(patches(api)) == 3


def _version(found: objects.Node | None) -> str | None:
    return found.metadata.resource_version if found and found.metadata else None


async def test_a_write_is_not_repeated_while_the_watch_is_behind(
    api: ScriptedApi, client: Client
) -> None:
    api.stream_fault(Kind.DELAY, at=1, seconds=0.3)
    async with reporting(client) as report:
        desired(report, "[1]")
        await until(lambda: patches(api))
        desired(report, "[2]")
        await until(lambda: report.fulfilled)
    written = [patch["metadata"]["annotations"] for patch in patches(api)]
    assert written == [{REGISTER: "[1]"}, {REGISTER: "[2]"}]


async def test_a_write_that_the_watch_swallows_is_found_by_comparing(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_status, "_SEEN_S", 0.01)
    api.bookmarks = False
    api.stream_fault(Kind.DROP, at=1)
    async with reporting(client) as report:
        desired(report, "[1]")
        await until(lambda: report.fulfilled)
    assert patches(api) == [{"metadata": {"annotations": {REGISTER: "[1]"}}}]


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 429, "retry_after": 0},
        {"status": 409, "reason": "Conflict"},
        {"status": 403, "reason": "Forbidden"},
        {"status": 404, "reason": "NotFound"},
        {"lost": Lost.BEFORE},
        {"lost": Lost.AFTER},
    ],
    ids=str,
)
async def test_a_write_that_fails_is_tried_again(
    api: ScriptedApi, client: Client, fault: dict[str, object]
) -> None:
    scripted = api.fault(method="PATCH", times=3, **fault)
    async with reporting(client) as report:
        desired(report, "[1]", late=True)
        await until(lambda: report.fulfilled)
    assert scripted.hits > 0
    assert says(api) == {REGISTER: "[1]", BINDING: node_marks.late_binding_mark("[1]")}


async def test_watches_that_end_lose_nothing(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        desired(report, "[1]")
        await until(lambda: report.fulfilled)
        api.close_watches()
        change(api, **{REGISTER: "[HAMi's]"})
        await until(lambda: says(api)[REGISTER] == "[1]")


# What others say.


async def test_lock_and_kubelet_are_known_and_changes_are_told(
    api: ScriptedApi, client: Client
) -> None:
    info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4"}
    found = stored(api)
    found["status"]["nodeInfo"] = info
    api.put(found)
    heard: list[str] = []
    async with reporting(client) as report:
        assert report.kubelet_version() == "v1.36.3"
        known = report.node()
        assert known is not None
        assert known.runtime_version == "containerd://2.1.4"
        leave = report.subscribe(lambda _old, _new: heard.append(report.lock()))
        change(api, **{LOCK: "2025-10-20T03:07:02Z,team-a,train-0"})
        await until(lambda: heard)
        leave()
        change(api, **{LOCK: None})
        await until(lambda: not report.lock())
    assert heard == ["2025-10-20T03:07:02Z,team-a,train-0"]


async def test_the_node_can_be_read_past_the_watch(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        api.stream_fault(Kind.DELAY, at=1, seconds=5)
        change(api, **{LOCK: "x"})
        assert (await report.read()).annotation(LOCK) == "x"


async def test_a_warning_is_an_event_on_the_node(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        report.warn("AsymmetricGPUP2PLink", "GPU 0 sees GPU 1, not the other way round")
        await until(lambda: api.objects("events"))
    (event,) = api.objects("events")
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": NODE,
        "uid": stored(api)["metadata"]["uid"],
    }
    assert (event["type"], event["reason"]) == ("Warning", "AsymmetricGPUP2PLink")


# The end.


async def test_at_the_end_the_mark_goes_and_the_rest_stays(
    api: ScriptedApi, client: Client
) -> None:
    async with reporting(client) as report:
        desired(report, "[1]", scores="[2]", late=True)
        await until(lambda: report.fulfilled)
        await report.withdraw()
        assert says(api) == {REGISTER: "[1]", SCORES: "[2]"}
        # Whatever happens while the process ends: the mark does not come back.
        await until(lambda: report.fulfilled)
        change(api, **{LOCK: "x"})
        await until(lambda: report.lock() == "x")
        change(api, **{LOCK: None})
        await until(lambda: report.lock() == "")
        assert len(patches(api)) == 2
        desired(report, "[3]", late=True)
        await until(lambda: report.fulfilled)
    assert says(api) == {REGISTER: "[3]"}


async def test_a_write_under_way_does_not_bring_the_mark_back(
    api: ScriptedApi, client: Client
) -> None:
    gate = asyncio.Event()
    held = api.fault(method="PATCH", gate=gate)
    async with reporting(client) as report:
        desired(report, "[1]", late=True)
        await until(lambda: held.hits)
        ending = asyncio.create_task(report.withdraw())
        await asyncio.sleep(0)
        gate.set()
        await ending
        assert says(api) == {REGISTER: "[1]"}


async def test_nothing_is_withdrawn_where_no_mark_was(api: ScriptedApi, client: Client) -> None:
    async with reporting(client) as report:
        desired(report, "[1]")
        await until(lambda: report.fulfilled)
        await report.withdraw()
    assert len(patches(api)) == 1


async def test_withdrawing_is_tried_again(api: ScriptedApi, client: Client) -> None:
    change(api, **{BINDING: "late,0000000000000000"})
    api.fault(method="PATCH", status=503, times=3)
    async with reporting(client) as report:
        await report.withdraw()
    assert says(api) == {}


async def test_a_mark_that_cannot_be_withdrawn_is_told(
    api: ScriptedApi, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    change(api, **{BINDING: "late,0000000000000000"})
    api.fault(method="PATCH", status=403, reason="Forbidden", times=None)
    async with reporting(client) as report:
        await report.withdraw()
    (told,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "cannot remove the mark of late binding" in told.getMessage()
    assert "Forbidden" in told.__dict__["error"]
