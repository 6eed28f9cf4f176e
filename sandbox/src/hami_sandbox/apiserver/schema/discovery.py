"""Discovery documents: the kinds that are served, old and aggregated form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object


def core_versions() -> Object:
    """Return the answer of /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    }


def groups(kinds: Sequence[Kind]) -> Object:
    """Return the answer of /apis."""
    names = dict.fromkeys(kind.group for kind in kinds if kind.group)
    found = [_group(kinds, name) for name in names]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def group(kinds: Sequence[Kind], name: str) -> Object | None:
    """Return the answer of /apis/NAME; None where there is no such group."""
    if not name or not any(kind.group == name for kind in kinds):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resources(kinds: Sequence[Kind], group_name: str, version: str) -> Object | None:
    """Return the answer of /api/v1 or /apis/GROUP/VERSION; None where there is none."""
    found = [kind for kind in kinds if (kind.group, kind.version) == (group_name, version)]
    if not found:
        return None
    listed = [resource for kind in found for resource in _resources(kind)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": listed,
    }


def aggregated(kinds: Sequence[Kind], *, core: bool, version: str = "v2") -> tuple[Object, str]:
    """Return the APIGroupDiscoveryList of /api (core) or /apis, and its ETag (with quotes)."""
    names = dict.fromkeys(kind.group for kind in kinds if (kind.group == "") == core)
    document: Object = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [_aggregated_group(kinds, name) for name in names],
    }
    digest = hashlib.sha256(json.dumps(document).encode()).hexdigest().upper()
    return document, f'"{digest}"'


def _versions(kinds: Sequence[Kind], name: str) -> list[str]:
    return list(dict.fromkeys(kind.version for kind in kinds if kind.group == name))


def _group(kinds: Sequence[Kind], name: str) -> Object:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in _versions(kinds, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _other_names(kind: Kind) -> Object:
    """Return the fields for other names of a kind; one without a value is left out."""
    names = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
    return {field: value for field, value in names.items() if value}


def _resources(kind: Kind) -> list[Object]:
    main: Object = {
        "name": kind.resource,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        **_other_names(kind),
    }
    found = [main]
    for sub in kind.subresources:
        part: Object = {
            "name": f"{kind.resource}/{sub.name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": sub.kind,
            "verbs": list(sub.verbs),
        }
        if (sub.group, sub.version) != (kind.group, kind.version):
            part |= {"group": sub.group, "version": sub.version}
        found.append(part)
    return found


def _aggregated_group(kinds: Sequence[Kind], name: str) -> Object:
    versions = [
        {
            "version": version,
            "resources": [
                _aggregated_resource(kind)
                for kind in kinds
                if (kind.group, kind.version) == (name, version)
            ],
            "freshness": "Current",
        }
        for version in _versions(kinds, name)
    ]
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _aggregated_resource(kind: Kind) -> Object:
    found: Object = {
        "resource": kind.resource,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
        **_other_names(kind),
    }
    if kind.subresources:
        found["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources
        ]
    return found
