"""Lists: query options, version, objects, next page.

Options that contradict each other are refused with kube-apiserver's messages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from hami_sandbox.apiserver import store as apiserver_store
from hami_sandbox.apiserver.refusals import Refusal, bad_request, invalid
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.table import State, Stored, Table

EXACT = "Exact"
NOT_OLDER = "NotOlderThan"
_FORBIDDEN = "FieldValueForbidden"
_UNSUPPORTED = "FieldValueNotSupported"


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a list or a watch, from the query."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    #: None: unset.
    revision: int | None = None
    match: str = ""
    continue_: str = ""
    watch: bool = False
    bookmarks: bool = False
    #: None: unset.
    initial_events: bool | None = None
    timeout: int = 0


def parse(query: Mapping[str, str]) -> ListOptions:
    """Return the options, checked."""
    options = ListOptions(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=max(0, _number(query, "limit")),
        revision=_revision(query.get("resourceVersion", "")),
        match=query.get("resourceVersionMatch", ""),
        continue_=query.get("continue", ""),
        watch=flag(query, "watch"),
        bookmarks=flag(query, "allowWatchBookmarks"),
        initial_events=flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
        timeout=max(0, _number(query, "timeoutSeconds")),
    )
    if options.watch:
        _check_watch(options)
    else:
        _check_list(options)
    return options


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return a boolean parameter; a name without a value is true."""
    return name in query and query[name].lower() not in {"false", "0"}


def _check_list(options: ListOptions) -> None:
    if options.initial_events is not None:
        _refuse("sendInitialEvents", "sendInitialEvents is forbidden for list")
    match = options.match
    if match:
        if options.revision is None:
            _refuse_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
        if options.continue_:
            _refuse_match("resourceVersionMatch is forbidden when continue is provided")
        if match not in {EXACT, NOT_OLDER}:
            _refuse_unsupported(match, (EXACT, NOT_OLDER))
        if match == EXACT and options.revision == 0:
            _refuse_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if options.continue_ and options.revision:
        raise bad_request("specifying resource version is not allowed when using continue")


def _check_watch(options: ListOptions) -> None:
    match = options.match
    if options.initial_events is None:
        if match:
            _refuse_match(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        return
    if not match:
        _refuse_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if match != NOT_OLDER:
        _refuse_unsupported(match, (NOT_OLDER,))
    if options.continue_:
        _refuse("continue", "continue is forbidden for watch with sendInitialEvents")


def _refuse_match(why: str) -> None:
    _refuse("resourceVersionMatch", why)


def _refuse(field: str, why: str) -> None:
    raise _invalid(field, _FORBIDDEN, f"Forbidden: {why}")


def _refuse_unsupported(match: str, known: tuple[str, ...]) -> None:
    supported = ", ".join(f'"{value}"' for value in (*known, ""))
    message = f'Unsupported value: "{match}": supported values: {supported}'
    raise _invalid("resourceVersionMatch", _UNSUPPORTED, message)


def _invalid(field: str, reason: str, message: str) -> Refusal:
    causes = [{"field": field, "reason": reason, "message": message}]
    return invalid("ListOptions", "", causes, "meta.k8s.io")


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'unable to parse {name} "{text}": it is no whole number') from None


def _revision(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f'invalid resource version "{text}": it is no whole number')
    return int(text)


#: A continuation at the version of its own time.
_PRESENT = -1


class Listed(msgspec.Struct, frozen=True):
    """One page."""

    revision: int
    items: list[Stored]
    continue_: str = ""
    #: None: not counted.
    remaining: int | None = None


class _Token(msgspec.Struct, frozen=True):
    """Where a page begins."""

    rv: int
    start: str
    v: str = "meta.k8s.io/v1"


class ExpiredError(Refusal):
    """The version of a continuation is forgotten; `continue_` goes on from the present."""

    def __init__(self, continue_: str) -> None:
        message = (
            "The provided continue parameter is too old to display a consistent list result. You "
            "can start a new list without the continue parameter, or use the continue token in "
            "this response to retrieve the remainder of the results."
        )
        super().__init__(410, "Expired", message)
        self.continue_ = continue_

    def body(self) -> dict[str, object]:
        return {**super().body(), "metadata": {"continue": self.continue_}}


async def page(store: Store, where: tuple[str, str], options: ListOptions, by: Selection) -> Listed:
    """Return one page of the selected objects, at the requested version."""
    start = ""
    limit = options.limit
    if options.continue_:
        token = _decode(options.continue_)
        start = token.start
        state = _continued(store, store.table(where), token)
    else:
        state = await _state(store, where, options)
        if options.revision == 0 and options.match != EXACT:
            limit = 0  # version 0: any version, always complete
    return _page(state, by, start, limit)


def _page(state: State, by: Selection, start: str, limit: int) -> Listed:
    items: list[Stored] = []
    for key, stored in state.items(by.namespace, start):
        if by.selective and not by.matches(stored.object):
            continue
        if limit and len(items) == limit:
            remaining = None if by.selective else state.count(by.namespace, key)
            token = _encode(_Token(rv=state.revision, start=key))
            return Listed(state.revision, items, token, remaining)
        items.append(stored)
    return Listed(state.revision, items)


async def _state(store: Store, where: tuple[str, str], options: ListOptions) -> State:
    asked = options.revision
    if asked and not await apiserver_store.reached(store, asked):
        raise apiserver_store.too_large(asked, store.revision)
    table = store.table(where)
    if asked and (options.match == EXACT or (not options.match and options.limit)):
        state = table.past(asked)
        if state is None:
            raise apiserver_store.expired(
                f"The resourceVersion for the provided list is too old: {asked}."
            )
        return state
    return table.now(store.revision)


def _continued(store: Store, table: Table, token: _Token) -> State:
    if token.rv == _PRESENT:
        return table.now(store.revision)
    if token.rv > store.revision:
        raise bad_request("continue key is not valid: it is of a version that is yet to come")
    state = table.past(token.rv)
    if state is None:
        raise ExpiredError(_encode(_Token(rv=_PRESENT, start=token.start)))
    return state


def _encode(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode(text: str) -> _Token:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"continue key is not valid: {error}") from None
