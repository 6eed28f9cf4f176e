"""A request: path, kind, verb, user, options and body."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hami_sandbox.apiserver.auth.users import UserInfo
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request, invalid
from hami_sandbox.apiserver.schema import protobuf, schema

Find = Callable[[str, str, str], Kind | None]

_CORE_PARTS = 2  # api, version
_GROUP_PARTS = 3  # apis, group, version
_NAME_AT, _SUB_AT = 1, 2
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACES = "namespaces"
_OF_NAMESPACE = frozenset(["status", "finalize"])


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a path. Without a resource it is a path of the server itself."""

    path: str
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    kind: Kind | None = None


def parse_target(method: str, path: str, *, watch: bool, find: Find) -> Target:
    """Return the target of a request; its kind is None where there is none."""
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > _CORE_PARTS:
        group, version, rest = "", parts[1], parts[_CORE_PARTS:]
    elif parts[0] == "apis" and len(parts) > _GROUP_PARTS:
        group, version, rest = parts[1], parts[2], parts[_GROUP_PARTS:]
    else:
        return Target(path=path, verb=method.lower())
    namespace = ""
    if rest[0] == _NAMESPACES and len(rest) > _SUB_AT and rest[_SUB_AT] not in _OF_NAMESPACE:
        namespace, rest = rest[1], rest[2:]
    resource = rest[0]
    name = rest[_NAME_AT] if len(rest) > _NAME_AT else ""
    subresource = "/".join(rest[_SUB_AT:])
    kind = find(group, version, resource)
    if kind is not None and not _fits(kind, namespace, name, subresource):
        kind = None
    return Target(
        path=path,
        verb=_verb(method, name, watch=watch),
        group=group,
        version=version,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        kind=kind,
    )


def require_kind(target: Target) -> Kind:
    """Return the kind, if its path takes the verb."""
    kind = target.kind
    if kind is None:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    sub = kind.subresource(target.subresource) if target.subresource else None
    verbs = kind.verbs if sub is None else sub.verbs
    if target.verb not in verbs or (target.verb == "create" and target.name and sub is None):
        message = "the server does not allow this method on the requested resource"
        raise Refusal(405, "MethodNotAllowed", message)
    if kind.namespaced and not target.namespace and not _across(target):
        message = "the server does not allow this method on the requested resource"
        raise Refusal(405, "MethodNotAllowed", message)
    return kind


def _fits(kind: Kind, namespace: str, name: str, subresource: str) -> bool:
    """Return whether the kind has such a path."""
    if subresource and kind.subresource(subresource) is None:
        return False
    if namespace and not kind.namespaced:
        return False
    return not (name and kind.namespaced and not namespace)


def _across(target: Target) -> bool:
    """Return whether the target may span all namespaces."""
    return target.verb in {"list", "watch", "deletecollection"}


def _verb(method: str, name: str, *, watch: bool) -> str:
    if method in {"GET", "HEAD"}:
        if watch:
            return "watch"
        return "get" if name else "list"
    if method == "DELETE" and not name:
        return "deletecollection"
    if method == "PUT" and not name:
        return "replace"  # of a collection: not served
    return _VERBS.get(method, method.lower())


_LONGEST_MANAGER = 128


class Call(msgspec.Struct, kw_only=True):
    """An authorized request."""

    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: UserInfo
    #: Warning headers of the answer.
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
        """Return the field manager: the query's, or the client's program."""
        given = self.query.get("fieldManager", "")
        if given:
            return given
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
        """Return the options of a write as admission webhooks get them."""
        options: Object = {"kind": name, "apiVersion": "meta.k8s.io/v1"}
        if "dryRun" in self.query:
            options["dryRun"] = [self.query["dryRun"]]
        for key in ("fieldManager", "fieldValidation"):
            if self.query.get(key):
                options[key] = self.query[key]
        return options

    def review(self, operation: str, **fields: Any) -> AdmissionRequest:
        """Return the write as admission gets it; `fields` override the request's own."""
        own: dict[str, Any] = {
            "kind": self.kind,
            "user": self.user,
            "namespace": self.namespace,
            "name": self.name,
            "subresource": self.subresource,
            "warnings": self.warnings,
        }
        return AdmissionRequest(operation=operation, **(own | fields))

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


_JSON = frozenset(["", "application/json", "text/json"])
_decoder = msgspec.json.Decoder()


def plain_body(call: Call) -> Object:
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


def body_of_kind(call: Call, kind: Kind) -> Object:
    """Return the body as an object of a kind, in the form in which it is kept."""
    found = plain_body(call)
    if not found:
        raise bad_request(f"the body is empty: a {kind.kind} is expected")
    for field, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        given = found.get(field) or expected
        if given != expected:
            raise bad_request(
                f"the {field} in the data ({given}) does not match the expected one ({expected})"
            )
        found[field] = expected
    try:
        unknown = schema.settle(kind, found)
    except schema.ShapeError as error:
        raise bad_request(f"{_unfit(kind)}: {error}") from None
    metadata = found.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request(f"{_unfit(kind)}: metadata is no object")
    report_unknown(call, unknown, lambda why: bad_request(f"{_unfit(kind)}: {why}"))
    return found


def report_unknown(call: Call, unknown: Sequence[str], refused: Callable[[str], Refusal]) -> None:
    """Refuse unknown fields, or warn of them, as the client asked."""
    mode = call.field_validation
    messages = [f'unknown field "{path}"' for path in unknown]
    if not messages or mode == "Ignore":
        return
    if mode == "Warn":
        call.warnings += messages
        return
    raise refused(f"strict decoding error: {', '.join(messages)}")


def _unfit(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
