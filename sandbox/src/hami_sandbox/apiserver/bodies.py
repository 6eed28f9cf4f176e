"""Bodies of requests: bytes to an object of the kind that is expected, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hami_sandbox.apiserver.call import Call
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request
from hami_sandbox.apiserver.schema import protobuf, schema

_JSON = frozenset(["", "application/json", "text/json"])
_decoder = msgspec.json.Decoder()


def plain(call: Call) -> Object:
    """Return the body as a JSON object; an empty one if there is none."""
    if call.content_type == protobuf.MEDIA_TYPE:
        try:
            return protobuf.decode(call.body) if call.body else {}
        except protobuf.ProtobufError as error:
            raise bad_request(f"the body cannot be read: {error}") from None
    if call.content_type not in _JSON:
        message = (
            f'the body of the request was in an unknown format ("{call.content_type}") - '
            "accepted media types include: application/json, application/vnd.kubernetes.protobuf"
        )
        raise Refusal(415, "UnsupportedMediaType", message)
    if not call.body.strip():
        return {}
    try:
        found = _decoder.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"couldn't get version/kind; json parse error: {error}"
        raise bad_request(message) from None
    if not isinstance(found, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is no object")
    return found


def of_kind(call: Call, kind: Kind) -> Object:
    """Return the body as an object of a kind, in the form in which it is kept."""
    found = plain(call)
    if not found:
        raise bad_request(f"the body is empty: a {kind.kind} is expected")
    for field, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        told = found.get(field) or expected
        if told != expected:
            raise bad_request(
                f"the {field} in the data ({told}) does not match the expected one ({expected})"
            )
        found[field] = expected
    try:
        unknown = schema.settle(kind, found)
    except schema.ShapeError as error:
        raise bad_request(f"{_unfit(kind)}: {error}") from None
    metadata = found.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request(f"{_unfit(kind)}: metadata is no object")
    tell_unknown(call, unknown, lambda why: bad_request(f"{_unfit(kind)}: {why}"))
    return found


def tell_unknown(call: Call, unknown: Sequence[str], refused: Callable[[str], Refusal]) -> None:
    """Refuse unknown fields, or warn of them, as the client asked."""
    mode = call.field_validation
    told = [f'unknown field "{path}"' for path in unknown]
    if not told or mode == "Ignore":
        return
    if mode == "Warn":
        call.warnings += told
        return
    raise refused(f"strict decoding error: {', '.join(told)}")


def _unfit(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
