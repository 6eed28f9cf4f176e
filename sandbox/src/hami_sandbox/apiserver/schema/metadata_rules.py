"""Rules of metadata, which are the same for all kinds but for how names look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes, names
from hami_sandbox.apiserver.schema.causes import Cause

MOST_ANNOTATIONS = 256 * 1024
_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_RBAC = "rbac.authorization.k8s.io"
_NAME_RULES: dict[tuple[str, str], Callable[[str], list[str]]] = {
    ("", "Namespace"): names.label,
    ("", "Service"): names.label,
    (_RBAC, "Role"): names.path_segment,
    (_RBAC, "ClusterRole"): names.path_segment,
    (_RBAC, "RoleBinding"): names.path_segment,
    (_RBAC, "ClusterRoleBinding"): names.path_segment,
}


def check(kind: Kind, metadata: Object, old: Object | None) -> Iterator[Cause]:
    """Yield what is wrong with an object's metadata; `old` is the metadata it replaces."""
    yield from _name(kind, metadata)
    yield from labels(metadata.get("labels") or {}, "metadata.labels")
    yield from _annotations(metadata.get("annotations") or {})
    for place, finalizer in enumerate(metadata.get("finalizers") or ()):
        for wrong in names.qualified(finalizer):
            yield causes.invalid("metadata.finalizers", finalizer, wrong)
        if "/" not in finalizer and finalizer not in _FINALIZERS:
            told = "name is neither a standard finalizer name nor is it fully qualified"
            yield causes.invalid(f"metadata.finalizers[{place}]", finalizer, told)
    yield from _owners(metadata.get("ownerReferences") or ())
    if old is not None:
        yield from _changes(metadata, old)


def _name(kind: Kind, metadata: Object) -> Iterator[Cause]:
    rule = _NAME_RULES.get((kind.group, kind.kind), names.subdomain)
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if prefix:
        # What is appended never ends in a dash.
        shown = prefix[:-1] + "a" if prefix[-1] in "-." else prefix
        for wrong in rule(shown):
            yield causes.invalid("metadata.generateName", prefix, wrong)
    if not name:
        yield causes.required("metadata.name", "name or generateName is required")
        return
    for wrong in rule(name):
        yield causes.invalid("metadata.name", name, wrong)


def labels(found: Mapping[str, str], field: str) -> Iterator[Cause]:
    """Yield what is wrong with labels."""
    for key, value in found.items():
        for wrong in names.qualified(key):
            yield causes.invalid(field, key, wrong)
        for wrong in names.label_value(value):
            yield causes.invalid(field, value, wrong)


def _annotations(found: Mapping[str, str]) -> Iterator[Cause]:
    size = 0
    for key, value in found.items():
        for wrong in names.qualified(key.lower()):
            yield causes.invalid("metadata.annotations", key, wrong)
        size += len(key.encode()) + len(value.encode())
    if size > MOST_ANNOTATIONS:
        yield causes.too_long("metadata.annotations", MOST_ANNOTATIONS)


def _owners(owners: Any) -> Iterator[Cause]:
    controllers = []
    for owner in owners:
        field = "metadata.ownerReferences"
        for part, told in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(part):
                yield causes.invalid(f"{field}.{part}", owner.get(part, ""), told)
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        yield causes.invalid(
            "metadata.ownerReferences",
            controllers,
            'Only one reference can have Controller set to true. Found "true" in references for '
            + " and ".join(controllers),
        )


def _changes(metadata: Object, old: Object) -> Iterator[Cause]:
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        if metadata.get(field) != old.get(field):
            yield causes.immutable(f"metadata.{field}", metadata.get(field, ""))
    if old.get("deletionTimestamp"):
        before = old.get("finalizers") or ()
        added = [each for each in metadata.get("finalizers") or () if each not in before]
        if added:
            told = ", ".join(f'"{each}"' for each in added)
            yield causes.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{told}}}",
            )
