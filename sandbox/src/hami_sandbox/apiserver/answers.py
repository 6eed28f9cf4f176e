"""The form of an answer: objects, tables or metadata, as Accept asks.

Two kinds may show the same objects: events are stored as the core group has them, and the newer
group has other names for the same fields. Nothing is lost either way.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping

import msgspec

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.lists import Listed
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.schema import tables
from hami_sandbox.apiserver.table import Stored, head

#: Names in events.k8s.io, and in the core group.
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_SHOWN = {core: new for new, core in _RENAMED.items()}


JSON = "application/json"
_META = "meta.k8s.io"
_ANYTHING = frozenset(["*/*", "application/*", JSON])
_encode = msgspec.json.Encoder().encode


class Form(enum.Enum):
    WHOLE = ""
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


_FORMS = {
    "Table": Form.TABLE,
    "PartialObjectMetadata": Form.PARTIAL,
    "PartialObjectMetadataList": Form.PARTIAL,
}


def form_of(accept: str) -> Form:
    """Return the first form among those accepted that we can give."""
    if not accept.strip():
        return Form.WHOLE
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media.lower() not in _ANYTHING:
            continue
        given = dict(part.partition("=")[::2] for part in parameters)
        wanted = given.get("as", "")
        if not wanted:
            return Form.WHOLE
        if wanted in _FORMS and given.get("g") == _META and given.get("v") == "v1":
            return _FORMS[wanted]
    message = (
        "only the following media types are accepted: application/json, "
        "application/json;as=Table;v=v1;g=meta.k8s.io, "
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    )
    raise Refusal(406, "NotAcceptable", message)


class Writer:
    """Makes the bytes of answers about one kind in one form."""

    def __init__(self, kind: Kind, form: Form, query: Mapping[str, str]) -> None:
        self._kind = kind
        self._form = form
        self._include = query.get("includeObject", "")
        self._columns = True

    def one(self, stored: Stored) -> bytes:
        """Return one object."""
        stored = shown(self._kind, stored)
        if self._form is Form.WHOLE:
            return stored.whole
        return _encode(self._other(stored))

    def many(self, page: Listed) -> bytes:
        """Return a list."""
        metadata: Object = {"resourceVersion": str(page.revision)}
        if page.continue_:
            metadata["continue"] = page.continue_
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        items = [shown(self._kind, stored) for stored in page.items]
        if self._form is Form.WHOLE:
            names = head(self._kind.list_kind, self._kind.api_version)[:-1]
            joined = b",".join([stored.bare for stored in items])
            return b'%b,"metadata":%b,"items":[%b]}' % (names, _encode(metadata), joined)
        objects = [stored.object for stored in items]
        if self._form is Form.PARTIAL:
            return _encode(tables.partial_list(objects, metadata=metadata))
        return _encode(self._table(objects, metadata))

    def event(self, happened: bytes, stored: Stored) -> bytes:
        """Return a line of a watch."""
        return b'{"type":"%b","object":%b}\n' % (happened, self._streamed(stored))

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        """Return a line with a version and no object."""
        metadata: Object = {"resourceVersion": str(revision)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self._form is Form.TABLE:
            content = self._table([], metadata)
        else:
            kind, version = self._kind.kind, self._kind.api_version
            if self._form is Form.PARTIAL:
                kind, version = Form.PARTIAL.value, f"{_META}/v1"
            content = {"kind": kind, "apiVersion": version, "metadata": metadata}
        return b'{"type":"BOOKMARK","object":%b}\n' % _encode(content)

    def _streamed(self, stored: Stored) -> bytes:
        stored = shown(self._kind, stored)
        if self._form is Form.WHOLE:
            return stored.whole
        content = self._other(stored)
        self._columns = False  # they come with the first event only
        return _encode(content)

    def _other(self, stored: Stored) -> Object:
        if self._form is Form.PARTIAL:
            return tables.partial(stored.object)
        metadata = {"resourceVersion": stored.object["metadata"].get("resourceVersion", "")}
        return self._table([stored.object], metadata)

    def _table(self, objects: list[Object], metadata: Object) -> Object:
        return tables.table(
            self._kind,
            objects,
            now=dt.datetime.now(dt.UTC),
            include_object=self._include,
            metadata=metadata,
            columns=self._columns,
        )


def error(refusal: Refusal) -> bytes:
    """Return the last line of a watch that cannot go on."""
    return b'{"type":"ERROR","object":%b}\n' % _encode(refusal.body())


def shown(kind: Kind, stored: Stored) -> Stored:
    """Return a stored object as a kind shows it; converted once."""
    if kind.stored == (kind.group, kind.resource):
        return stored
    if stored.shown is None:
        stored.shown = {}
    found = stored.shown.get(kind.group)
    if found is None:
        content = as_shown(kind, stored.object)
        found = stored.shown[kind.group] = Stored(content, stored.revision)
    return found


def as_shown(kind: Kind, content: Object) -> Object:
    """Return the content as a kind shows it."""
    if kind.stored == (kind.group, kind.resource):
        return content
    return _named({_SHOWN.get(key, key): value for key, value in content.items()}, kind)


def as_stored(kind: Kind, content: Object) -> Object:
    """Return the content of a kind in the form in which it is stored."""
    if kind.stored == (kind.group, kind.resource):
        return content
    group, _ = kind.stored
    renamed = {_RENAMED.get(key, key): value for key, value in content.items()}
    renamed["apiVersion"] = f"{group}/{kind.version}" if group else kind.version
    return renamed


def _named(content: Object, kind: Kind) -> Object:
    content["apiVersion"] = kind.api_version
    content["kind"] = kind.kind
    return content
