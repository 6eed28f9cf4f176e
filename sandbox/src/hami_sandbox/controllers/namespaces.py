"""Namespaces: create the default account, empty a deleted namespace."""

from __future__ import annotations

from hami.kube import errors
from hami_sandbox.apiserver import kinds
from hami_sandbox.controllers.controller import (
    Api,
    Controller,
    Item,
    Watches,
    enqueue_itself,
    known,
    path,
)

_DEFAULT = "default"
#: Seconds between checks of what holds a namespace: kubelets and others' finalizers.
_LOOK_AGAIN = 0.5
_NAMESPACE = known("", "namespaces")
_ACCOUNT = known("", "serviceaccounts")
_DEFINITION = known("apiextensions.k8s.io", "customresourcedefinitions")
#: Groups whose objects create pods: deleted first, or they would create them again.
_MAKERS = frozenset({"apps", "batch"})
#: Namespaced kinds that can be deleted as a collection, each stored kind once.
_CONTENT = tuple(
    sorted(
        (
            kind
            for kind in kinds.KINDS
            if kind.namespaced and "deletecollection" in kind.verbs and kind.shows == ("", "")
        ),
        key=lambda kind: kind.group not in _MAKERS,
    )
)


class Namespaces(Controller):
    name = "namespaces"

    def __init__(self, api: Api, watches: Watches) -> None:
        super().__init__()
        self._api = api
        watches.follow(_NAMESPACE, enqueue_itself(self.queue))
        watches.follow(_ACCOUNT, self._account_changed)

    async def reconcile(self, key: str) -> None:
        namespace = await self._api.get(path(_NAMESPACE, name=key))
        if namespace is None:
            return
        if "deletionTimestamp" not in namespace["metadata"]:
            await self._give_account(key)
        elif await self._emptied(key):
            namespace["spec"] = {}
            try:
                await self._api.replace(path(_NAMESPACE, name=key, part="finalize"), namespace)
            except errors.NotFound:
                return
        else:
            self.queue.add_after(key, _LOOK_AGAIN)

    async def _give_account(self, namespace: str) -> None:
        body = {"metadata": {"name": _DEFAULT, "namespace": namespace}}
        if await self._api.get(path(_ACCOUNT, namespace, _DEFAULT)) is not None:
            return
        try:
            await self._api.create(path(_ACCOUNT, namespace), body)
        except (errors.NotFound, errors.Forbidden):
            return  # the namespace is deleted or being deleted
        except errors.Conflict as conflict:
            if not conflict.exists:
                raise

    async def _emptied(self, namespace: str) -> bool:
        """Delete all that is in a namespace; return whether nothing is left.

        Nothing can be created in it any more.
        """
        left = False
        for where in await self._places(namespace):
            deleted = await self._api.delete(where, propagationPolicy="Background")
            if (deleted or {}).get("items"):
                left = left or bool(await self._api.items(where, limit="1"))
        return not left

    async def _places(self, namespace: str) -> list[str]:
        """Return the paths of all collections of a namespace, custom resources too."""
        places = [path(kind, namespace) for kind in _CONTENT]
        for definition in await self._api.items(path(_DEFINITION)):
            spec = definition["spec"]
            served = [each["name"] for each in spec["versions"] if each.get("served")]
            if spec["scope"] == "Namespaced" and served:
                base, resource = f"/apis/{spec['group']}/{served[0]}", spec["names"]["plural"]
                places.append(f"{base}/namespaces/{namespace}/{resource}")
        return places

    def _account_changed(self, old: Item | None, new: Item | None) -> None:
        if new is None and old is not None and old.name == _DEFAULT:
            self.queue.add(old.namespace)
