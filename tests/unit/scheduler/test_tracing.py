"""One trace per pod: from admission over filter and bind to the node agent."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from hami.serving import tracing
from tests import tracers
from tests.scripted_api.server import ScriptedApi
from tests.tracers import Traced
from tests.unit.scheduler import rig

traced = tracers.traced


def ids(span: ReadableSpan) -> tuple[str, str, str]:
    """Return trace, span and parent."""
    context = span.get_span_context()
    assert context is not None
    parent = f"{span.parent.span_id:016x}" if span.parent is not None else ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", parent


def carried(api: ScriptedApi) -> list[str]:
    pod = api.find("pods", "p")
    assert pod is not None
    return str(pod["metadata"]["annotations"][tracing.ANNOTATION]).split("-")


async def test_filter_and_bind_are_one_trace_which_the_binding_hands_on(traced: Traced) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, tracer=traced.tracer) as replica:
            await replica.place(rig.pod("p"))
    spans = traced.spans()
    trace, filtered, no_parent = ids(spans["filter"])
    assert no_parent == ""
    same_trace, bound, parent = ids(spans["bind"])
    assert (same_trace, parent) == (trace, filtered)
    assert carried(api)[1:3] == [trace, bound]
    assert dict(spans["filter"].attributes or {}) == {"pod": "default/p", "nodes": 1, "node": "a"}
    assert (spans["bind"].attributes or {})["node"] == "a"
    assert spans["filter"].status.status_code is StatusCode.UNSET


async def test_the_trace_that_admission_began_goes_on(traced: Traced) -> None:
    with traced.tracer.span("admission") as admission:
        carrier = admission.carrier
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, tracer=traced.tracer) as replica:
            await replica.place(rig.pod("p", annotations={tracing.ANNOTATION: carrier}))
    spans = traced.spans()
    trace, admitted, _ = ids(spans["admission"])
    assert ids(spans["filter"])[::2] == (trace, admitted)
    assert ids(spans["bind"])[0] == trace
    assert carried(api)[1] == trace


async def test_a_bind_without_a_filter_is_traced_and_handed_on_too(traced: Traced) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, tracer=traced.tracer) as replica:
            assert await replica.bind(api.put(rig.pod("p")), "a") == ""
    trace, bound, _ = ids(traced.spans()["bind"])
    assert carried(api)[1:3] == [trace, bound]


async def test_refusals_are_marked_as_failed(traced: Traced) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, tracer=traced.tracer) as replica:
            pod = api.put(rig.pod("p", memory=9000))
            await replica.filter(pod)
            assert await replica.bind(pod, "a")
    spans = traced.spans()
    for name, why in (("filter", "no node fits"), ("bind", "does not fit there now")):
        assert spans[name].status.status_code is StatusCode.ERROR
        assert why in (spans[name].status.description or "")


async def test_without_a_tracer_nothing_is_written() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("p"))
    pod = api.find("pods", "p")
    assert pod is not None
    assert tracing.ANNOTATION not in pod["metadata"]["annotations"]
