"""Deletion: grace, finalizers, preconditions, collections, old events.

Events that were not repeated for an hour are removed.
"""

from __future__ import annotations

import asyncio
import datetime as dt

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.api_objects import ENDED, read
from hami_sandbox.apiserver import lists, preparation
from hami_sandbox.apiserver.answers import as_shown
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.call import Call, plain_body
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.lists import Listed
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request, conflict, forbidden
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import StaleError, Store
from hami_sandbox.apiserver.table import Stored
from hami_sandbox.apiserver.writes import MODIFIED, TRIES, Writes, copied, is_finished

_GRACE = 30
_NOT_FOUND = 404
#: The finalizer that each propagation policy adds.
_HOLDERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


class Outcome(msgspec.Struct, frozen=True):
    """The result of a deletion: the object is removed, or marked and waits."""

    object: Stored
    removed: bool
    #: Whether the answer is the object, and not a Status.
    shown: bool


async def delete(writes: Writes, call: Call, options: Object | None = None) -> Outcome:
    """Delete one object, or mark it if it has to wait for its end."""
    if options is None:
        options = options_of(call)
    for _ in range(TRIES):
        current = writes.current(call)
        _check_preconditions(call, options, current)
        _check_immortal(call)
        dry_run = call.dry_run(options)
        await writes.admission.mutate(_request(call, current, options, dry_run=dry_run))
        await writes.admission.validate(_request(call, current, options, dry_run=dry_run))
        try:
            return _delete(writes, call, options, current, dry_run=dry_run)
        except StaleError:
            continue
    raise conflict(call.kind.resource, call.name, MODIFIED, call.kind.group)


async def delete_all(writes: Writes, call: Call) -> Listed:
    """Delete what is selected; return it."""
    options = options_of(call)
    selected = lists.parse({**call.query, "watch": "false"})
    by = Selection(
        call.kind,
        namespace=call.namespace,
        label_selector=selected.label_selector,
        field_selector=selected.field_selector,
    )
    found = await lists.page(writes.store, call.kind.stored, selected, by)
    for stored in found.items:
        metadata = stored.object["metadata"]
        one = msgspec.structs.replace(
            call.target, name=metadata["name"], namespace=metadata.get("namespace") or ""
        )
        try:
            await delete(writes, msgspec.structs.replace(call, target=one), options)
        except Refusal as refusal:
            if refusal.status != _NOT_FOUND:  # another request deleted it first
                raise
    return found


def options_of(call: Call) -> Object:
    """Return the DeleteOptions of the body and of the query; the body counts."""
    options = plain_body(call)
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body is a {options['kind']}, expected: DeleteOptions")
    query = call.query
    if "gracePeriodSeconds" not in options and query.get("gracePeriodSeconds"):
        text = query["gracePeriodSeconds"]
        try:
            options["gracePeriodSeconds"] = int(text)
        except ValueError:
            raise bad_request(f'unable to parse gracePeriodSeconds "{text}"') from None
    if "propagationPolicy" not in options and query.get("propagationPolicy"):
        options["propagationPolicy"] = query["propagationPolicy"]
    return options


def answer(call: Call, outcome: Outcome) -> Object:
    """Return the Status of a removed object."""
    details: Object = {"name": call.name, "kind": call.kind.resource}
    if call.kind.group:
        details["group"] = call.kind.group
    details["uid"] = outcome.object.object["metadata"]["uid"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def _delete(
    writes: Writes, call: Call, options: Object, current: Stored, *, dry_run: bool
) -> Outcome:
    kind = call.kind
    content = copied(current.object)
    graceful = (kind.group, kind.resource) == ("", "pods")
    _hold(content, options)
    changed = _mark(kind, content, options, dt.datetime.now(dt.UTC))
    if not graceful and is_finished(content):
        stored = current
        if not dry_run:
            stored = writes.store.remove(
                kind.stored, call.namespace, call.name, over=current.revision
            )
        return Outcome(object=stored, removed=True, shown=False)
    if changed and not dry_run:
        # Pods are marked even where their end is now: watches see it coming.
        current = writes.store.put(kind.stored, content, over=current.revision)
    elif changed:
        current = Stored(content, current.revision)
    if not is_finished(content):
        return Outcome(object=current, removed=False, shown=True)
    if not dry_run:
        current = writes.store.remove(kind.stored, call.namespace, call.name, over=current.revision)
    return Outcome(object=current, removed=True, shown=True)


def _mark(kind: Kind, content: Object, options: Object, now: dt.datetime) -> bool:
    """Set the time of the end; return whether that changed something."""
    metadata = content["metadata"]
    grace = _grace(kind, content, options)
    given = metadata.get("deletionGracePeriodSeconds", 0)
    if "deletionTimestamp" in metadata:
        if grace >= given:
            return False
        ends = api_objects.read(metadata["deletionTimestamp"])
        ends -= dt.timedelta(seconds=given - grace)
    else:
        ends = now + dt.timedelta(seconds=grace)
        if metadata.get("generation"):
            metadata["generation"] += 1
    metadata["deletionTimestamp"] = api_objects.stamp(ends)
    metadata["deletionGracePeriodSeconds"] = grace
    if kind.kind == "Namespace":
        # No grace: a controller empties it.
        del metadata["deletionGracePeriodSeconds"]
        content["status"] = {**content.get("status", {}), "phase": "Terminating"}
    return True


def _grace(kind: Kind, content: Object, options: Object) -> int:
    """Return the seconds between the mark and the end; only pods have any."""
    if (kind.group, kind.resource) != ("", "pods"):
        return 0
    spec, status = content.get("spec", {}), content.get("status", {})
    asked = options.get("gracePeriodSeconds")
    seconds = spec.get("terminationGracePeriodSeconds", _GRACE) if asked is None else asked
    if not spec.get("nodeName") or status.get("phase") in ENDED:
        return 0
    return int(seconds) if seconds >= 0 else 1


def _hold(content: Object, options: Object) -> None:
    """Add the garbage collector's finalizer, where the client asks for it."""
    holder = _HOLDERS.get(options.get("propagationPolicy") or "")
    if options.get("orphanDependents"):
        holder = _HOLDERS["Orphan"]
    if holder is None:
        return
    finalizers = content["metadata"].setdefault("finalizers", [])
    if holder not in finalizers:
        finalizers.append(holder)


def _check_preconditions(call: Call, options: Object, current: Stored) -> None:
    wanted = options.get("preconditions") or {}
    metadata = current.object["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given = wanted.get(field)
        if given and given != metadata[field]:
            why = (
                f"Precondition failed: {name} in precondition: {given}, {name} in object meta: "
                f"{metadata[field]}"
            )
            raise conflict(call.kind.resource, call.name, why, call.kind.group)


def _check_immortal(call: Call) -> None:
    if call.kind.kind == "Namespace" and call.name in preparation.IMMORTAL:
        why = "this namespace may not be deleted"
        message = f'namespaces "{call.name}" is forbidden: {why}'
        raise forbidden(message, {"name": call.name, "kind": "namespaces"})


def _request(call: Call, current: Stored, options: Object, *, dry_run: bool) -> AdmissionRequest:
    content = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **options}
    return call.review(
        "DELETE",
        subresource="",  # an eviction is a deletion of the pod
        old_object=as_shown(call.kind, current.object),
        options=content,
        dry_run=dry_run,
    )


_EVENTS = ("", "events")
_LIFETIME = dt.timedelta(hours=1)
#: Seconds between two checks.
_PAUSE = 60


async def forget(store: Store) -> None:
    """Remove old events, now and then, for as long as the server runs."""
    while True:
        await asyncio.sleep(_PAUSE)
        remove(store, dt.datetime.now(dt.UTC))


def remove(store: Store, now: dt.datetime) -> int:
    """Remove what is too old at this time; return how many."""
    old = [found for found in store.all(*_EVENTS) if _last(found) < now - _LIFETIME]
    for event in old:
        metadata = event["metadata"]
        store.remove(
            _EVENTS,
            metadata.get("namespace") or "",
            metadata["name"],
            over=int(metadata["resourceVersion"]),
        )
    return len(old)


def _last(event: Object) -> dt.datetime:
    """Return when the event was last written; its own times are not used."""
    times = [event["metadata"]["creationTimestamp"]]
    times += [
        entry["time"] for entry in event["metadata"].get("managedFields") or () if "time" in entry
    ]
    return max(map(read, times))
