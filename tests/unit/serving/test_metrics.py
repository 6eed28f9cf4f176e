"""/metrics: its format, streamed families, and no delay of other requests."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator

import pytest
from prometheus_client import parser

from hami.serving import metrics
from hami.serving.http_server import Request, Response
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers


async def scrape(registry: metrics.Registry, families: metrics.Families | None = None) -> str:
    async with servers.serving(metrics.route(registry, families)) as server:
        status, headers, body = await servers.ask(server.port, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return body.decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_what_is_counted_and_what_is_written_come_in_one_text() -> None:
    registry = metrics.Registry()
    registry.counter("hami_binds", "Binds.", ("result",)).labels(result='a"b\\c\nd').inc(3)
    registry.gauge("hami_waiting", "Waiting pods.").set(7)
    latency = registry.histogram("hami_filter_seconds", "Time.", buckets=(0.001, 1.0))
    latency.observe(0.5)

    async def written() -> AsyncIterator[bytes]:
        yield b"# HELP cards Cards.\n# TYPE cards gauge\n"
        yield b'cards{node="n"} 8\n'

    found = samples(await scrape(registry, written))
    assert found["hami_binds_total", (("result", 'a"b\\c\nd'),)] == 3
    assert found["hami_waiting", ()] == 7
    assert found["hami_filter_seconds_bucket", (("le", "0.001"),)] == 0
    assert found["hami_filter_seconds_bucket", (("le", "1.0"),)] == 1
    assert found["cards", (("node", "n"),)] == 8
    assert found["process_resident_memory_bytes", ()] > 2**20
    assert not [name for name, _ in found if name.endswith("_created")]


async def test_every_family_has_its_type_once() -> None:
    registry = metrics.Registry()
    registry.counter("hami_binds", "Binds.").inc()
    text = await scrape(registry)
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert "hami_binds_total" in types
    assert len(types) == len(set(types))


async def test_the_build_has_the_labels_of_hami() -> None:
    registry = metrics.Registry()
    registry.build_info(version="1.2.3", revision="abc", build_date="today")
    ((labels, value),) = [
        (dict(labels), value)
        for (name, labels), value in samples(await scrape(registry)).items()
        if name == "hami_build_info"
    ]
    assert value == 1
    assert (labels["version"], labels["revision"], labels["build_date"]) == (
        "1.2.3",
        "abc",
        "today",
    )
    assert labels["go_version"].startswith("3.")
    assert set(labels) == {
        *("version", "revision", "build_date", "go_version", "compiler", "platform"),
    }


def asked(accepted: str) -> Request:
    headers = {"Accept-Encoding": accepted}
    return Request("GET", "/metrics", {}, headers, b"", "127.0.0.1", "id")


@pytest.mark.parametrize("accepted", ["", "gzip"])
async def test_a_large_scrape_lets_the_loop_turn_after_every_chunk(accepted: str) -> None:
    """A family that itself never awaits anything: 600 chunks, 300,000 lines."""
    chunk = b'cards{node="n"} 8\n' * 500

    async def written() -> AsyncIterator[bytes]:
        for _ in range(600):
            made[0] += 1
            yield chunk

    turns: list[int] = []
    made = [0]

    async def tick() -> None:
        while True:
            turns.append(made[0])
            await asyncio.sleep(0)

    answer: Response = await metrics.route(metrics.Registry(), written).handler(asked(accepted))
    assert not isinstance(answer.body, bytes)
    ticking = asyncio.create_task(tick())
    parts = [part async for part in answer.body]
    sizes = [len(part) for part in parts]
    text = b"".join(parts)
    received = (gzip.decompress(text) if accepted else text).count(b"\ncards{")
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    assert received == 300_000
    # Between two turns of the others never more than one chunk was made.
    assert max(b - a for a, b in itertools.pairwise(turns)) == 1
    assert max(sizes) < 2 * 2**16


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip; q=0.001", True),
        ("gzip;q=0, identity", False),
        ("gzip;q=0.0", False),
        ("identity", False),
        ("", False),
    ],
)
async def test_a_scraper_that_accepts_gzip_gets_the_same_text_as_gzip(
    accepted: str, compressed: bool
) -> None:
    text = b'cards{node="n"} 8\n' * 20_000

    async def written() -> AsyncIterator[bytes]:
        yield text

    async with servers.serving(metrics.route(metrics.Registry(), written)) as server:
        status, headers, body = await servers.ask(
            server.port, "GET", "/metrics", headers={"Accept-Encoding": accepted}
        )
    assert status == 200
    assert headers["vary"] == "Accept-Encoding"
    assert headers.get("content-encoding") == ("gzip" if compressed else None)
    assert (len(body) < len(text) / 10) == compressed
    assert (gzip.decompress(body) if compressed else body).endswith(text)


async def test_a_scrape_that_is_broken_off_closes_the_families() -> None:
    closed = asyncio.Event()

    async def written() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            closed.set()

    async with servers.serving(metrics.route(metrics.Registry(), written)) as server:
        async with servers.connected(server.port) as connection:
            await connection.send(servers.head("GET", "/metrics", {}))
            await connection.reader.readexactly(1000)
        await asyncio.wait_for(closed.wait(), PATIENCE_S)


@pytest.mark.parametrize("value", ["plain", 'a"b', "a\\b", "a\nb", "\\n", 'a\\"\n', "ü{}=,"])
def test_label_values_survive_the_text(value: str) -> None:
    text = f'x{{label="{metrics.escape_label(value)}"}} 1\n'
    (family,) = parser.text_string_to_metric_families(text)
    assert family.samples[0].labels == {"label": value}
