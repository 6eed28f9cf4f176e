"""A reviewer with its metrics, and its answers decoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from prometheus_client import parser

from hami.admission.serve import Metrics, Reviewer
from hami.serving import metrics
from hami.serving.http_server import Request, Response
from hami.serving.tracing import Tracer
from tests.unit.admission import json_patch
from tests.unit.admission.pods import Document, Door

KIND = {"group": "", "version": "v1", "kind": "Pod"}


def review(pod: Any, *, version: str = "v1", **request: Any) -> Document:
    """Ask about the creation of a pod."""
    fields = {"uid": "705ab4f5", "kind": KIND, "operation": "CREATE", "namespace": "default"}
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {**fields, "object": pod, **request},
    }


class Desk:
    def __init__(
        self,
        door: Door | None = None,
        *,
        tracer: Tracer | None = None,
        why_not_ready: Callable[[], str] = lambda: "",
        **options: Any,
    ) -> None:
        self._registry = metrics.Registry()
        self.reviewer = Reviewer(
            (door or Door()).context,
            instruments=Metrics(self._registry),
            tracer=tracer or Tracer.disabled(),
            why_not_ready=why_not_ready,
            **options,
        )

    async def send(self, body: bytes) -> Response:
        request = Request("POST", "/webhook", {}, {}, body, "10.0.0.1", "test")
        return await self.reviewer.answer(request)

    async def ask(self, question: Document) -> Document:
        """Return what is answered to a review: never an HTTP error."""
        response = await self.send(json.dumps(question).encode())
        assert response.status == 200
        assert isinstance(response.body, bytes)
        answer: Document = json.loads(response.body)
        assert answer["kind"] == "AdmissionReview"
        assert answer["apiVersion"] == question["apiVersion"]
        assert answer["response"]["uid"] == question["request"]["uid"]
        reply: Document = answer["response"]
        return reply

    def text(self) -> str:
        """Return what /metrics says."""
        return b"".join(self._registry.render()).decode()

    def counted(self) -> dict[str, float]:
        """Return what admission has counted, as `name{label=value}`; of times, how many."""
        counted = {}
        for family in parser.text_string_to_metric_families(self.text()):
            for sample in family.samples:
                if sample.name.startswith("gpu_webhook_"):
                    labels = ", ".join(f"{key}={value}" for key, value in sample.labels.items())
                    counted[f"{sample.name}{{{labels}}}"] = sample.value
        parts = ("_bucket", "_sum")
        return {k: v for k, v in counted.items() if not k.partition("{")[0].endswith(parts)}


def patched(pod: Document, reply: Document) -> Document:
    """Return the pod with the patch of an answer."""
    if "patch" not in reply:
        assert "patchType" not in reply
        return pod
    assert reply["patchType"] == "JSONPatch"
    result: Document = json_patch.apply(pod, json.loads(base64.b64decode(reply["patch"])))
    return result
