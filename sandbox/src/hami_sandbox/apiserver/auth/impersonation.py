"""Acting as somebody else, as `kubectl --as` asks for, where the user may."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy

from hami_sandbox.apiserver.auth import roles
from hami_sandbox.apiserver.auth.authorization import Attributes, Authorizer
from hami_sandbox.apiserver.auth.users import UserInfo, service_account_groups
from hami_sandbox.apiserver.refusals import bad_request

USER, GROUP, UID = "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"

_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.k8s.io"


def acting(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], user: UserInfo, authorizer: Authorizer
) -> UserInfo:
    """Return as whom the request counts; the user himself where the headers name nobody."""
    name = headers.get(USER, "")
    groups = tuple(headers.getall(GROUP, ()))
    uid = headers.get(UID, "")
    if not name:
        if groups or uid:
            raise bad_request(
                f'requested to impersonate group or uid without a user: set the header "{USER}"'
            )
        return user
    for wish in _wishes(name, groups, uid):
        authorizer.require(user, wish)
    if name.startswith(_ACCOUNT) and not groups:
        groups = service_account_groups(name.split(":")[2])
    elif name != "system:anonymous" and roles.AUTHENTICATED not in groups:
        groups = (*groups, roles.AUTHENTICATED)
    return UserInfo(username=name, uid=uid, groups=groups)


def _wishes(name: str, groups: tuple[str, ...], uid: str) -> list[Attributes]:
    wishes = []
    if name.startswith(_ACCOUNT) and name.count(":") == _ACCOUNT.count(":") + 1:
        namespace, account = name.removeprefix(_ACCOUNT).split(":")
        wishes.append(
            Attributes(
                verb="impersonate", resource="serviceaccounts", namespace=namespace, name=account
            )
        )
    else:
        wishes.append(Attributes(verb="impersonate", resource="users", name=name))
    wishes += (Attributes(verb="impersonate", resource="groups", name=group) for group in groups)
    if uid:
        wishes.append(
            Attributes(verb="impersonate", group=_AUTHENTICATION, resource="uids", name=uid)
        )
    return wishes
