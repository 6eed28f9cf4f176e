"""Names of extended resources, such as `nvidia.com/gpumem`, and their keys in a ResourceQuota.

Operators may rename every resource in device-config.yaml. A name that Kubernetes would refuse is
found here, when the file is read, and not when the first pod asks for it.
"""

from __future__ import annotations

import re

from hami.wire import errors

_LONGEST_PREFIX = 253 - len("requests.")  # Kubernetes puts `requests.` in front for quotas
_LONGEST_NAME = 63
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_QUOTA_PREFIX = "limits."
_EXAMPLE = "write for example nvidia.com/gpu"


def check(name: str, *, what: str) -> str:
    """Return `name` if Kubernetes takes it as an extended resource."""
    prefix, slash, local = name.partition("/")
    if not slash:
        rule = "has no domain before a slash"
    elif len(prefix) > _LONGEST_PREFIX:
        rule = f"has a domain of more than {_LONGEST_PREFIX} characters"
    elif not _PREFIX.fullmatch(prefix):
        rule = "has a domain that is not lower-case letters, digits, - and . in DNS form"
    elif prefix.endswith("kubernetes.io"):
        # As Kubernetes does: mykubernetes.io counts as its own, too.
        rule = "has a domain that ends in kubernetes.io, which is kept for Kubernetes itself"
    elif prefix.startswith("requests."):
        rule = "begins with requests., which is kept for quotas"
    elif len(local) > _LONGEST_NAME:
        rule = f"has more than {_LONGEST_NAME} characters after the slash"
    elif not _NAME.fullmatch(local):
        rule = "must have letters, digits, - _ . after the slash, a letter or digit at both ends"
    else:
        return name
    raise errors.WireError(what, name, rule, _EXAMPLE)


def quota_key(resource: str) -> str:
    """Return the key that limits `resource` in a ResourceQuota."""
    return _QUOTA_PREFIX + resource


def resource_of_quota_key(key: str) -> str | None:
    """Return the resource that a ResourceQuota key limits; None if it is another kind of key."""
    return key.removeprefix(_QUOTA_PREFIX) if key.startswith(_QUOTA_PREFIX) else None
