"""POST /webhook: HTTP and metrics of admission.

A review comes in, `hami.admission.decide` gives the admission result, `hami.admission.json_patch`
the patch, and the answer goes out with HTTP status 200 and the review's own uid and version. A body
that is no review gets 400. A replica that has not read the cluster yet answers 503 after a short
wait; the API server then does what failurePolicy says. A dry run gets the same answer as any other
review and is not counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from hami.admission import decide, json_patch
from hami.admission.decide import AdmissionResult
from hami.admission.json_patch import Operation
from hami.admission.settings import Context
from hami.serving import metrics, tracing
from hami.serving.http_server import MEBIBYTE, Request, Response, Route
from hami.wire import admission_review, errors
from hami.wire.admission_review import Review

_log = logging.getLogger(__name__)

#: The API server takes objects of up to 3 MiB, and a review holds an updated one twice.
_LARGEST = 8 * MEBIBYTE
_CREATE = "CREATE"
#: Seconds between two checks while the cluster is being read.
_CHECK_INTERVAL = 0.05


class Metrics:
    """Counters of admission, under the names of the MIG webhook that it is compatible with."""

    def __init__(self, registry: metrics.Registry) -> None:
        self.fallbacks = registry.counter(
            "gpu_webhook_fallback",
            "MIG profiles replaced because no node could give them, by container.",
            ("from", "to"),
        )
        self.seconds = registry.histogram(
            "gpu_webhook_response_time_seconds",
            "Time to answer a review, by result: changed, unchanged, refused, error.",
            ("result",),
        )
        self.errors = registry.counter(
            "gpu_webhook_errors",
            "Reviews that could not be answered, by what was wrong.",
            ("kind",),
        )

    def count_fallbacks(self, result: AdmissionResult) -> None:
        """Count the replaced profiles of a pod that is created, not of a dry run."""
        for step in result.steps:
            self.fallbacks.labels(step.origin, step.to).inc()


class Reviewer:
    """Answers reviews; `patience` is the longest wait in seconds for the cluster to be read."""

    def __init__(
        self,
        context: Context,
        *,
        instruments: Metrics,
        tracer: tracing.Tracer,
        why_not_ready: Callable[[], str],
        patience: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context = context
        self._instruments = instruments
        self._tracer = tracer
        self._why_not_ready = why_not_ready
        self._patience = patience
        self._clock = clock

    def route(self) -> Route:
        return Route("POST", "/webhook", self.answer, body_limit=_LARGEST)

    async def answer(self, request: Request) -> Response:
        """Answer a review and measure how long it took; a dry run is not measured."""
        begin = self._clock()
        outcome = "error"
        try:
            missing = self._why_not_ready()
            if missing:
                missing = await self._wait(missing)
            if missing:
                self._instruments.errors.labels("not ready").inc()
                return Response.error(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {missing}")
            outcome, response = self._review(request.body)
        except Exception:
            self._instruments.errors.labels("internal").inc()
            raise
        else:
            return response
        finally:
            if outcome:
                self._instruments.seconds.labels(outcome).observe(self._clock() - begin)

    async def _wait(self, missing: str) -> str:
        """Wait for the cluster to be read; returns what is still missing."""
        end = self._clock() + self._patience
        while missing and self._clock() < end:
            await asyncio.sleep(_CHECK_INTERVAL)
            missing = self._why_not_ready()
        return missing

    def _review(self, body: bytes) -> tuple[str, Response]:
        """Return the label of the metrics, empty if not counted, and the response."""
        try:
            review = admission_review.decode(body)
        except errors.WireError as error:
            self._instruments.errors.labels("no review").inc()
            _log.warning("not a review", extra={"error": str(error)})
            remedy = "send an AdmissionReview of admission.k8s.io/v1 or v1beta1 as JSON"
            return "error", Response.error(HTTPStatus.BAD_REQUEST, f"{error}; {remedy}")
        if review.kind == "Pod" and review.operation != _CREATE:
            # Of an existing pod, no field that admission writes may change.
            message = f"{review.operation or 'this'} is not CREATE: nothing to do"
            return _label(review, "unchanged"), _response(review, AdmissionResult(message=message))
        try:
            pod = decide.namespaced(review.pod(), review.namespace)
        except errors.WireError as error:
            if not review.dry_run:
                self._instruments.errors.labels("no pod").inc()
            _log.warning("review without a pod", extra={"uid": review.uid, "error": str(error)})
            remedy = "let the rules of the webhook configuration name pods, and CREATE, only"
            refused = AdmissionResult(
                allowed=False, code=HTTPStatus.BAD_REQUEST, message=f"{error}; {remedy}"
            )
            return _label(review, "error"), _response(review, refused)
        name = f"{pod.namespace}/{_name(review, pod.name)}"
        with self._tracer.span(
            "admission", parent=pod.annotation(tracing.ANNOTATION), attributes={"pod": name}
        ) as span:
            result = decide.decide(
                pod, self._context, trace=span.carrier, trace_key=tracing.ANNOTATION
            )
            if not result.allowed:
                span.fail(result.message)
        patch = json_patch.between(pod, result.pod or pod)
        if not review.dry_run:
            self._instruments.count_fallbacks(result)
        outcome = _outcome(result, patch)
        _log_result(review, name, result, outcome)
        return _label(review, outcome), _response(review, result, patch)


def _outcome(result: AdmissionResult, patch: tuple[Operation, ...]) -> str:
    if not result.allowed:
        return "refused"
    return "changed" if patch else "unchanged"


def _label(review: Review, outcome: str) -> str:
    return "" if review.dry_run else outcome


def _log_result(review: Review, name: str, result: AdmissionResult, outcome: str) -> None:
    extra: dict[str, object] = {"pod": name, "user": review.username}
    if review.dry_run:
        extra["dry_run"] = True
    if not result.allowed:
        _log.info("pod refused", extra=extra | {"why": result.message})
    elif result.steps:
        moved = [f"{step.container}: {step}" for step in result.steps]
        _log.info("MIG profile replaced", extra=extra | {"containers": moved})
    elif result.warnings:
        _log.info("pod admitted with warnings", extra=extra | {"warnings": list(result.warnings)})
    else:
        _log.debug("pod admitted", extra=extra | {"result": outcome, "why": result.message})


def _name(review: Review, name: str) -> str:
    """Return the pod's name, or the review's uid where the API server has yet to generate one."""
    return name or f"(to be named, review {review.uid})"


def _response(
    review: Review, result: AdmissionResult, patch: tuple[Operation, ...] = ()
) -> Response:
    return Response(
        body=admission_review.answer(
            review,
            allowed=result.allowed,
            code=result.code,
            reason=result.reason,
            message=result.message,
            patch=patch,
            warnings=result.warnings,
        )
    )
