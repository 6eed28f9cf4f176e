"""An informer follows the server: lists, changes, every end of a watch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.wire import objects
from hami.wire.errors import WireError
from tests.scripted_api.server import Kind, Lost, Recorded, ScriptedApi
from tests.unit.kube.following import PATIENCE_S, encoded, following, pod, read, truth, until


@pytest.fixture(autouse=True)
def _no_waiting_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami.kube.informer._CATCH_UP", 0.1)


def watch_lists(api: ScriptedApi) -> list[Recorded]:
    return [r for r in api.requests if "sendInitialEvents" in r.query]


def lists(api: ScriptedApi) -> list[Recorded]:
    return [r for r in api.requests if not r.watches]


def resumed(api: ScriptedApi) -> list[str]:
    return [
        r.query["resourceVersion"]
        for r in api.requests
        if r.watches and "sendInitialEvents" not in r.query
    ]


async def test_the_first_list_comes_through_one_watch_which_then_goes_on(
    api: ScriptedApi, client: Client
) -> None:
    api.put(pod("a"))
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == {"a"}
        api.put(pod("b"))
        api.remove("pods", "a")
        await until(lambda: held.names == {"b"})
        assert (informer.stats.watch_lists, informer.stats.lists) == (1, 0)
    (request,) = api.requests
    assert request.query["resourceVersionMatch"] == "NotOlderThan"
    assert request.query["allowWatchBookmarks"] == "true"


async def test_a_list_of_nothing_is_a_list(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.calls == []
        assert len(informer) == 0


@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "event"])
async def test_a_server_without_watch_lists_is_listed_in_pages_and_not_asked_again(
    api: ScriptedApi,
    client: Client,
    in_stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 2)
    for name in "abcde":
        api.put(pod(name))
    api.refuse_watch_list(in_stream=in_stream)
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == set("abcde")
        version = informer.version
        assert len(lists(api)) == 3
        await until(lambda: resumed(api) == [str(version)])
        api.compact()
        api.put(pod("f"))
        api.stream_fault(Kind.ERROR, at=1)
        api.put(pod("g"))
        await until(lambda: informer.stats.lists == 2)
        await until(lambda: held.names == set("abcdefg"))
    assert len(watch_lists(api)) == 1


async def test_a_watch_list_is_tried_again_after_ten_minutes(
    api: ScriptedApi, client: Client
) -> None:
    now = 1000.0
    api.refuse_watch_list(times=1)
    async with following(client, clock=lambda: now) as (informer, _):
        await informer.wait_synced()
        for minutes, expected in ((5, 1), (11, 2)):
            now = 1000.0 + 60 * minutes
            api.stream_fault(Kind.ERROR, path="pods")
            before = informer.stats.lists + informer.stats.watch_lists
            api.put(pod(f"p{minutes}"))
            await until(
                lambda before=before: (  # type: ignore[misc] # bound to this round
                    informer.stats.lists + informer.stats.watch_lists > before
                )
            )
            await until(lambda: api.watching == 1)
            assert len(watch_lists(api)) == expected


@pytest.mark.parametrize("fault", [Kind.CUT, Kind.CUT_CLEANLY, Kind.CLOSE, Kind.ERROR])
async def test_half_a_watch_list_removes_nothing_and_is_replaced_by_a_list(
    api: ScriptedApi, client: Client, fault: Kind
) -> None:
    known = encoded(api.put(pod("known")))
    for name in "abc":
        api.put(pod(name))
    api.stream_fault(fault, at=2)
    gate = asyncio.Event()
    api.fault(when=lambda r: not r.watches, gate=gate)
    async with following(client, offered=[known]) as (informer, held):
        await until(lambda: lists(api))
        assert not informer.synced
        assert "known" in held.names
        assert ("delete", "known") not in held.calls
        gate.set()
        await informer.wait_synced()
        assert held.versions == truth(api)


async def test_an_object_deleted_or_changed_while_the_watch_list_is_sent_is_seen_so(
    api: ScriptedApi, client: Client
) -> None:
    body = api.put(pod("a"))
    api.remove("pods", "a")
    mark = {
        "metadata": {
            "resourceVersion": str(api.store.version),
            "annotations": {"k8s.io/initial-events-end": "true"},
        }
    }
    lines = [
        {"type": "ADDED", "object": body},
        {"type": "DELETED", "object": body},
        {"type": "BOOKMARK", "object": mark},
    ]
    api.fault(when=lambda r: "sendInitialEvents" in r.query, lines=lines)
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == set()
        assert informer.stats.lists == 0


async def test_objects_that_are_not_wanted_are_not_kept_and_leave_when_they_change(
    api: ScriptedApi, client: Client
) -> None:
    api.put(pod("other", wanted=False))
    api.put(pod("a"))
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == {"a"}
        api.put(pod("a", wanted=False))
        await until(lambda: held.names == set())
        api.put(pod("a"))
        await until(lambda: held.names == {"a"})
        assert informer.stats.ignored == 2


async def test_an_object_that_does_not_decode_keeps_its_state_and_stops_nothing(
    api: ScriptedApi, client: Client
) -> None:
    spoiled = True

    def picky(body: bytes) -> Any:
        if spoiled and b'"poison"' in body:
            raise WireError("pod", body, "is poisoned")
        return read(body)

    api.put(pod("a"))
    async with following(client, read=picky) as (informer, held):
        await informer.wait_synced()
        before = held.versions
        api.put({**pod("a"), "poison": "poison"})
        api.put(pod("b"))
        await until(lambda: "b" in held.names)
        assert {uid: held.versions[uid] for uid in before} == before
        assert informer.stats.undecodable == 1
        informer.resync()
        await until(lambda: informer.stats.undecodable == 2)
        assert held.names == {"a", "b"}
        spoiled = False
        informer.resync()
        await until(lambda: held.versions == truth(api))


@pytest.mark.parametrize(
    "fault", [Kind.CUT, Kind.CUT_CLEANLY, Kind.CLOSE], ids=lambda kind: str(kind.name)
)
async def test_a_watch_that_breaks_goes_on_where_it_was(
    api: ScriptedApi, client: Client, fault: Kind
) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.stream_fault(fault, at=1)
        api.put(pod("a"))
        await until(lambda: held.names == {"a"})
        version = informer.version
        api.put(pod("b"))
        await until(lambda: held.names == {"a", "b"})
        assert informer.stats.lists == 0
    assert resumed(api)[0] == str(version)


@pytest.mark.parametrize("code", [410, 500])
async def test_of_the_errors_in_a_stream_only_an_expired_version_needs_a_list(
    api: ScriptedApi, client: Client, code: int
) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.stream_fault(Kind.ERROR, at=0, code=code)
        api.put(pod("a"))
        await until(lambda: held.names == {"a"})
        assert informer.stats.watch_lists == (2 if code == 410 else 1)


async def test_a_version_that_the_server_has_forgotten_leads_to_a_list(
    api: ScriptedApi, client: Client
) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        gate = asyncio.Event()
        api.fault(when=lambda r: "resourceVersion" in r.query, gate=gate)
        api.close_watches()
        await until(lambda: resumed(api))
        api.put(pod("a"))
        api.compact()
        gate.set()
        await until(lambda: held.versions == truth(api))


async def test_three_failures_without_progress_lead_to_a_list(
    api: ScriptedApi, client: Client
) -> None:
    api.bookmarks = False
    async with following(client) as (informer, _):
        await informer.wait_synced()
        api.fault(when=lambda r: "resourceVersion" in r.query, status=500, times=3)
        api.close_watches()
        await until(lambda: informer.stats.watch_lists == 2)
        assert len(resumed(api)) == 3


async def test_a_server_that_is_not_there_is_no_reason_to_list(
    api: ScriptedApi, client: Client
) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.fault(when=lambda r: "resourceVersion" in r.query, lost=Lost.BEFORE, times=2)
        api.put(pod("a"))
        api.close_watches()
        await until(lambda: held.names == {"a"})
        assert informer.stats.watch_lists + informer.stats.lists == 1


async def test_events_out_of_order_are_not_believed(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.stream_fault(Kind.REORDER, at=0)
        api.put(pod("a"))
        api.put(pod("b"))
        await until(lambda: held.versions == truth(api))
        assert informer.stats.watch_lists == 2


async def test_an_event_that_comes_twice_is_harmless(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.stream_fault(Kind.DUPLICATE, at=0)
        api.put(pod("a"))
        api.put(pod("b"))
        await until(lambda: held.names == {"a", "b"})
        assert informer.stats.watch_lists + informer.stats.lists == 1
        assert [call for call in held.calls if call[1] == "a"] == [("add", "a")]


async def test_a_pod_deleted_and_made_again_under_its_name_is_another(
    api: ScriptedApi, client: Client
) -> None:
    api.put(pod("a"))
    async with following(client) as (informer, held):
        await informer.wait_synced()
        first = set(held.pods)
        api.remove("pods", "a")
        api.put(pod("a"))
        await until(lambda: held.versions == truth(api))
        assert not first & set(held.pods)


async def test_a_list_whose_pages_expire_begins_again_and_at_last_comes_whole(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 2)
    for name in "abcde":
        api.put(pod(name))
    api.refuse_watch_list()
    api.fault(when=lambda r: "continue" in r.query, status=410, reason="Expired", times=None)
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.versions == truth(api)
        assert "limit" not in lists(api)[-1].query
        assert len(lists(api)) == 7


async def test_what_a_watch_swallowed_is_found_by_the_next_resync(
    api: ScriptedApi, client: Client
) -> None:
    for name in "abc":
        api.put(pod(name))
    async with following(client) as (informer, held):
        await informer.wait_synced()
        for number in range(3, 7):  # after the three of the list
            api.stream_fault(Kind.DROP, at=number)
        api.put(pod("a", node="n"))
        api.remove("pods", "b")
        api.put(pod("c", wanted=False))
        api.put(pod("d"))
        api.put(pod("e"))
        await until(lambda: "e" in held.names)
        assert held.versions != truth(api)
        informer.resync()
        await until(lambda: held.versions == truth(api))
        assert informer.stats.repaired == 4
        assert informer.stats.watches == 0


async def test_the_resync_comes_by_itself(api: ScriptedApi, client: Client) -> None:
    async with following(client, resync_interval=0.1) as (informer, held):
        await informer.wait_synced()
        api.stream_fault(Kind.DROP, at=0)
        api.put(pod("a"))
        await until(lambda: held.versions == truth(api))
        assert informer.stats.repaired == 1


async def test_a_resync_counts_nothing_that_the_stream_explains(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages objects come, change and go; the list shows the moment before."""
    monkeypatch.setattr(listwatch, "PAGE", 2)
    for name in "abcdef":
        api.put(pod(name))
    async with following(client) as (informer, held):
        await informer.wait_synced()
        gate = asyncio.Event()
        held_back = api.fault(when=lambda r: "continue" in r.query, gate=gate)
        informer.resync()
        await until(lambda: held_back.hits)
        api.put(pod("a", node="n"))
        api.remove("pods", "d")
        api.remove("pods", "f")
        api.put(pod("f"))
        api.put(pod("g"))
        api.put(pod("e", wanted=False))
        await until(lambda: held.versions == truth(api))
        gate.set()
        await until(lambda: informer._resync is None)
        assert held.versions == truth(api)
        assert informer.stats.repaired == 0


async def test_a_resync_that_fails_is_tried_again(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        api.fault(when=lambda r: not r.watches, status=500, times=2)
        api.stream_fault(Kind.DROP, at=0)
        api.put(pod("a"))
        informer.resync()
        await until(lambda: held.versions == truth(api))


async def test_a_server_restored_from_a_backup_is_listed_again(
    api: ScriptedApi, client: Client
) -> None:
    api.put(pod("a"))
    saved = api.snapshot()
    async with following(client) as (informer, held):
        await informer.wait_synced()
        for number in range(5):
            api.put(pod("b", node=str(number)))
        await until(lambda: held.versions == truth(api))
        api.restore(saved)
        api.put(pod("c"))
        await until(lambda: api.watching == 1)
        informer.resync()
        await until(lambda: held.versions == truth(api))
        assert informer.version == api.store.version


async def test_who_waits_for_a_version_is_woken_by_event_bookmark_or_list(
    api: ScriptedApi, client: Client
) -> None:
    async with following(client) as (informer, held):
        await informer.wait_synced()
        await informer.wait_version(1)
        made = api.put(pod("a"))
        async with asyncio.timeout(PATIENCE_S):
            await informer.wait_version(int(made["metadata"]["resourceVersion"]))
        assert held.names == {"a"}
        other = api.put({"kind": "Node", "metadata": {"name": "n"}})
        async with asyncio.timeout(PATIENCE_S):
            await informer.wait_version(int(other["metadata"]["resourceVersion"]))
        api.bookmarks = False
        waiting = asyncio.create_task(informer.wait_version(api.store.version + 1))
        api.put({"kind": "Node", "metadata": {"name": "m"}})
        await asyncio.sleep(0)
        informer.resync()
        async with asyncio.timeout(PATIENCE_S):
            await waiting


async def test_a_selection_is_kept_in_lists_watches_and_resyncs(
    api: ScriptedApi, client: Client
) -> None:
    red = pod("a")
    red["metadata"]["labels"] = {"colour": "red"}
    api.put(red)
    api.put(pod("b"))
    query = {"labelSelector": "colour=red"}
    async with following(client, query=query) as (informer, held):
        await informer.wait_synced()
        informer.resync()
        await until(lambda: informer.stats.lists == 1 and informer._resync is None)
        api.close_watches()
        await until(lambda: resumed(api))
        assert held.names == {"a"}
    assert all(r.query["labelSelector"] == "colour=red" for r in api.requests)


async def test_waits_grow_with_failures_obey_the_server_and_start_again_with_success(
    api: ScriptedApi, client: Client
) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    api.fault(when=lambda r: not r.watches, status=500, times=4)
    api.fault(when=lambda r: not r.watches, status=503, retry_after=7)
    api.refuse_watch_list()
    async with following(client, sleep=note, random=lambda: 1.0) as (informer, _):
        await informer.wait_synced()
        assert waits == [0.1, 0.2, 0.4, 0.8, 7]
        api.fault(when=lambda r: "resourceVersion" in r.query, status=500)
        api.close_watches()
        await until(lambda: api.watching == 1)
        assert waits[5] == 0.1


async def test_a_server_whose_watches_always_fail_is_not_hammered(
    api: ScriptedApi, client: Client
) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 8:
            await asyncio.Event().wait()

    expired: dict[str, Any] = {"status": 410, "reason": "Expired", "times": None}
    api.fault(when=lambda r: "resourceVersion" in r.query, **expired)
    api.refuse_watch_list()
    async with following(client, sleep=note, random=lambda: 1.0) as (_, _held):
        await until(lambda: len(waits) > 8)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]


async def test_a_watch_list_that_falls_silent_is_given_up(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami.kube.informer._LIST_SILENCE", 0.1)
    api.put(pod("a"))
    api.put(pod("b"))
    api.stream_fault(Kind.DELAY, at=1, seconds=60)
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == {"a", "b"}
        assert informer.stats.lists == 1


async def test_a_handler_that_fails_ends_the_informer_loudly(
    api: ScriptedApi, client: Client
) -> None:
    def broken(_old: objects.Pod | None, _new: objects.Pod | None) -> None:
        raise RuntimeError("a bug")

    api.put(pod("a"))
    informer = Informer(client, paths.pods(), read, kind="pods")
    informer.add_handler(broken)
    with pytest.raises(ExceptionGroup) as raised:
        await informer.run()
    assert raised.group_contains(RuntimeError, match="a bug")


async def test_an_object_is_waited_for_by_uid_and_by_key(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, _):
        await informer.wait_synced()
        by_key = asyncio.create_task(informer.wait("default/a", lambda p: p is not None, None))
        await asyncio.sleep(0)
        uid = api.put(pod("a"))["metadata"]["uid"]
        async with asyncio.timeout(PATIENCE_S):
            found = await by_key
            assert found is not None
            assert found.uid == uid
            assert await informer.wait(uid, lambda p: p is found, None) is found
            on_node = asyncio.create_task(
                informer.wait(uid, lambda p: p is not None and p.node_name == "n", None)
            )
            deleted = asyncio.create_task(informer.wait("default/a", lambda p: p is None, None))
            await asyncio.sleep(0)
            api.put(pod("a", node="n"))
            assert (await on_node) is not None
            api.remove("pods", "a")
            assert await deleted is None
        assert not informer._waits


async def test_a_wait_ends_with_its_time(api: ScriptedApi, client: Client) -> None:
    async with following(client) as (informer, _):
        with pytest.raises(TimeoutError):
            await informer.wait("default/a", lambda p: p is not None, 0)
        assert not informer._waits


async def test_a_pod_known_from_an_offer_outlives_an_older_list_and_is_deleted_like_any_other(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 1)
    api.refuse_watch_list()
    for name in "ab":
        api.put(pod(name))
    gate = asyncio.Event()
    api.fault(when=lambda r: "continue" in r.query, gate=gate)
    async with following(client) as (informer, held):
        await until(lambda: len(lists(api)) == 2)
        informer.offer(encoded(api.put(pod("c"))))
        gate.set()
        await informer.wait_synced()
        assert held.names == {"a", "b", "c"}
        api.remove("pods", "c")
        await until(lambda: held.names == {"a", "b"})
        assert ("update", "c") not in held.calls


async def test_an_object_that_leaves_the_selection_and_returns_is_back(
    api: ScriptedApi, client: Client
) -> None:
    def coloured(colour: str) -> dict[str, Any]:
        made = pod("a")
        made["metadata"]["labels"] = {"colour": colour}
        return made

    api.put(coloured("red"))
    async with following(client, query={"labelSelector": "colour=red"}) as (informer, held):
        await informer.wait_synced()
        left = encoded(api.put(coloured("blue")))
        informer.offer(left)  # our own write is answered before the watch shows that it left
        assert held.names == {"a"}
        await until(lambda: held.names == set())
        informer.offer(left)
        informer.offer(encoded(api.put({**coloured("blue"), "spec": {"nodeName": "n"}})))
        assert held.names == set()
        api.put(coloured("red"))
        await until(lambda: held.names == {"a"})
