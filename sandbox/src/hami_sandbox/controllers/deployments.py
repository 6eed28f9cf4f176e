"""Deployments: replica sets per template, rolling update, status."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Sequence

import msgspec

from hami.kube import errors
from hami_sandbox import api_objects
from hami_sandbox.apiserver.preparation import LETTERS
from hami_sandbox.controllers import pod_states
from hami_sandbox.controllers.controller import Object, known, path
from hami_sandbox.controllers.pod_states import OwnerController
from hami_sandbox.controllers.replica_sets import SETS

DEPLOYMENTS = known("apps", "deployments")
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"

_HASH_LENGTH = 10
_HISTORY = 10
#: Annotations that are not a replica set's.
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)


class Deployments(OwnerController):
    name = "deployments"
    owner, owned = DEPLOYMENTS, SETS

    async def reconcile(self, key: str) -> None:
        found = await self._living(key)
        if found is None:
            return
        query = api_objects.as_query(found["spec"]["selector"])
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
        written = (owner["metadata"].get("annotations") or {}).get(REVISION)
        if written != str(_revision(new)):
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
        body: Object = {
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
            return await self._api.create(path(SETS, namespace), body)
        except errors.Conflict as conflict:
            there = await self._api.get(path(SETS, namespace, body["metadata"]["name"]))
            if not conflict.exists or there is None:
                raise
            if not pod_states.controlled([there], owner["metadata"]["uid"]):
                raise  # another owner's, and in the way until it is deleted
            return there

    async def _advance(
        self, owner: Object, new: Object, old: list[Object]
    ) -> tuple[Object, list[Object]]:
        """Move pods from the old sets to the new one, as far as the limits allow now."""
        spec = owner["spec"]
        replicas: int = spec.get("replicas", 1)
        strategy = spec.get("strategy") or {}
        if strategy.get("type") == "Recreate":
            old = [await self._resize(owner, each, 0) for each in old]
            if not any((each.get("status") or {}).get("replicas") for each in old):
                new = await self._resize(owner, new, replicas)
        else:
            rule = strategy.get("rollingUpdate") or {}
            limits = bounds(
                replicas, rule.get("maxSurge", "25%"), rule.get("maxUnavailable", "25%")
            )
            numbers = [_numbers(each) for each in old]
            size = new_size(replicas, limits, _numbers(new), numbers)
            new = await self._resize(owner, new, size)
            sizes = old_sizes(replicas, limits, _numbers(new), numbers)
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
        message = f"Scaled {way} replica set {made['metadata']['name']} from {before} to {size}"
        self._record_event(owner, "Normal", "ScalingReplicaSet", message)
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
        status, wait = new_status(owner, new, old, now=self._now())
        await self._write_status(owner, status)
        if wait is not None:
            self._look_later(owner, wait)


def template_hash(template: Object) -> str:
    """Return a template's hash, in the letters of generated names."""
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
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _numbers(replica_set: Object) -> Set:
    status = replica_set.get("status") or {}
    return Set(replica_set["spec"].get("replicas", 1), status.get("availableReplicas", 0))


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


class Set(msgspec.Struct, frozen=True):
    """A replica set in numbers: requested and available pods."""

    wanted: int
    #: Pods that are available.
    available: int = 0


class Bounds(msgspec.Struct, frozen=True):
    #: Pods above the wanted number.
    surge: int
    #: Pods below the wanted number that may be missing.
    unavailable: int


def bounds(replicas: int, surge: str | int, unavailable: str | int) -> Bounds:
    """Return the limits in pods; a percentage of the surge rounds up, of the missing down."""
    above = _share(surge, replicas, up=True)
    below = _share(unavailable, replicas, up=False)
    if not above and not below:
        below = 1  # else nothing could ever change
    return Bounds(above, min(below, replicas))


def new_size(replicas: int, limits: Bounds, new: Set, old: Sequence[Set]) -> int:
    """Return how many pods the new set shall have now."""
    if new.wanted >= replicas:
        return replicas
    others = sum(each.wanted for each in old)
    room = replicas + limits.surge - others - new.wanted
    return new.wanted + max(0, min(room, replicas - new.wanted))


def old_sizes(replicas: int, limits: Bounds, new: Set, old: Sequence[Set]) -> list[int]:
    """Return how many pods each old set shall have now; the first shrink first.

    Their unavailable pods are given up before those that serve.
    """
    total = new.wanted + sum(each.wanted for each in old)
    missing = max(0, new.wanted - new.available)
    spare = max(0, total - (replicas - limits.unavailable) - missing)
    sizes = [each.wanted for each in old]
    for at, each in enumerate(old):
        given_up = min(spare, max(0, sizes[at] - each.available))
        sizes[at] -= given_up
        spare -= given_up
    serving = new.available + sum(
        min(size, each.available) for size, each in zip(sizes, old, strict=True)
    )
    spare = min(spare, max(0, serving - (replicas - limits.unavailable)))
    for at, size in enumerate(sizes):
        taken = min(spare, size)
        sizes[at] -= taken
        spare -= taken
    return sizes


def _share(value: str | int, of: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * of / 100
    return math.ceil(part) if up else math.floor(part)


_DEADLINE = 600


def new_status(
    owner: Object, new: Object | None, old: list[Object], *, now: dt.datetime
) -> tuple[Object, float | None]:
    """Return the status, and in how many seconds it may change by itself."""
    spec, before = owner["spec"], owner.get("status") or {}
    wanted: int = spec.get("replicas", 1)
    sets = [*old, new] if new is not None else old
    total, available = _sum(sets, "replicas"), _sum(sets, "availableReplicas")
    updated = _sum([new] if new is not None else [], "replicas")
    complete = updated == wanted == available == total
    status: Object = {
        "observedGeneration": owner["metadata"].get("generation"),
        "replicas": total or None,
        "updatedReplicas": updated or None,
        "readyReplicas": _sum(sets, "readyReplicas") or None,
        "availableReplicas": available or None,
        "unavailableReplicas": max(0, max(total, wanted) - available) or None,
    }
    moved = any(
        before.get(key) != status[key]
        for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    )
    conditions = [_available(owner, available, now)]
    wait = None
    if not spec.get("paused"):
        progress, wait = _progress(owner, new, now, complete=complete, moved=moved)
        conditions.append(progress)
    status["conditions"] = conditions
    return status, wait


def _available(owner: Object, available: int, now: dt.datetime) -> Object:
    spec = owner["spec"]
    wanted = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    missing = 0
    if strategy.get("type") != "Recreate":
        rule = strategy.get("rollingUpdate") or {}
        limits = bounds(wanted, rule.get("maxSurge", "25%"), rule.get("maxUnavailable", "25%"))
        missing = limits.unavailable
    made = {
        "type": "Available",
        "status": "True",
        "reason": "MinimumReplicasAvailable",
        "message": "Deployment has minimum availability.",
    }
    if available < wanted - missing:
        made |= {
            "status": "False",
            "reason": "MinimumReplicasUnavailable",
            "message": "Deployment does not have minimum availability.",
        }
    return _since(owner, made, now)


def _progress(
    owner: Object, new: Object | None, now: dt.datetime, *, complete: bool, moved: bool
) -> tuple[Object, float | None]:
    name = f'ReplicaSet "{new["metadata"]["name"]}"' if new is not None else "Deployment"
    made = {"type": "Progressing", "status": "True"}
    if complete:
        made["reason"] = "NewReplicaSetAvailable"
        made["message"] = f"{name} has successfully progressed."
        return _since(owner, made, now), None
    before = _found(owner, "Progressing")
    deadline = owner["spec"].get("progressDeadlineSeconds", _DEADLINE)
    if before is None or moved or before["reason"] == "NewReplicaSetAvailable":
        made["reason"] = "ReplicaSetUpdated"
        made["message"] = f"{name} is progressing."
        return _since(owner, made, now) | {"lastUpdateTime": api_objects.stamp(now)}, float(
            deadline
        )
    left = (api_objects.read(before["lastUpdateTime"]) - now).total_seconds() + deadline
    if left > 0 and before["status"] == "True":
        return before, left
    made = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": f"{name} has timed out progressing.",
    }
    return _since(owner, made, now), None


def _since(owner: Object, made: Object, now: dt.datetime) -> Object:
    """Return the condition unchanged, or with new times if it differs."""
    before = _found(owner, made["type"])
    if before is not None and made.items() <= before.items():
        return before
    since = api_objects.stamp(now)
    if before is not None and before["status"] == made["status"]:
        since = before["lastTransitionTime"]
    return made | {"lastUpdateTime": api_objects.stamp(now), "lastTransitionTime": since}


def _found(owner: Object, kind: str) -> Object | None:
    conditions: list[Object] = (owner.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), None)


def _sum(sets: list[Object], field: str) -> int:
    return sum((each.get("status") or {}).get(field) or 0 for each in sets)
