"""A tracer whose spans stay in memory, as a fixture.

A test module takes it by `traced = tracers.traced`. It is in no conftest.py: most tests need no
OpenTelemetry, and whether it is imported unasked is itself under test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hami.serving.tracing import Tracer


class Traced:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = Tracer.from_exporter(self._exporter, "hami-scheduler")

    def spans(self) -> dict[str, ReadableSpan]:
        assert self.tracer._provider is not None
        self.tracer._provider.force_flush()
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest_asyncio.fixture
async def traced() -> AsyncIterator[Traced]:
    made = Traced()
    yield made
    await made.tracer.close()
