"""A small store of Kubernetes objects: one version counter, and a history.

It does what kube-apiserver does where tests/conformance says so, for the few kinds that hami uses;
it validates nothing else. Everything is synchronous, so a test can change it between two awaits.
"""

from __future__ import annotations

import copy
import itertools
import json
import uuid
from typing import Any, NamedTuple

Object = dict[str, Any]
Key = tuple[str, str]

#: Resource in the path, to kind and group.
KINDS = {
    "pods": ("Pod", "v1"),
    "nodes": ("Node", "v1"),
    "resourcequotas": ("ResourceQuota", "v1"),
    "events": ("Event", "v1"),
    "leases": ("Lease", "coordination.k8s.io/v1"),
    "secrets": ("Secret", "v1"),
    "mutatingwebhookconfigurations": (
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
    ),
}
RESOURCES = {kind: resource for resource, (kind, _) in KINDS.items()}
CLUSTER_WIDE = {"nodes", "mutatingwebhookconfigurations"}


class Refused(Exception):  # noqa: N818 - it names what happened to the request
    """The store says no, with an HTTP status and Kubernetes' reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Event(NamedTuple):
    version: int
    type: str
    object: Object
    #: The object before, for selectors that it entered or left.
    before: Object | None


class Snapshot(NamedTuple):
    version: int
    objects: dict[str, dict[Key, Object]]


class Store:
    def __init__(self) -> None:
        self.version = 100
        #: Versions below are forgotten.
        self.compacted = 0
        self.objects: dict[str, dict[Key, Object]] = {resource: {} for resource in KINDS}
        self.history: dict[str, list[Event]] = {resource: [] for resource in KINDS}
        self._names = itertools.count()

    def find(self, resource: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[resource][namespace, name]
        except KeyError:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found') from None

    def create(self, resource: str, namespace: str, obj: Object) -> Object:
        made = copy.deepcopy(obj)
        kind, version = KINDS[resource]
        made |= {"kind": kind, "apiVersion": version}
        meta = made.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise Refused(400, "BadRequest", "resourceVersion should not be set to create")
        if not meta.get("name"):
            meta["name"] = f"{meta.get('generateName', '')}{next(self._names):05x}"
        if resource not in CLUSTER_WIDE:
            meta["namespace"] = namespace
        if (namespace, meta["name"]) in self.objects[resource]:
            raise Refused(409, "AlreadyExists", f'{resource} "{meta["name"]}" already exists')
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
        return self._store(resource, "ADDED", made, None)

    def replace(self, resource: str, namespace: str, name: str, obj: Object) -> Object:
        before = self.find(resource, namespace, name)
        after = copy.deepcopy(obj)
        kind, version = KINDS[resource]
        after |= {"kind": kind, "apiVersion": version}
        meta = after.setdefault("metadata", {})
        if resource == "leases" and not meta.get("resourceVersion"):
            raise Refused(422, "Invalid", "metadata.resourceVersion: must be specified")
        self._check(resource, before, meta)
        if resource == "secrets" and before.get("type") != after.get("type"):
            raise Refused(422, "Invalid", "type: Invalid value: field is immutable")
        return self._change(resource, before, after)

    def patch(self, resource: str, namespace: str, name: str, patch: Object) -> Object:
        """Merge patch (RFC 7396)."""
        before = self.find(resource, namespace, name)
        self._check(resource, before, patch.get("metadata") or {})
        after = _merged(before, patch)
        assert isinstance(after, dict)
        return self._change(resource, before, after)

    def delete(
        self, resource: str, namespace: str, name: str, preconditions: Object | None = None
    ) -> Object:
        before = self.find(resource, namespace, name)
        self._check(resource, before, preconditions or {})
        if before["metadata"].get("finalizers"):
            stamp = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:01Z"}}
            return self.patch(resource, namespace, name, stamp)
        return self._store(resource, "DELETED", copy.deepcopy(before), before)

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        pod = self.find("pods", namespace, name)
        meta = binding.get("metadata") or {}
        if meta.get("name") not in (None, "", name):
            raise Refused(400, "BadRequest", "the name in the URL is another than in the Binding")
        self._check("pods", pod, meta)
        if pod["metadata"].get("deletionTimestamp"):
            raise Refused(409, "Conflict", f"pod {name} is being deleted, cannot be assigned")
        taken = (pod.get("spec") or {}).get("nodeName")
        if taken:
            raise Refused(409, "Conflict", f'pod {name} is already assigned to node "{taken}"')
        change: Object = {
            "spec": {"nodeName": binding["target"]["name"]},
            "metadata": {"annotations": meta.get("annotations") or {}},
        }
        if meta.get("labels"):
            change["metadata"]["labels"] = meta["labels"]
        self.patch("pods", namespace, name, change)

    def put(self, resource: str, namespace: str, obj: Object) -> Object:
        """Create or replace, whatever the version; a UID that is given is kept."""
        name = obj["metadata"].get("name", "")
        if (namespace, name) not in self.objects[resource]:
            meta = {**obj["metadata"], "resourceVersion": None}
            uid = meta.pop("uid", None)
            made = self.create(resource, namespace, {**obj, "metadata": meta})
            if uid:
                # No request has seen the other one: no await lies between.
                made["metadata"]["uid"] = uid
            if created := obj["metadata"].get("creationTimestamp"):
                made["metadata"]["creationTimestamp"] = created
            return made
        before = self.find(resource, namespace, name)
        meta = {**obj["metadata"], "uid": before["metadata"]["uid"]}
        meta["creationTimestamp"] = before["metadata"]["creationTimestamp"]
        kind, version = KINDS[resource]
        after = {**copy.deepcopy(obj), "metadata": meta, "kind": kind, "apiVersion": version}
        if resource not in CLUSTER_WIDE:
            meta["namespace"] = namespace
        return self._change(resource, before, after)

    def compact(self, version: int | None = None) -> None:
        """Forget what happened before this version; None: before now."""
        self.compacted = self.version if version is None else version
        for events in self.history.values():
            events[:] = [event for event in events if event.version > self.compacted]

    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, copy.deepcopy(self.objects))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, as after a restore of etcd from a backup: versions begin again from there."""
        self.version = snapshot.version
        self.objects = copy.deepcopy(snapshot.objects)
        self.history = {resource: [] for resource in KINDS}
        self.compacted = 0

    def _check(self, resource: str, before: Object, wanted: Object) -> None:
        meta = before["metadata"]
        if wanted.get("uid") and wanted["uid"] != meta["uid"]:
            raise Refused(
                409,
                "Conflict",
                f"Precondition failed: UID in precondition: {wanted['uid']}, "
                f"UID in object meta: {meta['uid']}",
            )
        version = wanted.get("resourceVersion")
        if version and version != meta["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {resource} "{meta["name"]}": the object has '
                f"been modified; please apply your changes to the latest version and try again",
            )

    def _change(self, resource: str, before: Object, after: Object) -> Object:
        meta = after["metadata"]
        for fixed in ("uid", "name", "namespace", "creationTimestamp", "resourceVersion"):
            if fixed in before["metadata"]:
                meta[fixed] = before["metadata"][fixed]
        if after == before:
            return before
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            return self._store(resource, "DELETED", after, before)
        return self._store(resource, "MODIFIED", after, before)

    def _store(self, resource: str, kind: str, obj: Object, before: Object | None) -> Object:
        self.version += 1
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self.version)
        key = (meta.get("namespace", ""), meta["name"])
        if kind == "DELETED":
            del self.objects[resource][key]
        else:
            self.objects[resource][key] = obj
        self.history[resource].append(Event(self.version, kind, obj, before))
        return obj


def _merged(target: object, patch: object) -> object:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return json.loads(json.dumps(merged))
