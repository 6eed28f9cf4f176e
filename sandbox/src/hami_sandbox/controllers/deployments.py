"""Deployments: a replica set for each version of the pod template, and the way from old to new."""

from __future__ import annotations

import hashlib

import msgspec

from hami.kube import errors
from hami_sandbox import label_selectors
from hami_sandbox.apiserver.preparation import LETTERS
from hami_sandbox.controllers import deployment_status, pod_states, rolling
from hami_sandbox.controllers.api import Object, known, path
from hami_sandbox.controllers.owners import OwnerController
from hami_sandbox.controllers.replica_sets import SETS

DEPLOYMENTS = known("apps", "deployments")
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"

_HASH_LENGTH = 10
_HISTORY = 10
#: Annotations of kubectl's own, which say nothing about a replica set.
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)


class Deployments(OwnerController):
    name = "deployments"
    owner, owned = DEPLOYMENTS, SETS

    async def reconcile(self, key: str) -> None:
        found = await self._living(key)
        if found is None:
            return
        query = label_selectors.as_query(found["spec"]["selector"])
        owned = sorted(await self._owned_by(found, query), key=_revision)
        new = next((each for each in owned if _same_template(each, found)), None)
        old = [each for each in owned if each is not new]
        if found["spec"].get("paused"):
            await self._resize_paused(found, owned)
        else:
            new = await self._current(found, new, old)
            new, old = await self._advance(found, new, old)
        await self._report(found, new, old)

    async def _current(self, owner: Object, new: Object | None, old: list[Object]) -> Object:
        """Return the replica set of the present template, made if there is none."""
        revision = max((_revision(each) for each in old), default=0) + 1
        if new is None:
            new = await self._make(owner, revision)
        elif _revision(new) < revision:
            metadata = {"annotations": {REVISION: str(revision)}}
            new = await self._api.patch(_path(new), {"metadata": metadata})
        told = (owner["metadata"].get("annotations") or {}).get(REVISION)
        if told != str(_revision(new)):
            metadata = {"annotations": {REVISION: str(_revision(new))}}
            await self._api.patch(
                path(DEPLOYMENTS, owner["metadata"]["namespace"], owner["metadata"]["name"]),
                {"metadata": metadata},
            )
        return new

    async def _make(self, owner: Object, revision: int) -> Object:
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        digest = template_hash(owner["spec"]["template"])
        template = msgspec.json.decode(msgspec.json.encode(owner["spec"]["template"]))
        metadata = template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), HASH: digest}
        selector = dict(owner["spec"]["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH: digest}
        annotations = {
            key: value
            for key, value in (owner["metadata"].get("annotations") or {}).items()
            if key not in _NOT_COPIED
        }
        wish: Object = {
            "apiVersion": SETS.api_version,
            "kind": SETS.kind,
            "metadata": {
                "name": f"{name}-{digest}",
                "labels": metadata["labels"],
                "annotations": {**annotations, REVISION: str(revision)},
                "ownerReferences": [pod_states.owner_reference(DEPLOYMENTS, owner)],
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": owner["spec"].get("minReadySeconds", 0),
                "selector": selector,
                "template": template,
            },
        }
        try:
            return await self._api.create(path(SETS, namespace), wish)
        except errors.Conflict as conflict:
            there = await self._api.get(path(SETS, namespace, wish["metadata"]["name"]))
            if not conflict.exists or there is None:
                raise
            if not pod_states.controlled([there], owner["metadata"]["uid"]):
                raise  # somebody else's, and in the way until it is gone
            return there

    async def _advance(
        self, owner: Object, new: Object, old: list[Object]
    ) -> tuple[Object, list[Object]]:
        """Move pods from the old sets to the new one, as far as may be now."""
        spec = owner["spec"]
        replicas: int = spec.get("replicas", 1)
        strategy = spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            old = [await self._resize(owner, each, 0) for each in old]
            if not any((each.get("status") or {}).get("replicas") for each in old):
                new = await self._resize(owner, new, replicas)
        else:
            rule = strategy.get("rollingUpdate") or {}
            limits = rolling.bounds(
                replicas, rule.get("maxSurge", "25%"), rule.get("maxUnavailable", "25%")
            )
            numbers = [_numbers(each) for each in old]
            size = rolling.new_size(replicas, limits, _numbers(new), numbers)
            new = await self._resize(owner, new, size)
            sizes = rolling.old_sizes(replicas, limits, _numbers(new), numbers)
            old = [
                await self._resize(owner, each, size) for each, size in zip(old, sizes, strict=True)
            ]
        return new, await self._forget_oldest(owner, old)

    async def _resize_paused(self, owner: Object, owned: list[Object]) -> None:
        """Change only the number of pods: those of the set that most of them are in."""
        total = sum(each["spec"].get("replicas", 1) for each in owned)
        change = owner["spec"].get("replicas", 1) - total
        if owned and change:
            largest = max(
                owned, key=lambda each: (each["spec"].get("replicas", 1), _revision(each))
            )
            size = max(0, largest["spec"].get("replicas", 1) + change)
            owned[owned.index(largest)] = await self._resize(owner, largest, size)

    async def _resize(self, owner: Object, replica_set: Object, size: int) -> Object:
        before = replica_set["spec"].get("replicas", 1)
        if before == size:
            return replica_set
        made = await self._api.patch(_path(replica_set), {"spec": {"replicas": size}})
        way = "up" if size > before else "down"
        told = f"Scaled {way} replica set {made['metadata']['name']} from {before} to {size}"
        self._tell(owner, "Normal", "ScalingReplicaSet", told)
        return made

    async def _forget_oldest(self, owner: Object, old: list[Object]) -> list[Object]:
        """Delete replica sets beyond the history that is asked for, once they are empty."""
        most = owner["spec"].get("revisionHistoryLimit", _HISTORY)
        kept = list(old)
        for each in old:
            if len(kept) <= most:
                break
            status = each.get("status") or {}
            if each["spec"].get("replicas", 1) or status.get("replicas"):
                continue
            await self._api.delete(_path(each), uid=each["metadata"]["uid"])
            kept.remove(each)
        return kept

    async def _report(self, owner: Object, new: Object | None, old: list[Object]) -> None:
        status, wait = deployment_status.status(owner, new, old, now=self._now())
        await self._write_status(owner, status)
        if wait is not None:
            self._look_later(owner, wait)


def template_hash(template: Object) -> str:
    """Return what tells versions of a template apart, in the letters of generated names."""
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic")).digest()
    number = int.from_bytes(digest)
    letters = []
    for _ in range(_HASH_LENGTH):
        number, at = divmod(number, len(LETTERS))
        letters.append(LETTERS[at])
    return "".join(letters)


def _path(replica_set: Object) -> str:
    return path(SETS, replica_set["metadata"]["namespace"], replica_set["metadata"]["name"])


def _revision(replica_set: Object) -> int:
    told = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(told) if told.isdecimal() else 0


def _numbers(replica_set: Object) -> rolling.Set:
    status = replica_set.get("status") or {}
    return rolling.Set(replica_set["spec"].get("replicas", 1), status.get("availableReplicas", 0))


def _same_template(replica_set: Object, owner: Object) -> bool:
    template = dict(replica_set["spec"]["template"])
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH}
    wanted = owner["spec"]["template"]
    return (
        template.get("spec") == wanted.get("spec")
        and metadata["labels"] == ((wanted.get("metadata") or {}).get("labels") or {})
        and (metadata.get("annotations") or {})
        == ((wanted.get("metadata") or {}).get("annotations") or {})
    )
