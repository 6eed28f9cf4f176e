"""Custom resources: kinds that are served while their definition is stored.

Their fields are not checked: everything is stored, whatever the definition's schema is.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_sandbox import api_objects
from hami_sandbox.apiserver.kinds import Catalogue, Kind, Subresource
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.writes import copied

DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")


class Definitions:
    """Updates the catalogue after each change of the stored definitions."""

    def __init__(self, store: Store, catalogue: Catalogue) -> None:
        self._store = store
        self._catalogue = catalogue
        self._known: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Serve the defined kinds, from now on."""
        self._store.table(DEFINITIONS).wake(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        found = [kind for one in self._store.all(*DEFINITIONS) for kind in _kinds(one)]
        stored = {kind.stored for kind in found}
        for deleted in self._known - stored:
            self._store.end(deleted)
        for new in stored - self._known:
            if not len(self._store.table(new)):  # a snapshot may have brought some
                self._store.begin(new)
        self._known = stored
        self._catalogue.define(found)
        for definition in self._store.all(*DEFINITIONS):
            self._accept(definition)

    def _accept(self, definition: Object) -> None:
        """Set in its status that a definition is served."""
        names = definition.get("spec", {}).get("names")
        status = definition.get("status", {})
        if not names or status.get("acceptedNames") == names:
            return
        content = copied(definition)
        now = api_objects.stamp(api_objects.now())
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now}
            for kind, reason in (
                ("NamesAccepted", "NoConflicts"),
                ("Established", "InitialNamesAccepted"),
            )
        ]
        versions = [v["name"] for v in content["spec"].get("versions") or () if v.get("storage")]
        content["status"] = {
            **status,
            "acceptedNames": names,
            "conditions": conditions,
            "storedVersions": versions,
        }
        over = int(definition["metadata"]["resourceVersion"])
        self._store.put(DEFINITIONS, content, over=over)


def _kinds(definition: Object) -> Iterator[Kind]:
    """Yield a kind for each version that is served."""
    spec = definition.get("spec", {})
    names = spec.get("names") or {}
    if not {"plural", "kind"} <= names.keys():
        return
    for version in spec.get("versions") or ():
        if version.get("served"):
            yield _kind(spec, names, version)


def _kind(spec: Object, names: Object, version: Object) -> Kind:
    group = spec.get("group", "")
    subresources: tuple[Subresource, ...] = ()
    if "status" in (version.get("subresources") or {}):
        subresources = (
            Subresource(name="status", kind=names["kind"], group=group, version=version["name"]),
        )
    return Kind(
        group=group,
        version=version["name"],
        resource=names["plural"],
        kind=names["kind"],
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        namespaced=spec.get("scope") != "Cluster",
        categories=tuple(names.get("categories") or ()),
        subresources=subresources,
        generation=True,
        unconditional=False,
        custom=True,
    )
