"""Match a write to webhooks: rules, selectors, conditions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.apiserver.auth import cel
from hami_sandbox.apiserver.auth.authorization import has
from hami_sandbox.apiserver.auth.users import UserInfo, View
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, forbidden, not_found


class AdmissionRequest(msgspec.Struct, kw_only=True):
    """`object` is None for DELETE, `old_object` for CREATE.

    What is sent names its kind by its own apiVersion and kind: a Binding for pods/binding.
    """

    #: The resource in the path.
    kind: Kind
    #: CREATE, UPDATE or DELETE.
    operation: str
    user: UserInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    object: Object | None = None
    old_object: Object | None = None
    #: CreateOptions, UpdateOptions, PatchOptions or DeleteOptions, with apiVersion and kind.
    options: Object | None = None
    dry_run: bool = False
    #: Warnings of webhooks for the client; a Warning header each.
    warnings: list[str] = msgspec.field(default_factory=list)

    def as_object(self) -> Object:
        """Return the part `request` of an AdmissionReview, with a UID of its own."""
        kind = self._group_version_kind()
        resource = {
            "group": self.kind.group,
            "version": self.kind.version,
            "resource": self.kind.resource,
        }
        content: Object = {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
        }
        if self.subresource:
            content |= {"subResource": self.subresource, "requestSubResource": self.subresource}
        if self.name:
            content["name"] = self.name
        if self.namespace:
            content["namespace"] = self.namespace
        return content | {
            "operation": self.operation,
            "userInfo": self.user.as_object(),
            "object": self.object,
            "oldObject": self.old_object,
            "dryRun": self.dry_run,
            "options": self.options,
        }

    def _group_version_kind(self) -> Object:
        shown = self.object or self.old_object or {}
        group, _, version = shown.get("apiVersion", self.kind.api_version).rpartition("/")
        return {"group": group, "version": version, "kind": shown.get("kind", self.kind.kind)}


Webhook = Mapping[str, Any]

_ADMISSION = "admissionregistration.k8s.io"


class ConditionError(Exception):
    """Conditions could not be evaluated, and none of them is false."""


def concerns(webhook: Webhook, request: AdmissionRequest, view: View) -> bool:
    """Return whether rules and selectors of the webhook cover the request."""
    if request.kind.group == _ADMISSION:
        return False  # a webhook must not be able to keep itself in place
    if not any(_covers(rule, request) for rule in webhook.get("rules") or ()):
        return False
    return _in_namespace(webhook.get("namespaceSelector"), request, view) and _selected(
        webhook.get("objectSelector"), request
    )


def conditions_hold(webhook: Webhook, request: AdmissionRequest) -> bool:
    """Return whether all match conditions are true: one that is false beats any that fail."""
    conditions: Sequence[Webhook] = webhook.get("matchConditions") or ()
    if not conditions:
        return True
    variables = {
        "object": request.object,
        "oldObject": request.old_object,
        "request": request.as_object(),
    }
    failed: list[str] = []
    for condition in conditions:
        try:
            value = cel.compiled(condition["expression"])(**variables)
        except cel.CelError as error:
            failed.append(f"expression '{condition['expression']}' resulted in error: {error}")
            continue
        if value is False:
            return False
        if value is not True:
            failed.append(f"cel expression '{condition['expression']}' does not give a bool")
    if failed:
        raise ConditionError(failed[0] if len(failed) == 1 else f"[{', '.join(failed)}]")
    return True


def condition_refusal(request: AdmissionRequest, error: ConditionError) -> Refusal:
    """Return the refusal for a failed condition under failurePolicy Fail."""
    kind = request.kind
    named = f'{kind.qualified} "{request.name}"' if request.name else kind.qualified
    details: Object = {"kind": kind.resource}
    if request.name:
        details["name"] = request.name
    if kind.group:
        details["group"] = kind.group
    return forbidden(f"{named} is forbidden: {error}", details)


def _covers(rule: Webhook, request: AdmissionRequest) -> bool:
    kind = request.kind
    scope = rule.get("scope") or "*"
    # A Namespace object counts as having no namespace, whatever the path looks like.
    if scope != "*" and (scope == "Namespaced") != kind.namespaced:
        return False
    return (
        has(rule.get("operations"), request.operation)
        and has(rule.get("apiGroups"), kind.group)
        and has(rule.get("apiVersions"), kind.version)
        and any(
            _names(pattern, kind.resource, request.subresource)
            for pattern in rule.get("resources") or ()
        )
    )


def _names(pattern: str, resource: str, subresource: str) -> bool:
    """Return whether `pods`, `pods/*`, `*/status`, `*` or `*/*` covers a path."""
    wanted, _, part = pattern.partition("/")
    return wanted in {"*", resource} and part in {"*", subresource}


def _in_namespace(selector: Webhook | None, request: AdmissionRequest, view: View) -> bool:
    if not selector:
        return True
    if (request.kind.group, request.kind.resource) == ("", "namespaces"):
        shown = request.old_object if request.operation == "DELETE" else request.object
        found = shown
    elif not request.namespace:
        return True
    else:
        found = view.find("", "namespaces", "", request.namespace)
    if found is None:
        raise not_found("namespaces", request.namespace)
    return api_objects.matches(selector, found["metadata"].get("labels"))


def _selected(selector: Webhook | None, request: AdmissionRequest) -> bool:
    if not selector:
        return True
    return any(
        api_objects.matches(selector, (shown.get("metadata") or {}).get("labels"))
        for shown in (request.object, request.old_object)
        if shown is not None
    )
