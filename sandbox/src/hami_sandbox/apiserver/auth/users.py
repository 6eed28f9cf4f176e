"""Authenticate: static tokens, service account tokens, anonymous.

A service account's token is a JWT (HS256) under a key of this sandbox. It names its account by
UID: a new account of the same name is another one. A token may be bound to a pod, and expires with
the pod as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from hami_sandbox.access import User
from hami_sandbox.apiserver.refusals import Object, Refusal


class View(Protocol):
    """The newest state of the store. Objects are shared: readers do not change them."""

    def find(self, group: str, resource: str, namespace: str, name: str) -> Object | None:
        """Return one object; the namespace is empty where the kind has none."""

    def all(self, group: str, resource: str, namespace: str = "") -> Iterable[Object]:
        """Return the objects of a kind, in one namespace or in all, in the order of their keys."""


ISSUER = "https://kubernetes.default.svc"
#: The audience of the API server itself.
AUDIENCE = ISSUER

_AUTHENTICATED = "system:authenticated"
_BEARER = "bearer "
_HEADER = {"alg": "HS256", "typ": "JWT"}
_PARTS = 3


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}

    def as_object(self) -> Object:
        """Return it as reviews carry it."""
        content: Object = {"username": self.username}
        if self.uid:
            content["uid"] = self.uid
        if self.groups:
            content["groups"] = list(self.groups)
        if self.extra:
            content["extra"] = {key: list(values) for key, values in self.extra.items()}
        return content


ANONYMOUS = UserInfo(username="system:anonymous", groups=("system:unauthenticated",))


class _Named(msgspec.Struct, frozen=True):
    name: str
    uid: str


class _Bound(msgspec.Struct, frozen=True):
    namespace: str
    serviceaccount: _Named
    pod: _Named | None = None
    node: _Named | None = None


class _Claims(msgspec.Struct, frozen=True):
    aud: list[str]
    exp: int
    iat: int
    iss: str
    jti: str
    nbf: int
    sub: str
    bound: _Bound = msgspec.field(name="kubernetes.io")


class Authenticator:
    def __init__(
        self,
        view: View,
        users: Sequence[User],
        *,
        key: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._view = view
        self._key = key
        self._clock = clock
        self._static = {_digest(user.token): _known(user) for user in users}

    def authenticate(self, authorization: str | None) -> UserInfo:
        """Return the user of this Authorization header; refuse an unknown one."""
        if not authorization:
            return ANONYMOUS
        if not authorization.lower().startswith(_BEARER):
            raise unauthorized()
        found = self.whose(authorization[len(_BEARER) :].strip(), (AUDIENCE,))
        if found is None:
            raise unauthorized()
        return found[0]

    def whose(self, token: str, audiences: Sequence[str]) -> tuple[UserInfo, list[str]] | None:
        """Return a token's user, and for which of these audiences it is valid."""
        static = self._static.get(_digest(token))
        if static is not None:
            # A static token is for the API server; as with kube-apiserver it has no audience.
            return (static, list(audiences)) if AUDIENCE in audiences else None
        claims = self._claims(token)
        if claims is None or not claims.nbf <= self._clock() < claims.exp:
            return None
        good = [audience for audience in audiences if audience in claims.aud]
        if not good or not self._lives(claims.bound):
            return None
        return _account(claims), good

    def issue(
        self,
        namespace: str,
        account: Object,
        *,
        audiences: Sequence[str],
        seconds: int,
        pod: Object | None = None,
    ) -> tuple[str, float]:
        """Return a new token of a service account, and when it expires."""
        now = int(self._clock())
        name = account["metadata"]["name"]
        bound: Object = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
        }
        if pod is not None:
            bound["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            node = self._view.find("", "nodes", "", pod.get("spec", {}).get("nodeName") or "")
            if node is not None:
                bound["node"] = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
        claims = {
            "aud": list(audiences) or [AUDIENCE],
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": bound,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        signed = f"{_encoded(msgspec.json.encode(_HEADER))}.{_encoded(msgspec.json.encode(claims))}"
        return f"{signed}.{_encoded(self._signature(signed))}", float(now + seconds)

    def _claims(self, token: str) -> _Claims | None:
        """Return what a token of ours says; None for any other text."""
        parts = token.split(".")
        if len(parts) != _PARTS:
            return None
        signed, _, signature = token.rpartition(".")
        try:
            if not hmac.compare_digest(_decoded(signature), self._signature(signed)):
                return None
            return msgspec.json.decode(_decoded(parts[1]), type=_Claims)
        except (binascii.Error, ValueError):
            return None

    def _lives(self, bound: _Bound) -> bool:
        """Return whether what the token is bound to is still there."""
        account = bound.serviceaccount
        found = self._view.find("", "serviceaccounts", bound.namespace, account.name)
        if not _is(found, account.uid):
            return False
        pod = bound.pod
        return pod is None or _is(self._view.find("", "pods", bound.namespace, pod.name), pod.uid)

    def _signature(self, signed: str) -> bytes:
        return hmac.digest(self._key, signed.encode(), "sha256")


def signing_key(secret: bytes) -> bytes:
    """Return the key of service accounts' tokens out of a secret of the sandbox."""
    return hmac.digest(secret, b"tokens of service accounts", "sha256")


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def service_account_groups(namespace: str) -> tuple[str, ...]:
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED)


def _known(user: User) -> UserInfo:
    groups = tuple(dict.fromkeys((*user.groups, _AUTHENTICATED)))
    return UserInfo(username=user.user, uid=user.uid, groups=groups)


def _account(claims: _Claims) -> UserInfo:
    bound = claims.bound
    extra = {"authentication.kubernetes.io/credential-id": (f"JTI={claims.jti}",)}
    for kind, named in (("node", bound.node), ("pod", bound.pod)):
        if named is not None:
            extra[f"authentication.kubernetes.io/{kind}-name"] = (named.name,)
            extra[f"authentication.kubernetes.io/{kind}-uid"] = (named.uid,)
    return UserInfo(
        username=claims.sub,
        uid=bound.serviceaccount.uid,
        groups=service_account_groups(bound.namespace),
        extra=extra,
    )


def _is(found: Object | None, uid: str) -> bool:
    return found is not None and found["metadata"]["uid"] == uid


def _digest(token: str) -> bytes:
    # Looked up by digest: the time of a comparison reveals nothing about the token.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    decoded: Any = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    return bytes(decoded)
