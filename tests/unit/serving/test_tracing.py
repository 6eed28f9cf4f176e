"""Traces: one from admission to prepare, and nothing at all when they are off."""

from __future__ import annotations

import io
import itertools
import logging
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from hami.serving import lifetime, logs, tracing
from hami.serving.tracing import Tracer
from hami.wire import codec
from tests import tracers
from tests.tracers import Traced

traced = tracers.traced


def trace_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


async def test_steps_that_hand_on_their_carrier_are_one_trace_with_right_parents(
    traced: Traced,
) -> None:
    carried = ""
    steps = ["admission", "filter", "bind", "prepare"]
    for step in steps:  # each could be another process: only the text is handed on
        with traced.tracer.span(step, parent=carried, attributes={"pod": "ns/name"}) as span:
            span.set("step", step)
            carried = span.carrier
    spans = traced.spans()
    assert len({trace_id(span) for span in spans.values()}) == 1
    assert spans["admission"].parent is None
    for before, after in itertools.pairwise(steps):
        context, parent = spans[before].get_span_context(), spans[after].parent
        assert context is not None
        assert parent is not None
        assert parent.span_id == context.span_id
    assert spans["bind"].attributes == {"pod": "ns/name", "step": "bind"}
    assert spans["bind"].resource.attributes["service.name"] == "hami-scheduler"


async def test_a_span_within_another_is_its_child(traced: Traced) -> None:
    with traced.tracer.span("filter"), traced.tracer.span("write"):
        pass
    spans = traced.spans()
    parent, around = spans["write"].parent, spans["filter"].get_span_context()
    assert parent is not None
    assert around is not None
    assert parent.span_id == around.span_id


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-00", "00-" + "0" * 32 + "-1-01", "é"])
async def test_a_carrier_that_is_none_begins_a_new_trace(traced: Traced, parent: str) -> None:
    with traced.tracer.span("filter", parent=parent) as span:
        assert span.carrier.startswith("00-")
    assert traced.spans()["filter"].parent is None


async def test_an_exception_is_recorded_and_goes_on(traced: Traced) -> None:
    with pytest.raises(KeyError), traced.tracer.span("bind"):
        raise KeyError("gone")
    span = traced.spans()["bind"]
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "KeyError"


async def test_a_failed_step_says_why(traced: Traced) -> None:
    with traced.tracer.span("bind") as span:
        span.fail("no reservation")
    status = traced.spans()["bind"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "no reservation")


async def test_log_lines_within_a_span_carry_its_trace(traced: Traced) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs.JsonFormatter())
    log = logging.getLogger("hami.test.traced")
    log.addHandler(handler)
    with traced.tracer.span("filter") as span:
        log.warning("within")
    log.warning("after")
    log.removeHandler(handler)
    within, after = (
        codec.decode(line, dict[str, str], what="line") for line in out.getvalue().splitlines()
    )
    assert within["trace"] == span.carrier.split("-")[1]
    assert "trace" not in after


async def test_a_disabled_tracer_does_nothing() -> None:
    for tracer in (Tracer.disabled(), Tracer.from_endpoint("", "hami-scheduler")):
        with tracer.span("filter", parent="00-1-2-01", attributes={"a": 1}) as span:
            span.set("key", 1)
            span.fail("message")
            assert span.carrier == ""
            assert tracing.current_trace() == ""
        await tracer.close()


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(lifetime.ServingError, match="'collector:4317' is no http"):
        Tracer.from_endpoint("collector:4317", "hami-scheduler")


async def test_an_endpoint_gives_a_tracer_that_posts_where_collectors_listen() -> None:
    tracer = Tracer.from_endpoint("http://127.0.0.1:9/", "hami-scheduler")
    assert tracer._provider is not None
    (processor,) = tracer._provider._active_span_processor._span_processors
    exporter = processor.span_exporter  # type: ignore[attr-defined]
    assert exporter._endpoint == "http://127.0.0.1:9/v1/traces"
    await tracer.close()


def test_opentelemetry_is_not_imported_unless_tracing_is_on() -> None:
    program = """
import sys
from hami.serving import endpoints, http_server, logs, metrics, tracing
with tracing.Tracer.from_endpoint("", "x").span("filter"):
    pass
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert run(program) == "[]"


def test_a_missing_opentelemetry_is_named_with_the_remedy() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from hami.serving import lifetime, tracing
try:
    tracing.Tracer.from_endpoint("http://collector:4318", "x")
except lifetime.ServingError as error:
    print(error)
"""
    assert "run `pip install hami[tracing]`" in run(program)


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
