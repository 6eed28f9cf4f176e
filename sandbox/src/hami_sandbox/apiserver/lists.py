"""Lists: at which moment, which objects, and where the next page begins."""

from __future__ import annotations

import base64
import binascii

import msgspec

from hami_sandbox.apiserver import waiting
from hami_sandbox.apiserver.queries import EXACT, ListOptions
from hami_sandbox.apiserver.refusals import Refusal, bad_request
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.stored import Stored
from hami_sandbox.apiserver.table import State, Table

#: A continuation at whatever moment it is then.
_PRESENT = -1


class Listed(msgspec.Struct, frozen=True):
    """One page."""

    revision: int
    items: list[Stored]
    continue_: str = ""
    #: None: nobody counted.
    remaining: int | None = None


class _Token(msgspec.Struct, frozen=True):
    """Where a page begins."""

    rv: int
    start: str
    v: str = "meta.k8s.io/v1"


class ExpiredError(Refusal):
    """The moment of a continuation is forgotten; `continue_` goes on from the present."""

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


async def page(store: Store, where: tuple[str, str], wish: ListOptions, by: Selection) -> Listed:
    """Return the objects that are asked for, at the moment that is asked for."""
    start = ""
    limit = wish.limit
    if wish.continue_:
        token = _decode(wish.continue_)
        start = token.start
        state = _continued(store, store.table(where), token)
    else:
        state = await _state(store, where, wish)
        if wish.revision == 0 and wish.match != EXACT:
            limit = 0  # whatever is at hand is at hand as a whole
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


async def _state(store: Store, where: tuple[str, str], wish: ListOptions) -> State:
    asked = wish.revision
    if asked and not await waiting.reached(store, asked):
        raise waiting.too_large(asked, store.revision)
    table = store.table(where)
    if asked and (wish.match == EXACT or (not wish.match and wish.limit)):
        state = table.past(asked)
        if state is None:
            raise waiting.expired(f"The resourceVersion for the provided list is too old: {asked}.")
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
