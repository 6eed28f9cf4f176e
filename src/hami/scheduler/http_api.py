"""/filter, /bind, /preempt and /explain over HTTP.

Other modules decide; this one turns their results into answers in kube-scheduler's JSON, events on
pods, log lines, spans and histograms. A request that cannot be granted is answered with status 200
and the error in the result, as the extender protocol wants it; only a body that is no request at
all gets another status.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hami.scheduler import events, explain
from hami.scheduler.assumed_pods import AssumedPods
from hami.scheduler.bind import Binder
from hami.scheduler.errors import BindRefusedError, RefusedError
from hami.scheduler.filter import Filter, Outcome
from hami.scheduler.metrics import Metrics
from hami.scheduler.preempt import Preemption
from hami.scheduler.readiness import NotReadyError, Readiness
from hami.serving import tracing
from hami.serving.http_server import Request, Response, Route
from hami.serving.watchdog import LoopWatchdog
from hami.wire import errors, extender_api, objects

_log = logging.getLogger(__name__)


class HttpApi:
    def __init__(
        self,
        *,
        filter_: Filter,
        binder: Binder,
        preemption: Preemption,
        assumed_pods: AssumedPods,
        readiness: Readiness,
        explainer: explain.Explainer,
        pod_events: events.PodEvents,
        metrics: Metrics,
        tracer: tracing.Tracer,
        watchdog: LoopWatchdog,
        budget: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._filter = filter_
        self._binder = binder
        self._preemption = preemption
        self._assumed_pods = assumed_pods
        self._readiness = readiness
        self._explainer = explainer
        self._pod_events = pod_events
        self._metrics = metrics
        self._tracer = tracer
        self._watchdog = watchdog
        #: Seconds that /bind and /explain wait for readiness.
        self._budget = budget
        self._clock = clock

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("POST", "/filter", self._filter_apart, trusted=True),
            Route("POST", "/bind", self.bind, trusted=True),
            Route("POST", "/preempt", self.preempt, trusted=True),
            Route("GET", "/explain", self.explain, trusted=True),
        )

    async def _filter_apart(self, request: Request) -> Response:
        return await self._watchdog.apart("filter", self.filter(request))

    async def filter(self, request: Request) -> Response:
        if not request.body:
            return _empty("/filter", "ExtenderArgs")
        begin = self._clock()
        result = "error"
        extra: dict[str, object] = {}
        try:
            args = extender_api.decode_args(request.body)
            extra = _extra(args.pod)
            parent = args.pod.annotation(tracing.ANNOTATION) if args.pod is not None else ""
            with self._tracer.span("filter", parent=parent) as span:
                outcome = await self._filter.filter(args)
                result = self._report(outcome, span)
        except (errors.WireError, RefusedError, NotReadyError) as error:
            _log.warning("filter refused", extra=extra | {"error": str(error)})
            if isinstance(error, RefusedError) and error.pod is not None:
                self._pod_events.filtering_failed(error.pod, str(error))
            return Response(body=extender_api.encode_filter_result(error=str(error)))
        finally:
            took = self._clock() - begin
            self._metrics.filter_seconds.labels(result).observe(took)
        return Response(body=outcome.answer)

    def _report(self, outcome: Outcome, span: tracing.Span) -> str:
        """Report an outcome to events, logs and the trace; returns its name in metrics."""
        pod, refusal = outcome.pod, outcome.refusal
        if pod is None:
            return "passed"
        self._metrics.filter_nodes.observe(outcome.asked_nodes)
        extra = _extra(pod) | {"nodes": outcome.asked_nodes}
        span.set("pod", f"{pod.namespace}/{pod.name}")
        span.set("nodes", outcome.asked_nodes)
        if refusal is not None:
            span.fail(refusal.summary)
            _log.info("no node fits", extra=extra | {"why": refusal.summary})
            if not outcome.probe:
                self._pod_events.filtering_failed(pod, refusal.message)
            return "refused"
        assert outcome.assumed is not None
        assert outcome.explanation is not None
        outcome.assumed.trace = span.carrier
        span.set("node", outcome.assumed.node)
        _log.info("placed", extra=extra | {"node": outcome.assumed.node})
        self._pod_events.filtering_succeeded(pod, outcome.explanation)
        return "placed"

    async def bind(self, request: Request) -> Response:
        if not request.body:
            return _empty("/bind", "ExtenderBindingArgs")
        begin = self._clock()
        result = "error"
        try:
            args = extender_api.decode_binding_args(request.body)
            extra = {
                "pod": args.key,
                "uid": args.pod_uid,
                "node": args.node,
            }
            assumed = self._assumed_pods.get(args.pod_uid)
            parent = assumed.trace if assumed is not None else ""
            with self._tracer.span("bind", parent=parent, attributes=extra) as span:
                await self._readiness.require(self._budget)
                await self._binder.bind(args, trace=span.carrier)
            result = "bound"
            _log.info("bound", extra=extra)
            self._pod_events.binding_succeeded(args)
            return Response(body=extender_api.encode_binding_result())
        except errors.WireError as error:
            _log.warning("bind not understood", extra={"error": str(error)})
            return Response(body=extender_api.encode_binding_result(str(error)))
        except (BindRefusedError, NotReadyError) as error:
            _log.warning("bind refused", extra=extra | {"error": str(error)})
            self._pod_events.binding_failed(args, str(error))
            return Response(body=extender_api.encode_binding_result(str(error)))
        finally:
            took = self._clock() - begin
            self._metrics.bind_seconds.labels(result).observe(took)

    async def preempt(self, request: Request) -> Response:
        if not request.body:
            return _empty("/preempt", "ExtenderPreemptionArgs")
        try:
            args = extender_api.decode_preemption_args(request.body)
        except errors.WireError as error:
            _log.warning("preemption not understood", extra={"error": str(error)})
            return Response.error(400, str(error))
        return Response(body=await self._preemption.answer(args))

    async def explain(self, request: Request) -> Response:
        try:
            await self._readiness.require(self._budget, leading=False)
        except NotReadyError as error:
            return Response.error(503, str(error))
        return await self._explainer.answer(request)


def _extra(pod: objects.Pod | None) -> dict[str, object]:
    return {} if pod is None else {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid}


def _empty(path: str, wanted: str) -> Response:
    _log.warning("empty body", extra={"path": path})
    return Response.text(400, f"{path}: the body is empty; send {wanted} as JSON")
