"""Fill a store with objects, as if the API server had sent them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from hami.kube.store import Store
from hami.wire import codec, objects

Named = objects.Pod | objects.Node | objects.ResourceQuota

_bodies: weakref.WeakKeyDictionary[Store[Any], dict[str, bytes]] = weakref.WeakKeyDictionary()


def put(store: Store[Any], obj: Named) -> None:
    """Offer an object; one without a version is the newest."""
    document = codec.decode(codec.encode(obj), dict[str, Any], what="object")
    if not obj.version:
        document["metadata"]["resourceVersion"] = str(store._highest + 1)
    body = codec.encode(document)
    _bodies.setdefault(store, {})[obj.uid] = body
    store.offer(body)


def drop(store: Store[Any], uid: str) -> None:
    """Send that an object was deleted just now."""
    meta = {"uid": uid, "resourceVersion": str(store._highest + 1)}
    store.event(codec.encode({"metadata": meta}), deleted=True)


def retain(store: Store[Any], uids: Iterable[str]) -> None:
    """Send a full list of these objects, as they were last put."""
    store.begin_list()
    for uid in uids:
        store.listed(_bodies[store][uid])
    store.end_list(store._highest + 1)
