"""One request to the API, understood: who wants to do what with which objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hami_sandbox.apiserver.auth.admission_request import AdmissionRequest
from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, invalid
from hami_sandbox.apiserver.routes import Target

_LONGEST_MANAGER = 128


class Call(msgspec.Struct, kw_only=True):
    """A request that may be answered."""

    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: UserInfo
    #: What the client is told besides the answer.
    warnings: list[str] = msgspec.field(default_factory=list)

    @property
    def kind(self) -> Kind:
        assert self.target.kind is not None
        return self.target.kind

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def subresource(self) -> str:
        return self.target.subresource

    @property
    def content_type(self) -> str:
        """Return the media type of the body without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def manager(self) -> str:
        """Return who owns what is written: as told, or the client's program."""
        told = self.query.get("fieldManager", "")
        if told:
            return told
        return self.headers.get("User-Agent", "").partition("/")[0][:_LONGEST_MANAGER] or "unknown"

    @property
    def field_validation(self) -> str:
        """Return what becomes of unknown fields: Ignore, Warn or Strict."""
        asked = self.query.get("fieldValidation", "")
        if asked not in {"", "Ignore", "Warn", "Strict"}:
            message = f'Unsupported value: "{asked}": supported values: "Ignore", "Warn", "Strict"'
            raise self._bad_option("fieldValidation", "FieldValueNotSupported", message)
        return asked or "Warn"

    def dry_run(self, options: Object | None = None) -> bool:
        """Return whether nothing shall be stored; `options` are those in a body."""
        asked: list[str] = list((options or {}).get("dryRun") or ())
        if "dryRun" in self.query:
            asked.append(self.query["dryRun"])
        for value in asked:
            if value != "All":
                message = f'Unsupported value: "{value}": supported values: "All"'
                raise self._bad_option("dryRun", "FieldValueNotSupported", message)
        return bool(asked)

    def options(self, name: str) -> Object:
        """Return the options of a write as admission webhooks are told."""
        options: Object = {"kind": name, "apiVersion": "meta.k8s.io/v1"}
        if "dryRun" in self.query:
            options["dryRun"] = [self.query["dryRun"]]
        for key in ("fieldManager", "fieldValidation"):
            if self.query.get(key):
                options[key] = self.query[key]
        return options

    def review(self, operation: str, **fields: Any) -> AdmissionRequest:
        """Return the write as admission sees it; fields go before what the request itself says."""
        said: dict[str, Any] = {
            "kind": self.kind,
            "user": self.user,
            "namespace": self.namespace,
            "name": self.name,
            "subresource": self.subresource,
            "warnings": self.warnings,
        }
        return AdmissionRequest(operation=operation, **(said | fields))

    def not_found(self) -> Refusal:
        kind = self.kind
        details: Object = {"name": self.name, "kind": kind.resource}
        if kind.group:
            details["group"] = kind.group
        message = f'{kind.qualified} "{self.name}" not found'
        return Refusal(404, "NotFound", message, details)

    @staticmethod
    def _bad_option(field: str, reason: str, message: str) -> Refusal:
        causes = [{"field": field, "reason": reason, "message": message}]
        return invalid("Options", "", causes, "meta.k8s.io")
