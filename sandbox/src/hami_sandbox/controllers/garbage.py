"""Delete what deleted objects owned; finalizers of owners.

The graph of owners comes from watches and may be behind; so before an object is deleted, its
owners are read. Leases change too often to be watched for this: a node's lease has its name. Those
of nodes that came and went unseen (before the start, or while a watch was broken) are looked for
now and then.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.controllers.controller import (
    Api,
    Changed,
    Controller,
    Item,
    Owner,
    Watches,
    decode,
    known,
    path,
)

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"

_LEASES = "leases"
_NODE_LEASES = "kube-node-lease"
_NODE, _LEASE = known("", "nodes"), known("coordination.k8s.io", _LEASES)
_UNWATCHED = frozenset({"events", _LEASES})
_WATCHED = tuple(
    kind
    for kind in kinds.KINDS
    if {"watch", "delete"} <= set(kind.verbs) and kind.resource not in _UNWATCHED
)
#: Seconds after which a new object's owner should be known.
_PATIENCE = 0.2
#: Seconds between two looks at all leases of nodes.
_LEASES_EVERY = 10.0


class _Node(msgspec.Struct):
    kind: Kind
    item: Item


class Garbage(Controller):
    """Keys are UIDs."""

    name = "garbage"

    def __init__(self, api: Api, watches: Watches) -> None:
        super().__init__()
        self._api = api
        self._known: dict[str, _Node] = {}
        #: By the UID of the owner, which need not be known.
        self._dependents: dict[str, dict[str, None]] = {}
        for kind in _WATCHED:
            watches.follow(kind, self._follow(kind))
        watches.follow(_NODE, self._node_changed)
        self.queue.add(_NODE_LEASES)

    async def reconcile(self, key: str) -> None:
        node = self._known.get(key)
        if key == _NODE_LEASES:
            await self._end_leases()
        elif node is None:
            await self._end_lease(key)
        elif node.item.deleting and ORPHAN in node.item.finalizers:
            await self._let_go(node)
        elif node.item.deleting and FOREGROUND in node.item.finalizers:
            await self._delete_dependents(node)
        elif node.item.owners and not node.item.deleting:
            await self._collect(node)

    # The graph.

    def _follow(self, kind: Kind) -> Changed:
        def changed(old: Item | None, new: Item | None) -> None:
            if old is not None:
                self._unlink(old)
            if new is not None:
                self._link(kind, new)
            elif old is not None:
                self._deleted(old)

        return changed

    def _link(self, kind: Kind, item: Item) -> None:
        self._known[item.uid] = _Node(kind, item)
        for owner in item.owners:
            self._dependents.setdefault(owner.uid, {})[item.uid] = None
            if owner.uid not in self._known:
                self.queue.add_after(item.uid, _PATIENCE)
        if item.deleting and {FOREGROUND, ORPHAN} & set(item.finalizers):
            self.queue.add(item.uid)

    def _unlink(self, item: Item) -> None:
        self._known.pop(item.uid, None)
        for owner in item.owners:
            dependents = self._dependents.get(owner.uid, {})
            dependents.pop(item.uid, None)
            if not dependents:
                self._dependents.pop(owner.uid, None)

    def _deleted(self, item: Item) -> None:
        for uid in self._dependents.get(item.uid, ()):
            self.queue.add(uid)
        for owner in item.owners:
            if owner.uid in self._known:  # it may wait for this deletion
                self.queue.add(owner.uid)

    def _node_changed(self, old: Item | None, new: Item | None) -> None:
        if new is None and old is not None:
            self.queue.add(f"{_LEASES}/{old.name}/{old.uid}")

    # Actions.

    async def _collect(self, node: _Node) -> None:
        """Delete an object whose owners are all deleted; else drop the deleted owners."""
        item = node.item
        deleted = [owner for owner in item.owners if await self._is_deleted(owner, item.namespace)]
        if not deleted:
            return
        where = path(node.kind, item.namespace, item.name)
        if len(deleted) == len(item.owners):
            await self._api.delete(where, uid=item.uid, propagationPolicy="Background")
        else:
            await self._release(node, {owner.uid for owner in deleted})

    async def _is_deleted(self, owner: Owner, namespace: str) -> bool:
        if owner.uid in self._known:
            return False
        kind = kinds.of(owner.api_version, owner.kind)
        if kind is None:
            return False  # an unknown kind
        found = await self._api.get(path(kind, namespace, owner.name))
        return found is None or found["metadata"]["uid"] != owner.uid

    async def _release(self, node: _Node, owners: set[str]) -> None:
        """Take owners out of an object's metadata."""
        where = path(node.kind, node.item.namespace, node.item.name)
        found = await self._api.get(where)
        if found is None or found["metadata"]["uid"] != node.item.uid:
            return
        listed = found["metadata"].get("ownerReferences") or ()
        kept = [each for each in listed if each["uid"] not in owners]
        metadata = {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "ownerReferences": kept or None,
        }
        await self._api.patch(where, {"metadata": metadata})

    async def _let_go(self, node: _Node) -> None:
        for dependent in self._dependents_of(node):
            await self._release(dependent, {node.item.uid})
        await self._finish(node, ORPHAN)

    async def _delete_dependents(self, node: _Node) -> None:
        """Delete what the owner waits for; release the owner once all that is deleted."""
        uid = node.item.uid
        blocking = False
        for dependent in list(self._dependents_of(node)):
            item = dependent.item
            blocking |= any(each.uid == uid and each.block_owner_deletion for each in item.owners)
            if not item.deleting:
                where = path(dependent.kind, item.namespace, item.name)
                policy = "Foreground" if item.uid in self._dependents else "Background"
                await self._api.delete(where, uid=item.uid, propagationPolicy=policy)
        if not blocking:
            await self._finish(node, FOREGROUND)

    def _dependents_of(self, node: _Node) -> Iterable[_Node]:
        uids = tuple(self._dependents.get(node.item.uid, ()))
        return [self._known[uid] for uid in uids if uid in self._known]

    async def _finish(self, node: _Node, finalizer: str) -> None:
        where = path(node.kind, node.item.namespace, node.item.name)
        found = await self._api.get(where)
        if found is None or found["metadata"]["uid"] != node.item.uid:
            return
        kept = [each for each in found["metadata"].get("finalizers") or () if each != finalizer]
        metadata = {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "finalizers": kept or None,
        }
        await self._api.patch(where, {"metadata": metadata})

    async def _end_leases(self) -> None:
        for lease in await self._api.items(path(_LEASE, _NODE_LEASES)):
            for owner in decode(msgspec.json.encode(lease)).owners:
                if owner.kind == "Node" and await self._is_deleted(owner, ""):
                    await self._end_lease(f"{_LEASES}/{owner.name}/{owner.uid}")
        self.queue.add_after(_NODE_LEASES, _LEASES_EVERY)

    async def _end_lease(self, key: str) -> None:
        resource, _, rest = key.partition("/")
        name, _, uid = rest.rpartition("/")
        if resource != _LEASES:
            return
        where = path(_LEASE, _NODE_LEASES, name)
        found = await self._api.get(where)
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
        if found is not None and any(owner["uid"] == uid for owner in owners):
            await self._api.delete(where, uid=found["metadata"]["uid"])
