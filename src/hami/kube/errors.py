# ruff: noqa: N818 - the names are what happened; "Error" after each would add nothing
"""Errors of requests to the API server, with what to do about them.

A caller reads three things from the error itself: may the same request be sent again (`retry`),
when (`retry_after`), and may a write have happened although no good answer came
(`outcome_unknown`). Everything that `hami.kube` raises for reasons outside of this process is a
`KubeError`. Server messages are cut: they can contain whole objects.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from hami.wire import codec
from hami.wire import errors as wire_errors

_SHOWN = 256


class Retry(enum.Enum):
    """Whether the same request can succeed later."""

    #: Not before a change of the request, the credentials or the rights.
    NEVER = enum.auto()
    #: Yes, unchanged.
    AGAIN = enum.auto()
    #: Only after reading the object (or the list) again.
    AFRESH = enum.auto()


class KubeError(Exception):
    """Base of all."""

    retry: Retry = Retry.NEVER
    #: Whether a write may have happened nevertheless.
    outcome_unknown: bool = False
    #: Seconds after which the server accepts the request again, where it named a time.
    retry_after: float | None = None


class AccessError(KubeError):
    """The address of the server, or our credentials, cannot be used."""

    def __init__(self, source: str, rule: str, remedy: str, *, retry: Retry = Retry.NEVER) -> None:
        super().__init__(f"{source}: {rule}; {remedy}")
        #: The file or program, as the user knows it.
        self.source = source
        self.rule = rule
        self.remedy = remedy
        self.retry = retry


class Unreachable(KubeError):
    """No complete answer came: refused, reset, timed out, TLS."""

    retry = Retry.AGAIN

    def __init__(self, message: str, *, outcome_unknown: bool = True) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class StreamBroken(KubeError):
    """A stream sent something that is no line of JSON, or a line beyond all measure."""

    retry = Retry.AFRESH


class ApiError(KubeError):
    """The server answered, and refused."""

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: float | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = cut(message)
        self.retry_after = retry_after
        super().__init__(f"{status}{reason and ' '}{reason}: {self.message}")


class Invalid(ApiError):
    """400, 422: the request itself is wrong."""


class Unauthorized(ApiError):
    """401: the server does not know us."""


class Forbidden(ApiError):
    """403: the server knows us and does not allow this."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object is not what the request took it for, or is there already."""

    retry = Retry.AFRESH

    @property
    def exists(self) -> bool:
        """Whether a create found the name taken, rather than a version outdated."""
        return self.reason == "AlreadyExists"


class Gone(ApiError):
    """410: the server has forgotten the version that was asked for."""

    retry = Retry.AFRESH


class TooManyRequests(ApiError):
    """429: not done, for now."""

    retry = Retry.AGAIN


class ServerFault(ApiError):
    """5xx: it failed, perhaps after it had written."""

    retry = Retry.AGAIN

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(status, reason, message, retry_after=retry_after)
        # A server that sheds load names a time to come back, and has not begun.
        self.outcome_unknown = not (status == _UNAVAILABLE and retry_after is not None)


_UNAVAILABLE = 503
_SERVER_FAULTS = 500
_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
#: Reasons that count whatever the status beside them.
_BY_REASON: Mapping[str, type[ApiError]] = {"Expired": Gone, "Gone": Gone}


class _Details(codec.Object, frozen=True):
    retry_after_seconds: int | None = None


class Status(codec.Object, frozen=True):
    """The server's answer in place of an object."""

    kind: str | None = None
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


def cut(message: str) -> str:
    return message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"


def of_answer(status: int, body: bytes, *, retry_after: str | None = None) -> ApiError:
    """Make the error of an HTTP answer; the body may be a Status, or a proxy's web page."""
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    try:
        answer = codec.decode(body, Status, what="answer")
    except wire_errors.WireError:
        answer = Status()
    if answer.kind != "Status":
        answer = Status(message=body[: _SHOWN + 1].decode(errors="replace"))
    return _make(status, answer, seconds)


def of_event(body: bytes) -> ApiError:
    """Make the error of an ERROR event in a watch, whose object is a Status."""
    try:
        answer = codec.decode(body, Status, what="ERROR event")
    except wire_errors.WireError as error:
        answer = Status(message=str(error))
    return _make(answer.code or _SERVER_FAULTS, answer, None)


def _make(status: int, answer: Status, retry_after: float | None) -> ApiError:
    reason = answer.reason or ""
    if retry_after is None and answer.details and answer.details.retry_after_seconds is not None:
        retry_after = float(answer.details.retry_after_seconds)
    fallback = ServerFault if status >= _SERVER_FAULTS else ApiError
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, fallback)
    return kind(status, reason, answer.message or "", retry_after=retry_after)
