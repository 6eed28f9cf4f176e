"""POST /webhook: HTTP and metrics of admission.

What admission counts, under the names of the webhook that it follows.

POST /webhook: a review in, an answer out; what is decided stands in `hami.admission.decide`.
Whatever can be answered with a verdict is: HTTP status 200, and the review's own uid and version. A
body that is no review gets 400, and a replica that does not know the cluster yet 503; the API
server then does what failurePolicy says. A dry run is decided like any other and counts nowhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from hami.admission import decide
from hami.admission.decide import AdmissionResult
from hami.admission.rules import Facts
from hami.serving import metrics, tracing
from hami.serving.http_server import MEBIBYTE, Request, Response, Route
from hami.wire import admission_review, errors
from hami.wire.admission_review import Review


class Metrics:
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

    def decided(self, decision: AdmissionResult) -> None:
        """Count what a pod that will really be created got."""
        for step in decision.steps:
            self.fallbacks.labels(step.origin, step.to).inc()


_log = logging.getLogger(__name__)

#: The API server takes objects of up to 3 MiB, and a review holds an updated one twice.
_LARGEST = 8 * MEBIBYTE
_CREATE = "CREATE"
#: Seconds between two looks whether the caches are full.
_LOOK = 0.05


class Reviewer:
    def __init__(
        self,
        facts: Facts,
        *,
        instruments: Metrics,
        tracer: tracing.Tracer,
        why_not_ready: Callable[[], str],
        patience: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._facts = facts
        self._instruments = instruments
        self._tracer = tracer
        self._why_not_ready = why_not_ready
        self._patience = patience
        self._clock = clock

    def route(self) -> Route:
        return Route("POST", "/webhook", self.answer, body_limit=_LARGEST)

    async def answer(self, request: Request) -> Response:
        begin = self._clock()
        result = "error"
        try:
            missing = self._why_not_ready()
            if missing:
                missing = await self._wait(missing)
            if missing:
                self._instruments.errors.labels("not ready").inc()
                return Response.error(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {missing}")
            result, response = self._review(request.body)
        except Exception:
            self._instruments.errors.labels("internal").inc()
            raise
        else:
            return response
        finally:
            if result:
                self._instruments.seconds.labels(result).observe(self._clock() - begin)

    async def _wait(self, missing: str) -> str:
        """Give the caches a moment; returns what is missing then."""
        end = self._clock() + self._patience
        while missing and self._clock() < end:
            await asyncio.sleep(_LOOK)
            missing = self._why_not_ready()
        return missing

    def _review(self, body: bytes) -> tuple[str, Response]:
        """Return the result, empty if it must not be counted, and the answer."""
        try:
            review = admission_review.decode(body)
        except errors.WireError as error:
            self._instruments.errors.labels("no review").inc()
            _log.warning("not a review", extra={"error": str(error)})
            remedy = "send an AdmissionReview of admission.k8s.io/v1 or v1beta1 as JSON"
            return "error", Response.error(HTTPStatus.BAD_REQUEST, f"{error}; {remedy}")
        if review.kind == "Pod" and review.operation != _CREATE:
            # Nothing that we change may be changed later.
            told = f"{review.operation or 'this'} is not CREATE: nothing to do"
            return _counted(review, "unchanged"), _written(review, AdmissionResult(message=told))
        try:
            pod = decide.namespaced(review.pod(), review.namespace)
        except errors.WireError as error:
            if not review.dry_run:
                self._instruments.errors.labels("no pod").inc()
            _log.warning("review without a pod", extra={"uid": review.uid, "error": str(error)})
            remedy = "let the rules of the webhook configuration name pods, and CREATE, only"
            told = f"{error}; {remedy}"
            return _counted(review, "error"), _written(
                review, AdmissionResult(allowed=False, code=HTTPStatus.BAD_REQUEST, message=told)
            )
        name = f"{pod.namespace}/{_name(review, pod.name)}"
        with self._tracer.span(
            "admission", parent=pod.annotation(tracing.ANNOTATION), attributes={"pod": name}
        ) as span:
            decision = decide.decide(
                pod, self._facts, trace=span.carrier, trace_key=tracing.ANNOTATION
            )
            if not decision.allowed:
                span.fail(decision.message)
        if not review.dry_run:
            self._instruments.decided(decision)
        result = _word(decision)
        _tell(review, name, decision, result)
        return _counted(review, result), _written(review, decision)


def _word(decision: AdmissionResult) -> str:
    if not decision.allowed:
        return "refused"
    return "changed" if decision.patch else "unchanged"


def _counted(review: Review, result: str) -> str:
    return "" if review.dry_run else result


def _tell(review: Review, name: str, decision: AdmissionResult, result: str) -> None:
    extra: dict[str, object] = {"pod": name, "user": review.username}
    if review.dry_run:
        extra["dry_run"] = True
    if not decision.allowed:
        _log.info("pod refused", extra=extra | {"why": decision.message})
    elif decision.steps:
        moved = [f"{step.container}: {step}" for step in decision.steps]
        _log.info("MIG profile replaced", extra=extra | {"containers": moved})
    else:
        _log.debug("pod admitted", extra=extra | {"result": result, "why": decision.message})


def _name(review: Review, name: str) -> str:
    """Return the pod's name; one that is still to be generated is told by the request."""
    return name or f"(to be named, review {review.uid})"


def _written(review: Review, decision: AdmissionResult) -> Response:
    return Response(
        body=admission_review.answer(
            review,
            allowed=decision.allowed,
            code=decision.code,
            reason=decision.reason,
            message=decision.message,
            patch=decision.patch,
            warnings=decision.warnings,
        )
    )
