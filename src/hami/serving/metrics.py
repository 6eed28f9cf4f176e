"""/metrics: the process's own metrics, and families streamed as text.

Counters and histograms of the process are in a private registry of prometheus_client. Families over
a whole cluster (hundreds of thousands of lines) would take seconds through it; their owners write
them as chunks of the text format, and they are streamed. The loop runs other tasks between two
chunks, so a scrape delays no request: a chunk should take about a millisecond.

A scraper that accepts gzip (Prometheus does) gets it, at the fastest level: text of this kind
becomes a twentieth, in a quarter of the time that writing it takes. It is compressed in pieces,
each in less than a millisecond.
"""

from __future__ import annotations

import asyncio
import os
import platform
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import prometheus_client
from prometheus_client import exposition, process_collector, registry
from prometheus_client.metrics_core import Metric

from hami.serving import http_server
from hami.serving.http_server import Request, Response, Route

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds; from a tenth of a millisecond, because a decision takes about one.
LATENCIES = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)

#: Bytes that are gathered before they are written, for fewer and larger packets.
_GATHERED = 2**16

#: zlib's number for the format of gzip with the largest window, and its fastest level.
_GZIP, _FASTEST = 31, 1
_VARY = (("Vary", "Accept-Encoding"),)

Families = Callable[[], AsyncIterator[bytes]]


class Registry:
    """Counters, gauges and histograms of this process."""

    def __init__(self) -> None:
        self._registry = registry.CollectorRegistry()
        process_collector.ProcessCollector(registry=self._registry)
        prometheus_client.PlatformCollector(registry=self._registry)

    def counter(
        self,
        name: str,
        help: str,  # noqa: A002 - Prometheus' name
        labels: Sequence[str] = (),
    ) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, help, labels, registry=self._registry)

    def gauge(
        self,
        name: str,
        help: str,  # noqa: A002 - Prometheus' name
        labels: Sequence[str] = (),
    ) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(name, help, labels, registry=self._registry)

    def histogram(
        self,
        name: str,
        help: str,  # noqa: A002 - Prometheus' name
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = LATENCIES,
    ) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(
            name, help, labels, buckets=buckets, registry=self._registry
        )

    def build_info(self, *, version: str, revision: str = "", build_date: str = "") -> None:
        """Add `hami_build_info 1` with HAMi's labels.

        Dashboards use the labels, so they stay: `go_version` carries the version of Python, and
        `compiler` its implementation.
        """
        labels = {
            "version": version,
            "revision": revision,
            "build_date": build_date,
            "go_version": platform.python_version(),
            "compiler": platform.python_implementation().lower(),
            "platform": f"{platform.system().lower()}/{os.uname().machine}",
        }
        gauge = self.gauge("hami_build_info", "What runs: always 1.", tuple(labels))
        gauge.labels(**labels).set(1)

    def render(self) -> Iterator[bytes]:
        """Yield the text of one family after the other."""
        for family in self._registry.collect():
            # The start time of a counter is a series of its own: it would double their number.
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield exposition.generate_latest(_One(family))


class _One(registry.Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def route(counted: Registry, families: Families | None = None) -> Route:
    """Answer GET /metrics with the registry and then the given families."""

    async def answer(request: Request) -> Response:
        text = _gathered(_chunks(counted, families))
        if not _accepts_gzip(request.headers.get("Accept-Encoding", "")):
            return Response(200, text, CONTENT_TYPE, _VARY)
        return Response(
            200, _compressed(text), CONTENT_TYPE, (*_VARY, ("Content-Encoding", "gzip"))
        )

    return Route("GET", "/metrics", answer)


async def _chunks(counted: Registry, families: Families | None) -> AsyncIterator[bytes]:
    for family in counted.render():
        yield family
    if families is not None:
        written = families()
        async with http_server.closed_after(written):
            async for chunk in written:
                yield chunk


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    waiting = bytearray()
    async with http_server.closed_after(chunks):
        async for chunk in chunks:
            waiting += chunk
            if len(waiting) >= _GATHERED:
                yield bytes(waiting)
                waiting.clear()
            # Other tasks run after every chunk, sent or gathered.
            await asyncio.sleep(0)
    if waiting:
        yield bytes(waiting)


async def _compressed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what gzip makes of the pieces; other tasks run after each."""
    gzip = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP)
    async with http_server.closed_after(pieces):
        async for piece in pieces:
            if packed := gzip.compress(piece):
                yield packed
            await asyncio.sleep(0)
    yield gzip.flush()


def _accepts_gzip(accepted: str) -> bool:
    """Read the header Accept-Encoding, as `gzip;q=0.5, identity`."""
    for choice in accepted.lower().split(","):
        coding, _, parameters = choice.partition(";")
        if coding.strip() == "gzip":
            weight = parameters.strip().removeprefix("q=").strip()
            return not weight or bool(weight.strip("0."))
    return False


def escape_label(value: str) -> str:
    """Escape a text for use between the quotes of a label."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value
