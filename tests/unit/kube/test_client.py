"""Requests: what is sent, what is tried again, and what the errors say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from hami.kube import errors, paths, transport
from hami.kube.client import Client, PatchKind
from hami.kube.credentials import Identity
from hami.kube.request import Terms
from hami.kube.transport import Access
from hami.wire import correlation
from tests.loop_time import LoopTime
from tests.scripted_api.server import Lost, ScriptedApi
from tests.unit.kube.following import PATIENCE_S, pod, until

BODY = json.dumps({"metadata": {"name": "p"}}).encode()


async def test_every_request_says_what_it_wants_and_who_asks(
    api: ScriptedApi, client: Client
) -> None:
    correlation.begin("from-filter-7")
    await client.get(paths.pods(), {"limit": "1", "labelSelector": "a=b"})
    (request,) = api.requests
    assert request.query == {"limit": "1", "labelSelector": "a=b"}
    assert request.headers["Accept"] == "application/json"
    assert request.headers["Accept-Encoding"] == "identity"
    assert request.headers["User-Agent"] == "hami-tests"
    assert request.headers["Audit-ID"] == "from-filter-7"


@pytest.mark.parametrize("bad_id", ["two\r\nlines", "x" * 200, "käse"])
async def test_an_id_that_fits_no_header_is_left_out(
    api: ScriptedApi, client: Client, bad_id: str
) -> None:
    correlation.begin(bad_id)
    await client.get(paths.pods())
    assert "Audit-ID" not in api.requests[0].headers


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        (PatchKind.MERGE, "application/merge-patch+json"),
        (PatchKind.STRATEGIC, "application/strategic-merge-patch+json"),
        (PatchKind.JSON, "application/json-patch+json"),
        (PatchKind.APPLY, "application/apply-patch+yaml"),
    ],
)
async def test_a_patch_names_its_kind(
    api: ScriptedApi, client: Client, kind: PatchKind, content_type: str
) -> None:
    api.put(pod("p"))
    with contextlib.suppress(errors.ApiError):
        await client.patch(paths.pods("default", "p"), b"{}", kind=kind)
    assert api.requests[0].headers["Content-Type"] == content_type


async def test_objects_are_created_read_replaced_patched_and_deleted(
    api: ScriptedApi, client: Client
) -> None:
    path = paths.pods("n", "p")
    made = json.loads(await client.create(paths.pods("n"), BODY))
    assert json.loads(await client.get(path)) == made
    made["metadata"]["labels"] = {"a": "b"}
    await client.replace(path, json.dumps(made).encode())
    await client.patch(path, b'{"metadata": {"labels": {"c": "d"}}}')
    assert json.loads(await client.get(path))["metadata"]["labels"] == {"a": "b", "c": "d"}
    await client.delete(path)
    assert api.objects("pods") == []


@pytest.mark.parametrize(
    ("answer", "kind", "retry", "unknown"),
    [
        ({"status": 400}, errors.Invalid, "NEVER", False),
        ({"status": 422}, errors.Invalid, "NEVER", False),
        ({"status": 403}, errors.Forbidden, "NEVER", False),
        ({"status": 404}, errors.NotFound, "NEVER", False),
        ({"status": 405}, errors.ApiError, "NEVER", False),
        ({"status": 409}, errors.Conflict, "AFRESH", False),
        ({"status": 410}, errors.Gone, "AFRESH", False),
        ({"status": 400, "reason": "Expired"}, errors.Gone, "AFRESH", False),
        ({"status": 429}, errors.TooManyRequests, "AGAIN", False),
        ({"status": 500}, errors.ServerFault, "AGAIN", True),
        ({"status": 503}, errors.ServerFault, "AGAIN", True),
        ({"status": 503, "retry_after": 1}, errors.ServerFault, "AGAIN", False),
        ({"status": 504}, errors.ServerFault, "AGAIN", True),
        ({"lost": Lost.BEFORE}, errors.Unreachable, "AGAIN", True),
        ({"lost": Lost.AFTER}, errors.Unreachable, "AGAIN", True),
    ],
)
async def test_an_error_says_whether_to_try_again_and_whether_it_may_have_been_done(  # noqa: PLR0917 - fixtures and a column each
    api: ScriptedApi,
    client: Client,
    answer: dict[str, Any],
    kind: type[errors.KubeError],
    retry: str,
    unknown: bool,
) -> None:
    api.fault(**answer)
    with pytest.raises(errors.KubeError) as raised:
        await client.create(paths.pods("n"), BODY)
    assert type(raised.value) is kind
    assert raised.value.retry is errors.Retry[retry]
    assert raised.value.outcome_unknown is unknown
    assert len(api.requests) == 1


async def test_a_write_whose_answer_is_lost_was_done_and_is_not_sent_twice(
    api: ScriptedApi, client: Client
) -> None:
    made = api.put(pod("p"))
    path = paths.pods("default", "p")
    await client.get(path)  # so that the connection is one that was used before
    sends: list[Callable[[], Awaitable[bytes]]] = [
        lambda: client.replace(path, json.dumps({**made, "x": 1}).encode()),
        lambda: client.patch(path, b'{"y": 1}'),
        lambda: client.delete(path),
    ]
    for send in sends:
        await client.get(paths.pods())
        api.requests.clear()
        api.fault(lost=Lost.AFTER)
        with pytest.raises(errors.Unreachable) as raised:
            await send()
        assert raised.value.outcome_unknown
        assert len(api.requests) == 1
    assert api.objects("pods") == []


async def test_a_server_that_is_not_there_has_done_nothing(api: ScriptedApi) -> None:
    access = api.access()
    await api.close()
    async with Client(access, user_agent="t") as client:
        with pytest.raises(errors.Unreachable, match=access.server) as raised:
            await client.create(paths.pods("n"), BODY)
    assert not raised.value.outcome_unknown


async def test_a_request_ends_when_its_time_is_over(api: ScriptedApi, client: Client) -> None:
    time = LoopTime()
    api.fault(hang=True)
    asking = asyncio.create_task(client.create(paths.pods("n"), BODY, timeout=60))
    await until(lambda: api.requests)  # before that it would be known that nothing was done
    await time.forward(61)
    with pytest.raises(errors.Unreachable, match="no answer in time") as raised:
        await asking
    assert raised.value.outcome_unknown


async def test_messages_of_the_server_are_cut(api: ScriptedApi, client: Client) -> None:
    api.fault(status=403, reason="Forbidden", message="no " * 1000)
    with pytest.raises(errors.Forbidden) as raised:
        await client.get(paths.pods())
    assert 200 < len(str(raised.value)) < 300


async def test_a_redirection_is_not_followed_with_our_credentials(
    api: ScriptedApi, client: Client
) -> None:
    api.fault(status=302, headers={"Location": f"{api.url}/api/v1/nodes"})
    with pytest.raises(errors.ApiError, match="302"):
        await client.get(paths.pods())
    assert len(api.requests) == 1


async def test_a_web_page_instead_of_a_status_is_an_error_too() -> None:
    error = errors.of_answer(502, b"<html>bad gateway</html>")
    assert (type(error), error.status) == (errors.ServerFault, 502)
    assert "bad gateway" in str(error)


class TestBusyServers:
    async def test_are_asked_again_when_they_say(self, api: ScriptedApi) -> None:
        waits: list[float] = []

        async def note(seconds: float) -> None:
            waits.append(seconds)

        api.fault(status=429, retry_after=2, times=3)
        async with Client(api.access(), user_agent="t", timeout=30, sleep=note) as client:
            await client.create(paths.pods("n"), BODY)
        assert waits == [2, 2, 2]
        assert len(api.objects("pods")) == 1

    async def test_are_not_waited_for_beyond_the_requests_time(
        self, api: ScriptedApi, client: Client
    ) -> None:
        api.fault(status=429, retry_after=20)
        with pytest.raises(errors.TooManyRequests) as raised:
            await client.get(paths.pods(), timeout=10)
        assert raised.value.retry_after == 20
        assert len(api.requests) == 1

    async def test_are_left_alone_where_the_caller_wants_so(
        self, api: ScriptedApi, client: Client
    ) -> None:
        api.fault(status=429, retry_after=0)
        with pytest.raises(errors.TooManyRequests):
            await client.get(paths.pods(), retry_busy=False)


class TestRates:
    async def test_a_burst_goes_at_once_and_the_rest_at_the_rate(self, api: ScriptedApi) -> None:
        waits: list[float] = []

        async def note(seconds: float) -> None:
            waits.append(round(seconds, 3))

        client = Client(
            api.access(), user_agent="t", qps=10, burst=2, clock=lambda: 0.0, sleep=note
        )
        async with client:
            for _ in range(4):
                await client.get(paths.pods())
        assert waits == [0.1, 0.2]

    async def test_watches_do_not_count(self, api: ScriptedApi) -> None:
        async with Client(api.access(), user_agent="t", qps=1, burst=1) as client:
            for _ in range(3):
                async with client.stream(paths.pods(), {"watch": "1"}):
                    pass


class TestGuards:
    class StaleError(Exception):
        pass

    async def test_a_guard_is_asked_when_the_connection_is_ready_and_only_then(
        self, api: ScriptedApi, client: Client
    ) -> None:
        seen: list[int] = []
        await client.create(paths.pods("n"), BODY, guard=lambda: seen.append(len(api.requests)))
        assert seen == [0]
        assert len(api.objects("pods")) == 1

    async def test_a_guard_is_asked_after_everything_that_takes_time(
        self, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []

        class Slow(TestCredentials.Rotating):
            async def current(self) -> Identity:
                order.append("credentials")
                return await super().current()

        async def note(seconds: float) -> None:
            order.append("rate")

        def connect(address: aiohttp.AddrInfoType) -> socket.socket:
            order.append("connection")
            return socket.socket(*address[:3])

        monkeypatch.setattr(transport, "_probing_socket", connect)
        access = Access(api.url, identities=Slow(""))
        client = Client(access, user_agent="t", qps=1, burst=1, clock=lambda: 0.0, sleep=note)
        async with client:
            client._bucket.try_take()  # type: ignore[union-attr] # it has one
            await client.create(paths.pods("n"), BODY, guard=lambda: order.append("guard"))
        assert order == ["rate", "credentials", "connection", "guard"]

    async def test_a_guard_that_refuses_keeps_every_byte_back_and_is_heard_unchanged(
        self, api: ScriptedApi, client: Client
    ) -> None:
        stale = self.StaleError("another leads")

        def refuse() -> None:
            raise stale

        with pytest.raises(self.StaleError) as raised:
            await client.create(paths.pods("n"), BODY, guard=refuse)
        assert raised.value is stale
        await client.get(paths.pods())
        assert [request.method for request in api.requests] == ["GET"]

    async def test_not_even_the_head_of_a_refused_request_reaches_the_server(self) -> None:
        received: list[bytes] = []
        closed = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.read())
            writer.close()
            closed.set()

        def refuse() -> None:
            raise self.StaleError

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Client(_plain(url), user_agent="t") as client:
                with pytest.raises(self.StaleError):
                    await client.create(paths.pods("n"), BODY, guard=refuse)
                async with asyncio.timeout(PATIENCE_S):  # the client has dropped the connection
                    await closed.wait()
        assert received == [b""]

    async def test_a_guard_is_asked_again_at_every_attempt(
        self, api: ScriptedApi, client: Client
    ) -> None:
        asked = 0

        def expire() -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise self.StaleError

        api.fault(status=429, retry_after=0)
        with pytest.raises(self.StaleError):
            await client.create(paths.pods("n"), BODY, guard=expire)
        assert len(api.requests) == 1

    async def test_an_operating_system_error_of_a_guard_is_its_own(
        self, api: ScriptedApi, client: Client
    ) -> None:
        def refuse() -> None:
            raise TimeoutError("mine")

        with pytest.raises(TimeoutError, match="mine"):
            await client.create(paths.pods("n"), BODY, guard=refuse)


class TestConnections:
    async def test_a_request_without_a_free_connection_is_not_sent_and_reported_so(
        self, api: ScriptedApi
    ) -> None:
        async with Client(api.access(), user_agent="t", most=1) as client:
            api.fault(method="GET", hang=True)
            first = asyncio.create_task(client.get(paths.pods()))
            while not api.requests:
                await asyncio.sleep(0)
            with pytest.raises(errors.Unreachable, match=r"no connection became free") as raised:
                await client.create(paths.pods("n"), BODY, timeout=0.01)
            assert not raised.value.outcome_unknown
            assert len(api.requests) == 1
            first.cancel()

    async def test_streams_and_clients_apart_wait_for_no_request(self, api: ScriptedApi) -> None:
        async with Client(api.access(), user_agent="t", most=1) as client:
            api.fault(method="GET", hang=True)
            first = asyncio.create_task(client.get(paths.pods()))
            while not api.requests:
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                await client.apart(1).create(paths.pods("n"), BODY)
                async with client.stream(paths.pods(), {"watch": "1"}) as lines:
                    assert b"ADDED" in await anext(aiter(lines))
            assert not first.done()
            first.cancel()

    async def test_the_terms_of_a_request_are_asked_for_when_its_turn_has_come(
        self, api: ScriptedApi
    ) -> None:
        order: list[str] = []

        def terms() -> Terms:
            order.append("terms")
            return Terms({"timeout": "5s"}, 5.0, lambda: order.append("guard"))

        async with Client(api.access(), user_agent="t", most=1) as client:
            gate = asyncio.Event()
            api.fault(method="GET", gate=gate, on_hit=lambda: order.append("first"))
            first = asyncio.create_task(client.get(paths.pods()))
            while not order:
                await asyncio.sleep(0)
            second = asyncio.create_task(client.create(paths.pods("n"), BODY, terms=terms))
            for _ in range(10):
                await asyncio.sleep(0)
            assert order == ["first"]
            gate.set()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(first, second)
        assert order == ["first", "terms", "guard"]
        assert api.requests[-1].query["timeout"] == "5s"


class TestStreams:
    async def test_a_stream_gives_whole_lines(self, api: ScriptedApi, client: Client) -> None:
        api.put(pod("a"))
        async with client.stream(paths.pods(), {"watch": "1"}) as lines:
            assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "a"
            api.put(pod("b"))
            assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "b"
        await until(lambda: api.watching == 0)

    async def test_a_stream_that_is_refused_raises(self, api: ScriptedApi, client: Client) -> None:
        api.fault(status=403)
        with pytest.raises(errors.Forbidden):
            async with client.stream(paths.pods(), {"watch": "1"}):
                pass

    async def test_a_silent_stream_is_given_up(self, api: ScriptedApi, client: Client) -> None:
        async with client.stream(paths.pods(), {"watch": "1"}, idle=0.05) as lines:
            with pytest.raises(errors.Unreachable):
                await anext(lines)

    async def test_a_stream_that_does_not_open_is_given_up(self, api: ScriptedApi) -> None:
        api.fault(hang=True)
        async with Client(api.access(), user_agent="t", timeout=0.05) as client:
            with pytest.raises(errors.Unreachable):
                async with client.stream(paths.pods(), {"watch": "1"}):
                    pass

    async def test_a_line_beyond_all_measure_is_an_error(
        self, api: ScriptedApi, client: Client
    ) -> None:
        api.put(pod("a"))
        async with client.stream(paths.pods(), {"watch": "1"}, line_limit=20) as lines:
            with pytest.raises(errors.StreamBroken):
                await anext(lines)


class TestCredentials:
    class Rotating:
        """Gives the next token after each refusal."""

        def __init__(self, *tokens: str) -> None:
            self.tokens = [Identity(token) for token in tokens]

        async def current(self) -> Identity:
            return self.tokens[0]

        def refused(self, shown: Identity) -> bool:
            if len(self.tokens) > 1 and shown is self.tokens[0]:
                self.tokens.pop(0)
            return shown is not self.tokens[0]

    async def test_a_refused_token_is_renewed_once_for_requests_and_streams(
        self, api: ScriptedApi
    ) -> None:
        api.tokens = {"new"}
        for ask in ("get", "stream"):
            access = Access(api.url, identities=self.Rotating("old", "new"))
            async with Client(access, user_agent="t") as client:
                if ask == "get":
                    await client.get(paths.pods())
                else:
                    async with client.stream(paths.pods(), {"watch": "1"}):
                        pass
        shown = [request.headers["Authorization"] for request in api.requests]
        assert shown == ["Bearer old", "Bearer new"] * 2

    async def test_a_token_that_stays_refused_is_reported_with_its_source(
        self, api: ScriptedApi
    ) -> None:
        api.tokens = {"valid"}
        access = Access(
            api.url, identities=self.Rotating("a", "b", "c"), origin="/etc/kube, context 'x'"
        )
        async with Client(access, user_agent="t") as client:
            with pytest.raises(errors.Unauthorized) as raised:
                await client.get(paths.pods())
        assert len(api.requests) == 2
        for part in (api.url, "/etc/kube, context 'x'", "expired", "renew"):
            assert part in str(raised.value)


def _plain(url: str) -> Access:
    return Access(url, identities=TestCredentials.Rotating(""))


def test_names_are_quoted_in_paths() -> None:
    assert paths.pods("a/b", "../c") == "/api/v1/namespaces/a%2Fb/pods/..%2Fc"
    assert paths.binding("n", "p") == "/api/v1/namespaces/n/pods/p/binding"
    assert paths.lease("n", "l") == "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
    assert paths.quotas() == "/api/v1/resourcequotas"
