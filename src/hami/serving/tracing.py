"""Traces through OpenTelemetry, if a collector is configured.

A pod's steps (admission, filter, bind, prepare) run in processes that reach each other through the
API server, so the trace travels as an annotation of the pod: each span has a carrier
(`Span.carrier`, the W3C traceparent), and the next process uses it as its parent.

OpenTelemetry is optional and larger than the rest of the process: it is imported only if an
endpoint is configured. A disabled tracer gives spans that do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from hami.serving import lifetime

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

#: Annotation in which a pod carries its trace.
ANNOTATION = "hami.io/trace"

Value = str | bool | int | float

_HEADER = "traceparent"
_TRACES = "/v1/traces"


class Span(Protocol):
    """One step of a trace."""

    @property
    def carrier(self) -> str:
        """The W3C traceparent that continues this trace; empty if tracing is off."""

    def set(self, key: str, value: Value) -> None: ...

    def fail(self, message: str) -> None:
        """Mark the step as failed."""


class _NoSpan:
    carrier = ""

    def set(self, key: str, value: Value) -> None:
        pass

    def fail(self, message: str) -> None:
        pass


_NO_SPAN = _NoSpan()
_active: contextvars.ContextVar[_RealSpan | None] = contextvars.ContextVar(
    "hami_span", default=None
)


def current_trace() -> str:
    """Return the trace id of this task; empty outside of a span."""
    span = _active.get()
    return "" if span is None else span.trace_id


class Tracer:
    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("hami")

    @classmethod
    def disabled(cls) -> Tracer:
        return cls(None)

    @classmethod
    def from_endpoint(cls, endpoint: str, service_name: str) -> Tracer:
        """Send spans to a collector over OTLP/HTTP; disabled if the endpoint is empty."""
        if not endpoint:
            return cls.disabled()
        if not endpoint.startswith(("http://", "https://")):
            raise lifetime.ServingError(
                f"OTLP endpoint {endpoint!r} is no http:// or https:// address; "
                "write one, as in http://collector:4318"
            )
        try:
            from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415 - an extra of its own
        except ImportError as error:
            raise lifetime.ServingError(
                f"OTLP endpoint {endpoint!r} is set, but OpenTelemetry is not installed "
                f"({error}); run `pip install hami[tracing]`, or leave the endpoint empty"
            ) from error
        address = endpoint.rstrip("/")
        if not address.endswith(_TRACES):
            address += _TRACES
        exporter = trace_exporter.OTLPSpanExporter(endpoint=address)
        return cls.from_exporter(exporter, service_name)

    @classmethod
    def from_exporter(cls, exporter: SpanExporter, service_name: str) -> Tracer:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra of its own
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra of its own
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra of its own

        # Not the global one; `close` shuts it down.
        provider = TracerProvider(
            resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    @contextlib.contextmanager
    def span(
        self, name: str, *, parent: str = "", attributes: Mapping[str, Value] | None = None
    ) -> Iterator[Span]:
        """Measure a step; its parent is the given carrier, else this task's current span."""
        if self._tracer is None:
            yield _NO_SPAN
            return
        real = _RealSpan(self._tracer, name, parent=parent, attributes=attributes)
        token = _active.set(real)
        try:
            yield real
        except BaseException as error:
            real.failed_with(error)
            raise
        finally:
            _active.reset(token)
            real.end()

    async def close(self) -> None:
        """Send the remaining spans; takes seconds if the collector does not answer."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)


class _RealSpan:
    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        *,
        parent: str,
        attributes: Mapping[str, Value] | None,
    ) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra of its own
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra of its own

        propagator = tracecontext.TraceContextTextMapPropagator()
        around = _active.get()
        # Any user may write annotations: a parent that cannot be read begins a new trace.
        context = propagator.extract({_HEADER: parent or (around.carrier if around else "")})
        self._span = tracer.start_span(
            name,
            context=context,
            attributes=dict(attributes or {}),
        )
        carried: dict[str, str] = {}
        propagator.inject(carried, context=trace.set_span_in_context(self._span, context))
        self.carrier: str = carried.get(_HEADER, "")
        self.trace_id = trace.format_trace_id(self._span.get_span_context().trace_id)

    def set(self, key: str, value: Value) -> None:
        self._span.set_attribute(key, value)

    def fail(self, message: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra of its own

        self._span.set_status(Status(StatusCode.ERROR, message))

    def failed_with(self, error: BaseException) -> None:
        self._span.record_exception(error)
        self.fail(f"{type(error).__name__}: {error}")

    def end(self) -> None:
        self._span.end()
