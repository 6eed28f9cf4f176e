"""Admission webhooks: mutating ones in turn, validating ones at once.

The order, reinvocation and the words of refusals are kube-apiserver's. One difference:
`matchPolicy: Equivalent` finds nothing, because each kind is served in one version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.auth import webhook_matching
from hami_sandbox.apiserver.auth.users import View
from hami_sandbox.apiserver.auth.webhook_calls import CallError, Calls, Response
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest, Webhook
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request, internal
from hami_sandbox.apiserver.schema import patches

__all__ = ["Admission", "AdmissionRequest"]

_log = logging.getLogger(__name__)

_GROUP = "admissionregistration.k8s.io"
_JSON_PATCH = "application/json-patch+json"
_LEAST_ERROR = 400


class Admission:
    def __init__(
        self, view: View, *, complete: Callable[[Kind, Object], None] | None = None
    ) -> None:
        self._view = view
        #: Gives an object its defaults, in place: after each patch, so that the next one sees them.
        self._complete = complete
        self._calls = Calls(view)

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        """Return the object as the mutating webhooks want it (None for a DELETE), or refuse."""
        #: The object after each webhook that may be called again.
        left: list[tuple[Webhook, Object | None]] = []
        for webhook in self._webhooks("mutatingwebhookconfigurations"):
            if await self._mutate(webhook, request) and _wants_again(webhook):
                left.append((webhook, request.object))  # noqa: PERF401 - in turn, one by one
        for webhook, seen in left:
            if request.object is not seen:
                await self._mutate(webhook, request)
        return request.object

    async def validate(self, request: AdmissionRequest) -> None:
        """Call the validating webhooks with the object that will be stored; refuse as they do."""
        concerned = [
            webhook
            for webhook in self._webhooks("validatingwebhookconfigurations")
            if self._concerns(webhook, request)
        ]
        if not concerned:
            return
        answers = await asyncio.gather(
            *(self._asked(webhook, request, mutating=False) for webhook in concerned),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def close(self) -> None:
        await self._calls.close()

    def _webhooks(self, resource: str) -> Iterator[Webhook]:
        # A copy: a configuration that changes meanwhile counts for the next request.
        for configuration in list(self._view.all(_GROUP, resource)):
            yield from configuration.get("webhooks") or ()

    async def _mutate(self, webhook: Webhook, request: AdmissionRequest) -> bool:
        """Call a webhook if it matches, and apply its patch; return whether it was called."""
        if not self._concerns(webhook, request):
            return False
        answer = await self._asked(webhook, request, mutating=True)
        operations = answer.operations() if answer is not None else b""
        if operations:
            self._patch(webhook, request, operations)
        return True

    def _concerns(self, webhook: Webhook, request: AdmissionRequest) -> bool:
        if not webhook_matching.concerns(webhook, request, self._view):
            return False
        try:
            return webhook_matching.conditions_hold(webhook, request)
        except webhook_matching.ConditionError as error:
            if webhook.get("failurePolicy") == "Ignore":
                return False
            raise webhook_matching.condition_refusal(request, error) from None

    async def _asked(
        self, webhook: Webhook, request: AdmissionRequest, *, mutating: bool
    ) -> Response | None:
        """Return the answer of a webhook; None if it fails and failurePolicy is Ignore."""
        name = webhook["name"]
        if request.dry_run and webhook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            answer = await self._calls.ask(webhook, request.as_object(), mutating=mutating)
        except CallError as error:
            message = f'failed calling webhook "{name}": {error}'
            if webhook.get("failurePolicy") == "Ignore":
                _log.warning(
                    "webhook call failed, ignored by its failurePolicy", extra={"error": message}
                )
                return None
            raise internal(message) from error
        request.warnings += answer.warnings or ()
        if not answer.allowed:
            raise _denial(name, answer.status or {})
        return answer

    def _patch(self, webhook: Webhook, request: AdmissionRequest, operations: bytes) -> None:
        if request.object is None:
            raise internal(
                f'admission webhook "{webhook["name"]}" attempted to modify the object, '
                "which is not supported for this operation"
            )
        shown = request.object
        kind = kinds.of(shown.get("apiVersion", ""), shown.get("kind", "")) or request.kind
        try:
            made = patches.patched(kind, shown, _JSON_PATCH, operations)
        except Refusal as error:
            raise internal(error.message) from error
        if self._complete is not None and not request.subresource:
            self._complete(kind, made)
        if made != shown:
            request.object = made


def _wants_again(webhook: Webhook) -> bool:
    return webhook.get("reinvocationPolicy") == "IfNeeded"


def _denial(name: str, status: Object) -> Refusal:
    denied = f'admission webhook "{name}" denied the request'
    words = status.get("message") or status.get("reason")
    code = status.get("code") or 0
    return Refusal(
        max(code, _LEAST_ERROR),
        status.get("reason") or "",
        f"{denied}: {words}" if words else f"{denied} without explanation",
        status.get("details"),
    )
