"""What admission counts, under the names of the webhook that it follows."""

from __future__ import annotations

from hami.admission.decide import Decision
from hami.serving import metrics


class Instruments:
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

    def decided(self, decision: Decision) -> None:
        """Count what a pod that will really be created got."""
        for step in decision.steps:
            self.fallbacks.labels(step.origin, step.to).inc()
