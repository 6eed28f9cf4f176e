"""Create and change objects: from a body to a stored version.

The order is kube-apiserver's: decode, complete, built-in admission, mutating webhooks, complete
again, check, validating webhooks, store. Others may write between reading and storing. Then, unless
the client named the version that it builds upon, everything is done again on the newer one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import msgspec

from hami_sandbox.apiserver import preparation
from hami_sandbox.apiserver.answers import as_shown, as_stored
from hami_sandbox.apiserver.auth.admission import Admission
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.call import Call, body_of_kind
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import (
    Object,
    Refusal,
    already_exists,
    bad_request,
    conflict,
    invalid,
)
from hami_sandbox.apiserver.schema import defaults, kind_rules, managed_fields, schema
from hami_sandbox.apiserver.store import StaleError, Store
from hami_sandbox.apiserver.table import Stored

#: How often a write starts again because another write came first; then it is a conflict.
TRIES = 30
MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)

#: Makes the wanted object from the present one.
Edit = Callable[[Object], Object]


class Writes:
    def __init__(self, store: Store, admission: Admission) -> None:
        self.store = store
        self.admission = admission

    async def create(self, call: Call) -> Stored:
        """Store the object in the body under a new name."""
        content = body_of_kind(call, call.kind)
        return await self.add(call, content)

    async def add(self, call: Call, content: Object, *, tracked: bool = True) -> Stored:
        """Store a new object; `tracked`: record the field manager (apply did it already)."""
        kind, metadata = call.kind, content["metadata"]
        if metadata.get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise Refusal(500, "InternalError", message)
        place(call, metadata)
        preparation.strip(metadata)
        now = dt.datetime.now(dt.UTC)
        defaults.apply_defaults(kind, content, now=now)
        if tracked:
            # Before admission: fields that webhooks and the server add have no owner.
            content = managed_fields.tracked(
                kind, None, content, manager=call.manager, operation="Update", now=now
            )
            metadata = content["metadata"]
        dry_run = call.dry_run()
        name = metadata.get("name") or ""
        await preparation.admit(self.store, kind, content, namespace=call.namespace, name=name)
        request = call.review(
            "CREATE",
            kind=kind,
            name=name,
            object=content,
            options=call.options("CreateOptions"),
            dry_run=dry_run,
        )
        content = await self.mutated(request, kind)
        metadata = content["metadata"]
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._free_name(kind, call.namespace, metadata["generateName"])
        preparation.identify(kind, content, now=now)
        defaults.prepare_create(kind, content, now=now)
        check(kind, content)
        request.name = metadata["name"]
        request.object = content
        await self.admission.validate(request)
        return self._stored_new(kind, content, dry_run=dry_run)

    async def change(self, call: Call, edit: Edit, *, options: str, tracked: bool = True) -> Stored:
        """Store what `edit` makes of the present object; retry if another write came first.

        What it makes may name the version that it builds upon: another one is a conflict.
        """
        for _ in range(TRIES):
            current = self.current(call)
            wanted = edit(fresh(call.kind, current))
            version = wanted["metadata"].get("resourceVersion") or ""
            if version and version != str(current.revision):
                break
            try:
                return await self._change(call, current, wanted, options=options, tracked=tracked)
            except StaleError:
                continue
        raise conflict(call.kind.resource, call.name, MODIFIED, call.kind.group)

    def current(self, call: Call) -> Stored:
        """Return the object that the path names."""
        found = self.store.table(call.kind.stored).get(call.namespace, call.name)
        if found is None:
            raise call.not_found()
        return found

    async def mutated(self, request: AdmissionRequest, kind: Kind) -> Object:
        """Return the object after the mutating webhooks, complete."""
        before = request.object
        content = await self.admission.mutate(request)
        assert content is not None
        if content is not before:
            complete(kind, content)
        return content

    def stored(self, kind: Kind, content: Object, current: Stored, *, dry_run: bool) -> Stored:
        """Store a changed object over the one that was read; remove it if that was its end."""
        old = as_shown(kind, current.object)
        metadata = content["metadata"]
        metadata["resourceVersion"] = str(current.revision)
        if content == old:
            return current  # nothing changes, not even the version
        where = kind.stored
        kept = as_stored(kind, content)
        if dry_run:
            return Stored(kept, current.revision)
        if is_finished(content):
            namespace = metadata.get("namespace") or ""
            removed = self.store.remove(where, namespace, metadata["name"], over=current.revision)
            metadata["resourceVersion"] = str(removed.revision)
            return Stored(kept, removed.revision)
        return self.store.put(where, kept, over=current.revision)

    async def _change(
        self, call: Call, current: Stored, content: Object, *, options: str, tracked: bool
    ) -> Stored:
        kind, sub = call.kind, call.subresource
        old = as_shown(kind, current.object)
        now = dt.datetime.now(dt.UTC)
        defaults.apply_defaults(kind, content, now=now)
        request = call.review(
            "UPDATE",
            object=content,
            old_object=old,
            options=call.options(options),
            dry_run=call.dry_run(),
        )
        content = await self.mutated(request, kind)
        preparation.update(kind, content, old, sub)
        check(kind, content, old, sub)
        request.object = content
        await self.admission.validate(request)
        if tracked:
            content = managed_fields.tracked(
                kind,
                old,
                content,
                manager=call.manager,
                operation="Update",
                now=now,
                subresource=sub,
            )
        return self.stored(kind, content, current, dry_run=request.dry_run)

    def _stored_new(self, kind: Kind, content: Object, *, dry_run: bool) -> Stored:
        metadata = content["metadata"]
        namespace, name = metadata.get("namespace") or "", metadata["name"]
        taken = already_exists(kind.resource, name, kind.group)
        kept = as_stored(kind, content)
        if dry_run:
            if self.store.table(kind.stored).get(namespace, name) is not None:
                raise taken
            return Stored(kept, 0)
        try:
            return self.store.put(kind.stored, kept, over=0)
        except StaleError:
            raise taken from None

    def _free_name(self, kind: Kind, namespace: str, prefix: str) -> str:
        while True:
            name = preparation.generated(prefix)
            if self.store.table(kind.stored).get(namespace, name) is None:
                return name


def complete(kind: Kind, content: Object) -> None:
    """Bring an object that webhooks changed into stored form, in place."""
    try:
        schema.settle(kind, content)
    except schema.ShapeError as error:
        raise Refusal(500, "InternalError", f"Internal error occurred: {error}") from None
    defaults.apply_defaults(kind, content, now=dt.datetime.now(dt.UTC))


def place(call: Call, metadata: Object) -> None:
    """Put an object into the namespace of the path; refuse one that names another."""
    given = metadata.get("namespace") or ""
    if not call.kind.namespaced:
        metadata.pop("namespace", None)
        return
    if given and given != call.namespace:
        raise bad_request(
            f"the namespace of the provided object ({given}) does not match the namespace sent on "
            f"the request ({call.namespace})"
        )
    metadata["namespace"] = call.namespace


def same_name(call: Call, metadata: Object) -> None:
    """Refuse an object that has another name than its path."""
    given = metadata.get("name") or ""
    if given and given != call.name:
        raise bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({call.name})"
        )
    metadata["name"] = call.name


def fresh(kind: Kind, stored: Stored) -> Object:
    """Return a copy of a stored object that may be changed."""
    content: Object = msgspec.json.decode(stored.whole)
    return as_shown(kind, content)


def copied(content: Object) -> Object:
    """Return a copy of which every part may be changed."""
    copy: Object = msgspec.json.decode(msgspec.json.encode(content))
    return copy


def check(kind: Kind, content: Object, old: Object | None = None, subresource: str = "") -> None:
    """Refuse an object that the kind's rules do not allow."""
    causes = kind_rules.validate(kind, content, old, subresource=subresource)
    if causes:
        listed = [msgspec.to_builtins(cause) for cause in causes]
        raise invalid(kind.kind, content["metadata"].get("name") or "", listed, kind.group)


def is_finished(content: Object) -> bool:
    """Return whether a marked object can be removed now."""
    metadata = content["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (content["kind"] == "Namespace" and content.get("spec", {}).get("finalizers"))
