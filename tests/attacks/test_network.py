"""Attacks of a process on the network of nodes or pods, on what hami listens on."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.admission.serve import Metrics, Reviewer
from hami.cluster.quota import Headroom
from hami.serving import http_server, metrics
from hami.serving.http_server import Route, Server
from hami.serving.tracing import Tracer
from tests import virtual_time
from tests.attacks import attack as attacks
from tests.attacks.attack import GAP, NO_GAIN, REFUSED, Attacker, Result
from tests.authority import Authority
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import pods
from tests.unit.admission.desk import review
from tests.unit.admission.pods import Door
from tests.unit.scheduler import rig
from tests.unit.serving import servers
from tests.unit.serving.test_callers import Site, none_is_local, site

__all__ = ["site"]  # a fixture

attack = attacks.by(Attacker.NETWORK)

ANSWERED = "requests that were answered as a trusted caller's"
HELD = "bytes, connections or log lines beyond the bound, by the server's own count"
FLOOD = 100


@contextlib.asynccontextmanager
async def scheduler() -> AsyncIterator[tuple[Server, rig.Replica]]:
    """Serve a whole scheduler to callers from elsewhere."""
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with (
            rig.running(api, profiling=True) as replica,
            servers.serving(*replica.scheduler.routes(), is_local=none_is_local) as server,
        ):
            yield server, replica


class Webhook:
    """Admission that any caller can reach."""

    def __init__(self, **door: Any) -> None:
        self.registry = metrics.Registry()
        self.reviewer = Reviewer(
            Door(**door).context,
            instruments=Metrics(self.registry),
            tracer=Tracer.disabled(),
            why_not_ready=lambda: "",
        )

    def serving(self) -> contextlib.AbstractAsyncContextManager[Server]:
        return servers.serving(self.reviewer.route(), is_local=none_is_local)

    def series(self) -> int:
        text = b"".join(self.registry.render()).decode()
        return sum(not line.startswith("#") for line in text.splitlines())


def asking(memory: int, **fields: Any) -> bytes:
    return json.dumps(review(pods.pod(pods.container(gpu=1, memory=memory)), **fields)).encode()


# Verbs of the scheduler.


@attack(
    "scheduler-verbs",
    "calls /filter, /bind, /preempt, /explain or /debug of the scheduler",
    REFUSED,
    "these paths answer loopback and certificates of the client CA only",
)
async def test_the_schedulers_verbs() -> Result:
    async with scheduler() as (server, replica):
        victim = replica.api.put(rig.pod("victim"))
        names = {"PodName": "victim", "PodNamespace": "default"}
        uid = {"PodUID": victim["metadata"]["uid"], "Node": "a"}
        bodies = {
            ("POST", "/filter"): {"Pod": victim, "NodeNames": ["a"]},
            ("POST", "/bind"): {**names, **uid},
            ("POST", "/preempt"): {"Pod": victim, "NodeNameToVictims": {}},
            ("GET", "/explain"): {},
            ("GET", "/debug/tasks"): {},
            ("GET", "/debug/profile"): {},
            ("GET", "/debug/memory"): {},
        }
        forged = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "::1"}
        statuses = []
        for (method, path), body in bodies.items():
            for headers in ({}, forged):
                status, _, text = await servers.ask(
                    server.port, method, path, body=json.dumps(body).encode(), headers=headers
                )
                statuses.append(status)
        assert not replica.api.sent("POST", "/binding")
        taken = sum(status != 403 for status in statuses)
        return Result(taken, ANSWERED, text.decode())


@attack(
    "foreign-certificate",
    "shows a certificate of another authority, an expired one, or an old version of TLS",
    REFUSED,
    "the handshake ends, or the caller is nobody",
)
async def test_a_certificate_of_another_authority(site: Site) -> Result:
    route = Route("GET", "/bind", servers.answering("come in"), trusted=True)
    old = site.client(site.clients_ca.issue("kube-scheduler"))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    callers = [
        site.client(Authority("strangers").issue("kube-scheduler")),
        site.client(site.clients_ca.issue("kube-scheduler", days=-1)),
        site.client(),
        old,
    ]
    taken, refusal = 0, ""
    async with servers.serving(route, tls=site.tls, is_local=none_is_local) as server:
        for tls in callers:
            try:
                status, _, body = await servers.ask(server.port, "GET", "/bind", tls=tls)
                taken += status == 200
                refusal = body.decode()
            except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError) as error:
                refusal = refusal or str(error) or "the connection ends"
    return Result(taken, ANSWERED, refusal)


# The webhook, which answers whoever asks.


GARBAGE = {
    "nothing": b"",
    "no JSON": b"\0" * 1000,
    "deep": b"[" * 200_000,
    "deep objects": b'{"request":' * 50_000,
    "no review": b'{"kind":"Pod"}',
    "numbers": b'{"kind":"AdmissionReview","request":{"uid":' + b"9" * 4000 + b"}}",
    "surrogates": b'{"kind":"AdmissionReview","apiVersion":"\\ud800"}',
    "not UTF-8": b'{"kind":"\xff\xfe"}',
    "wrong types": b'{"apiVersion":[],"kind":{},"request":"x"}',
}


@attack(
    "review-garbage",
    "sends the webhook what is no review: deep, huge, broken",
    REFUSED,
    "what does not decode gets status 400, and the next review its answer",
)
@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_for_the_webhook(body: bytes) -> Result:
    async with Webhook().serving() as server:
        status, _, text = await servers.ask(server.port, "POST", "/webhook", body=body)
        assert (await servers.ask(server.port, "POST", "/webhook", body=asking(1)))[0] == 200
        return Result(int(status != 400), "answers other than 400", text.decode())


@attack(
    "review-large",
    "sends reviews of gigabytes, plain, in chunks, or packed",
    REFUSED,
    "a body is read up to 8 MiB, counted after unpacking",
)
@pytest.mark.parametrize("how", ["length", "chunks", "gzip"])
async def test_large_bodies(how: str) -> Result:
    async with Webhook().serving() as server, servers.connected(server.port) as connection:
        if how == "length":
            await connection.send(servers.head("POST", "/webhook", {"Content-Length": str(2**40)}))
        elif how == "chunks":
            chunked = {"Transfer-Encoding": "chunked"}
            await connection.send(servers.head("POST", "/webhook", chunked))
            with contextlib.suppress(OSError):
                for _ in range(12):
                    await connection.send(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
        else:
            packed = gzip.compress(bytes(64 * 2**20), 1)
            length = {"Content-Length": str(len(packed)), "Content-Encoding": "gzip"}
            await connection.send(servers.head("POST", "/webhook", length) + packed)
        status, _, body = await connection.answer()
        await servers.until(lambda: server.foreign_bytes == 0)
        return Result(int(status not in (400, 413)), "bodies that were read", body.decode())


@attack(
    "slow-bodies",
    "sends many bodies and never ends them, to fill the memory",
    NO_GAIN,
    "bodies of other callers share 64 MiB, and each has a minute to arrive",
)
async def test_slow_bodies(monkeypatch: pytest.MonkeyPatch) -> Result:
    bound, piece = 40_000, 9_000
    monkeypatch.setattr(http_server, "_FOREIGN_BODIES", bound)
    async with Webhook().serving() as server, contextlib.AsyncExitStack() as stack:
        most = 0
        for _ in range(10):
            one = await stack.enter_async_context(servers.connected(server.port))
            await one.send(servers.head("POST", "/webhook", {"Content-Length": str(piece + 1)}))
            await one.send(b"x" * piece)
            await asyncio.sleep(0)
            most = max(most, server.foreign_bytes)
        await servers.until(lambda: server.foreign_bytes >= bound - piece)
        return Result(max(most, server.foreign_bytes) - bound, HELD)


@attack(
    "slow-headers",
    "opens connections and sends half a request, or nothing",
    NO_GAIN,
    "a connection without a whole request is closed after two minutes",
)
def test_slow_headers() -> Result:
    async def tried() -> int:
        async with Webhook().serving() as server, contextlib.AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(servers.connected(server.port)) for _ in range(8)
            ]
            for one in opened[:4]:
                await one.send(b"POST /webhook HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            for _ in range(3):
                await asyncio.sleep(60)
                for one in opened[:2]:
                    with contextlib.suppress(OSError):
                        await one.send(b"x")
            assert server._runner is not None
            assert server._runner.server is not None
            return len(server._runner.server.connections)

    return Result(virtual_time.run(tried()), HELD)


@attack(
    "endless-headers",
    "sends headers without end",
    REFUSED,
    "number and length of headers are bounded",
)
async def test_endless_headers() -> Result:
    async with Webhook().serving() as server, servers.connected(server.port) as connection:
        await connection.send(b"POST /webhook HTTP/1.1\r\nHost: x\r\n")
        answering = asyncio.create_task(connection.answer())
        for number in range(40_000):
            if answering.done():
                break
            await connection.send(b"X-%d: %s\r\n" % (number, b"x" * 100))
            await asyncio.sleep(0)
        status, _, body = await answering
        return Result(int(status != 400), "answers other than 400", body.decode())


@attack(
    "two-lengths",
    "smuggles a second request into the body of the first, by two lengths",
    REFUSED,
    "a request with two lengths is none",
)
async def test_two_lengths() -> Result:
    inner = b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    both = {"Content-Length": str(len(inner) + 5), "Transfer-Encoding": "chunked"}
    async with Webhook().serving() as server, servers.connected(server.port) as connection:
        await connection.send(servers.head("POST", "/webhook", both) + b"0\r\n\r\n" + inner)
        first, _, body = await connection.answer()
        answers = [first]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            answers.append((await connection.answer())[0])
        return Result(len(answers) - 1 + (first != 400), "requests that got in", body.decode())


# Logs and metrics.


@attack(
    "log-flood",
    "fills the log with requests that are no HTTP, and with paths that do not exist",
    NO_GAIN,
    "each kind of refused request is logged once a minute, with a count",
)
async def test_a_flood_of_the_log(caplog: pytest.LogCaptureFixture) -> Result:
    caplog.set_level(logging.INFO)
    async with Webhook().serving() as server:
        for number in range(FLOOD):
            await servers.ask(server.port, "GET", f"/{number}")
            async with servers.connected(server.port) as connection:
                await connection.send(b"GET / HTTP/1.1\r\nbad header %d\r\n\r\n" % number)
                assert (await connection.answer())[0] == 400
    return Result(len(caplog.records) - 4, HELD)


@attack(
    "log-forgery",
    "puts line breaks and fields of its own into the log",
    NO_GAIN,
    "a log line is one JSON object; an id that is not plain is replaced",
)
async def test_forged_log_lines() -> Result:
    async with Webhook().serving() as server:
        forged = 'x","level":"error'
        _, headers, _ = await servers.ask(server.port, "GET", "/", headers={"X-Request-Id": forged})
        return Result(int(headers["x-request-id"] == forged), "ids that were taken over")


@attack(
    "metrics-flood",
    "makes metrics without end, by reviews with made-up MIG profiles",
    NO_GAIN,
    "only profiles of the configured chains become labels",
)
async def test_a_flood_of_metrics() -> Result:
    webhook = Webhook()
    async with webhook.serving() as server:

        async def send(profile: str) -> None:
            pod = pods.pod(pods.container(mig={profile: 1}))
            body = json.dumps(review(pod)).encode()
            assert (await servers.ask(server.port, "POST", "/webhook", body=body))[0] == 200

        await send("3g.40gb")
        await send("made.up")
        before = webhook.series()
        for number in range(FLOOD):
            await send(f"{number}g.{number}gb")
        return Result(webhook.series() - before, "series that callers made, by /metrics")


@attack(
    "quota-read",
    "asks the webhook about pods of other namespaces, to learn what their quota has left",
    GAP,
    "the refusal tells the MiB that a namespace has left",
    reference="API servers show webhooks no certificate by default; use a NetworkPolicy",
)
async def test_the_quota_of_others() -> Result:
    webhook = Webhook(headroom=lambda _namespace, _vendor: Headroom(memory=777, cores=None))
    async with webhook.serving() as server:
        _, _, body = await servers.ask(server.port, "POST", "/webhook", body=asking(10**6))
        return Result(body.count(b"777 MiB"), "namespaces whose quota is told")


@attack(
    "metrics-read",
    "reads /metrics of scheduler, agents and monitors",
    GAP,
    "names of pods and their use of cards can be read",
    reference="Prometheus reads them without a certificate; use a NetworkPolicy",
)
async def test_metrics_are_read() -> Result:
    async with scheduler() as (_, replica):
        await replica.place(rig.pod("secret-project"))
        await replica.seen()
        route = replica.scheduler.metrics_page.route()
        async with servers.serving(route, is_local=none_is_local) as server:
            _, _, body = await servers.ask(server.port, "GET", "/metrics")
        return Result(int(b"secret-project" in body), "pods whose names are told")
