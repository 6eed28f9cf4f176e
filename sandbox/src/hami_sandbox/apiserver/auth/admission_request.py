"""A write that is about to happen, as admission sees it and as webhooks are told of it."""

from __future__ import annotations

import uuid

import msgspec

from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object


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
    #: What webhooks want the client to be told; a Warning header each.
    warnings: list[str] = msgspec.field(default_factory=list)

    def told(self) -> Object:
        """Return the part `request` of an AdmissionReview, with a UID of its own."""
        kind = self._group_version_kind()
        resource = {
            "group": self.kind.group,
            "version": self.kind.version,
            "resource": self.kind.resource,
        }
        told: Object = {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
        }
        if self.subresource:
            told |= {"subResource": self.subresource, "requestSubResource": self.subresource}
        if self.name:
            told["name"] = self.name
        if self.namespace:
            told["namespace"] = self.namespace
        return told | {
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
