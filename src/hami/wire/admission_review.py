"""AdmissionReview: requests of the API server to a webhook, and the answers.

Versions v1 and v1beta1 have the same fields here; the answer has the version of the request. The
pod is kept as raw JSON, because a patch must be computed from the document that the API server
has, with all its unknown fields. Decoding the pod is a step of its own: a review with an unreadable
pod still has a uid, and so can be answered with a refusal.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hami.wire import codec, errors, objects

_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_KIND = "AdmissionReview"
_WHAT = "admission review"
#: Longer warnings may be cut by the API server, or by an HTTP proxy before the user.
_LONGEST_WARNING = 256


class _Kind(codec.Object, frozen=True):
    kind: str | None = None


class _UserInfo(codec.Object, frozen=True):
    username: str | None = None


class _Request(codec.Object, frozen=True):
    uid: str | None = None
    kind: _Kind | None = None
    operation: str | None = None
    namespace: str | None = None
    dry_run: bool | None = None
    user_info: _UserInfo | None = None
    object: msgspec.Raw = msgspec.Raw()


class _Review(codec.Object, frozen=True):
    api_version: str | None = None
    kind: str | None = None
    request: _Request | None = None


class Review(codec.Object, frozen=True):
    """One request of the API server."""

    api_version: str
    uid: str
    #: Kind of the object.
    kind: str
    operation: str
    namespace: str
    dry_run: bool
    username: str
    #: The object as the API server sent it; empty when it sent none.
    raw: bytes

    def pod(self) -> objects.Pod:
        """Decode the object."""
        what = f"{_WHAT} {errors.shorten(self.uid)}"
        if self.kind != "Pod":
            raise errors.WireError(what, self.kind, "is not the kind Pod")
        if not self.raw:
            raise errors.WireError(what, "", "carries no pod")
        return codec.decode(self.raw, objects.Pod, what=f"{what}, pod")


def decode(data: bytes) -> Review:
    """Read a request; the pod in it is not decoded yet."""
    review = codec.decode(data, _Review, what=_WHAT)
    if review.kind != _KIND:
        raise errors.WireError(_WHAT, review.kind, f"is not the kind {_KIND}")
    if review.api_version not in _VERSIONS:
        raise errors.WireError(
            _WHAT, review.api_version, f"is none of the API versions {', '.join(_VERSIONS)}"
        )
    request = review.request
    if request is None or not request.uid:
        raise errors.WireError(_WHAT, "", "has no request with a uid")
    raw = bytes(request.object)
    return Review(
        api_version=review.api_version,
        uid=request.uid,
        kind=(request.kind and request.kind.kind) or "",
        operation=request.operation or "",
        namespace=request.namespace or "",
        dry_run=request.dry_run or False,
        username=(request.user_info and request.user_info.username) or "",
        raw=b"" if raw == b"null" else raw,
    )


class _Status(codec.Object, frozen=True, omit_defaults=True):
    metadata: dict[str, str]
    code: int
    message: str = ""
    reason: str = ""


class _Response(codec.Object, frozen=True):
    uid: str
    allowed: bool
    patch: str | None = None
    patch_type: str | None = None
    status: _Status | None = None
    warnings: tuple[str, ...] = ()


class _Answer(codec.Object, frozen=True):
    kind: str
    api_version: str
    response: _Response


def answer(
    review: Review,
    *,
    allowed: bool,
    code: int = 200,
    reason: str = "",
    message: str = "",
    patch: Sequence[Mapping[str, Any]] = (),
    warnings: Sequence[str] = (),
) -> bytes:
    """Write the answer; `patch` holds the operations of a JSON Patch (RFC 6902).

    kubectl prints the warnings; API servers before 1.19 do not read them.
    """
    encoded = base64.b64encode(codec.encode(patch)).decode() if patch else None
    return codec.encode(
        _Answer(
            kind=_KIND,
            api_version=review.api_version,
            response=_Response(
                uid=review.uid,
                allowed=allowed,
                patch=encoded,
                patch_type="JSONPatch" if patch else None,
                status=_Status(metadata={}, code=code, message=message, reason=reason),
                warnings=tuple(_one_line(warning) for warning in warnings),
            ),
        )
    )


def _one_line(warning: str) -> str:
    line = " ".join(warning.split())
    return line if len(line) <= _LONGEST_WARNING else f"{line[: _LONGEST_WARNING - 1]}…"
