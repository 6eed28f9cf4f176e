"""A pod's trace begins at admission: written once, continued by the scheduler."""

from __future__ import annotations

from opentelemetry.trace import StatusCode

from hami.serving import tracing
from tests import tracers
from tests.tracers import Traced
from tests.unit.admission import desk, pods
from tests.unit.admission.desk import Desk, review
from tests.unit.admission.pods import MIG, Document, Door

traced = tracers.traced
SHARE = pods.pod(pods.container(gpu=1, memory=1000))


def trace_of(document: Document) -> list[str]:
    return str(document["metadata"]["annotations"][tracing.ANNOTATION]).split("-")


async def test_a_pod_with_cards_carries_its_trace(traced: Traced) -> None:
    reply = await Desk(tracer=traced.tracer).ask(review(SHARE))
    span = traced.spans()["admission"]
    context = span.get_span_context()
    assert context is not None
    through = desk.patched(SHARE, reply)
    assert trace_of(through)[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
    assert dict(span.attributes or {}) == {"pod": "default/p"}
    assert span.status.status_code is StatusCode.UNSET


async def test_a_pod_that_carries_one_keeps_it_and_continues_it(traced: Traced) -> None:
    asking = Desk(tracer=traced.tracer)
    once = desk.patched(SHARE, await asking.ask(review(SHARE)))
    reply = await asking.ask(review(once))
    assert "patch" not in reply
    parent = traced.spans()["admission"].parent
    assert parent is not None
    assert [f"{parent.trace_id:032x}", f"{parent.span_id:016x}"] == trace_of(once)[1:3]


async def test_pods_without_cards_are_not_written_on(traced: Traced) -> None:
    door = Door(nodes={"a": {f"{MIG}1g.10gb": "1"}})
    asking = Desk(door, tracer=traced.tracer)
    assert "patch" not in await asking.ask(review(pods.pod(pods.container())))
    moved = pods.pod(pods.container(mig={"3g.40gb": 1}))
    through = desk.patched(moved, await asking.ask(review(moved)))
    assert tracing.ANNOTATION not in through["metadata"]["annotations"]


async def test_a_refusal_is_a_failed_step(traced: Traced) -> None:
    refused = pods.pod(pods.container(gpu=1, privileged=True))
    await Desk(tracer=traced.tracer).ask(review(refused))
    status = traced.spans()["admission"].status
    assert status.status_code is StatusCode.ERROR
    assert "is privileged" in (status.description or "")


async def test_without_a_tracer_nothing_is_written() -> None:
    through = desk.patched(SHARE, await Desk().ask(review(SHARE)))
    assert "annotations" not in through["metadata"]
