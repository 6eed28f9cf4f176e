"""Reviews of tokens and access, and token requests: answered, not stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hami_sandbox import api_objects
from hami_sandbox.apiserver.auth.authorization import Attributes, Authorizer
from hami_sandbox.apiserver.auth.users import AUDIENCE, Authenticator, UserInfo, View
from hami_sandbox.apiserver.refusals import Object, invalid, not_found

_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
_DEFAULT_LIFE, _SHORTEST_LIFE = 3600, 600


class Reviews:
    def __init__(self, view: View, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self._view = view
        self._authenticator = authenticator
        self._authorizer = authorizer

    def answer(self, resource: str, body: Object, *, user: UserInfo, namespace: str = "") -> Object:
        """Answer a POST to one of the resources that are questions."""
        spec = body.get("spec") or {}
        match resource:
            case "selfsubjectreviews":
                status: Object = {"userInfo": user.as_object()}
                return _answered(body, _AUTHENTICATION, "SelfSubjectReview", status)
            case "tokenreviews":
                return _answered(body, _AUTHENTICATION, "TokenReview", self._whose(spec))
            case "selfsubjectaccessreviews":
                status = self._may(user, spec, "SelfSubjectAccessReview")
                return _answered(body, _AUTHORIZATION, "SelfSubjectAccessReview", status)
            case "subjectaccessreviews":
                status = self._may(_subject(spec), spec, "SubjectAccessReview")
                return _answered(body, _AUTHORIZATION, "SubjectAccessReview", status)
            case "localsubjectaccessreviews":
                status = self._may(_subject(spec), spec, "LocalSubjectAccessReview")
                made = _answered(body, _AUTHORIZATION, "LocalSubjectAccessReview", status)
                made["metadata"]["namespace"] = namespace
                return made
            case "selfsubjectrulesreviews":
                status = self._rules(user, spec.get("namespace") or "")
                return _answered(body, _AUTHORIZATION, "SelfSubjectRulesReview", status)
        raise not_found(resource, "")

    def token(self, namespace: str, account: str, body: Object) -> Object:
        """Answer POST serviceaccounts/NAME/token."""
        found = self._view.find("", "serviceaccounts", namespace, account)
        if found is None:
            raise not_found("serviceaccounts", account)
        spec = dict(body.get("spec") or {})
        seconds = spec.get("expirationSeconds") or _DEFAULT_LIFE
        if seconds < _SHORTEST_LIFE:
            message = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            cause = {
                "reason": "FieldValueInvalid",
                "field": "spec.expirationSeconds",
                "message": message,
            }
            raise invalid("TokenRequest", "", [cause], _AUTHENTICATION)
        audiences = spec.get("audiences") or [AUDIENCE]
        token, expires = self._authenticator.issue(
            namespace,
            found,
            audiences=audiences,
            seconds=seconds,
            pod=self._bound_pod(namespace, spec.get("boundObjectRef")),
        )
        spec |= {"audiences": audiences, "expirationSeconds": seconds}
        spec.setdefault("boundObjectRef", None)
        status = {"token": token, "expirationTimestamp": api_objects.stamp_at(expires)}
        made = _answered(body, _AUTHENTICATION, "TokenRequest", status)
        made["spec"] = spec
        made["metadata"] |= {
            "name": account,
            "namespace": namespace,
            "creationTimestamp": api_objects.stamp_at(expires - seconds),
        }
        return made

    def _bound_pod(self, namespace: str, reference: Mapping[str, Any] | None) -> Object | None:
        if not reference:
            return None
        if reference.get("kind") != "Pod":
            message = (
                f"Invalid value: {reference.get('kind')!r}: the sandbox binds tokens to pods only"
            )
            field = "spec.boundObjectRef.kind"
            cause = {"reason": "FieldValueInvalid", "field": field, "message": message}
            raise invalid("TokenRequest", "", [cause], _AUTHENTICATION)
        name = reference.get("name") or ""
        pod = self._view.find("", "pods", namespace, name)
        if pod is None or reference.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise not_found("pods", name)
        return pod

    def _whose(self, spec: Object) -> Object:
        audiences = spec.get("audiences") or [AUDIENCE]
        found = self._authenticator.whose(spec.get("token") or "", audiences)
        if found is None:
            return {"user": {}, "error": "invalid bearer token"}
        user, good = found
        return {"authenticated": True, "user": user.as_object(), "audiences": good}

    def _may(self, user: UserInfo, spec: Object, kind: str) -> Object:
        why = self._authorizer.allows(user, _attributes(spec, kind))
        if why is None:
            return {"allowed": False}
        return {"allowed": True, "reason": why} if why else {"allowed": True}

    def _rules(self, user: UserInfo, namespace: str) -> Object:
        rules = [rule for _, rule in self._authorizer.rules(user, namespace)]
        return {
            "resourceRules": [rule for rule in rules if rule.get("resources")],
            "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
            "incomplete": False,
        }


def _answered(body: Object, group: str, kind: str, status: Object) -> Object:
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": dict(body.get("metadata") or {}),
        "spec": body.get("spec") or {},
        "status": status,
    }


def _attributes(spec: Object, kind: str) -> Attributes:
    path = spec.get("nonResourceAttributes")
    if path:
        return Attributes(verb=path.get("verb") or "", path=path.get("path") or "")
    asked = spec.get("resourceAttributes")
    if not asked:
        message = (
            "Invalid value: exactly one of nonResourceAttributes or resourceAttributes "
            "must be specified"
        )
        cause = {
            "reason": "FieldValueInvalid",
            "field": "spec.resourceAttributes",
            "message": message,
        }
        raise invalid(kind, "", [cause], _AUTHORIZATION)
    known = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return Attributes(**{"verb": ""} | {key: asked.get(key) or "" for key in known})


def _subject(spec: Object) -> UserInfo:
    extra: Mapping[str, Iterable[str]] = spec.get("extra") or {}
    return UserInfo(
        username=spec.get("user") or "",
        uid=spec.get("uid") or "",
        groups=tuple(spec.get("groups") or ()),
        extra={key: tuple(values) for key, values in extra.items()},
    )
