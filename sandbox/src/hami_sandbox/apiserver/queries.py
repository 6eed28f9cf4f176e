"""The options of lists and watches in a query: read, and refused where they contradict."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami_sandbox.apiserver.refusals import Refusal, bad_request, invalid

EXACT = "Exact"
NOT_OLDER = "NotOlderThan"
_FORBIDDEN = "FieldValueForbidden"
_UNSUPPORTED = "FieldValueNotSupported"


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a query asks of a list or a watch."""

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
    """Return a yes or no; a name without a value is a yes."""
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
