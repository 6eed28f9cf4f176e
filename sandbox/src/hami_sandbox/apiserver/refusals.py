"""Refusals: HTTP status, Kubernetes' reason, message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]


class Refusal(Exception):  # noqa: N818 - it names what happened to the request
    """A request is refused. `details` is the part of Status under that name."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = dict(details) if details else None

    def body(self) -> Object:
        """Return the Status object that the client gets."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details:
            status["details"] = self.details
        return status


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def not_found(resource: str, name: str, group: str = "") -> Refusal:
    qualified = f"{resource}.{group}" if group else resource
    details = _of(name, resource, group)
    return Refusal(404, "NotFound", f'{qualified} "{name}" not found', details)


def already_exists(resource: str, name: str, group: str = "") -> Refusal:
    qualified = f"{resource}.{group}" if group else resource
    details = _of(name, resource, group)
    return Refusal(409, "AlreadyExists", f'{qualified} "{name}" already exists', details)


def conflict(resource: str, name: str, why: str, group: str = "") -> Refusal:
    qualified = f"{resource}.{group}" if group else resource
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return Refusal(409, "Conflict", message, _of(name, resource, group))


def forbidden(message: str, details: Mapping[str, Any] | None = None) -> Refusal:
    return Refusal(403, "Forbidden", message, details)


def internal(why: str) -> Refusal:
    message = f"Internal error occurred: {why}"
    return Refusal(500, "InternalError", message, {"causes": [{"message": why}]})


def invalid(kind: str, name: str, causes: Sequence[Mapping[str, str]], group: str = "") -> Refusal:
    """Refuse an object; each cause has `field`, `reason` and `message`."""
    qualified = f"{kind}.{group}" if group else kind
    texts = [f"{cause['field']}: {cause['message']}" for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _of(name, kind, group) | {"causes": [dict(cause) for cause in causes]}
    return Refusal(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)


def _of(name: str, kind: str, group: str) -> Object:
    details: Object = {"name": name, "kind": kind}
    if group:
        details["group"] = group
    return details
