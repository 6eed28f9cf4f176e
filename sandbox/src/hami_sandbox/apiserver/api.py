"""Requests to answers: authenticate, authorize, dispatch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from hami_sandbox.apiserver import answers, bindings, deletion, documents, lists, updates, watches
from hami_sandbox.apiserver.answers import Writer
from hami_sandbox.apiserver.auth import authorization
from hami_sandbox.apiserver.auth.authorization import Attributes, Authorizer
from hami_sandbox.apiserver.auth.reviews import Reviews
from hami_sandbox.apiserver.auth.users import Authenticator
from hami_sandbox.apiserver.call import Call, Target, parse_target, plain_body, require_kind
from hami_sandbox.apiserver.kinds import Catalogue
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.selectors import Selection
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.table import Stored
from hami_sandbox.apiserver.writes import Writes

_OK, _CREATED = 200, 201
Headers = CIMultiDict[str] | CIMultiDictProxy[str]
_REVIEWS = frozenset(["authentication.k8s.io", "authorization.k8s.io"])


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a client: bytes, or lines as they come."""

    body: bytes | AsyncIterator[bytes]
    status: int = _OK
    content_type: str = answers.JSON
    headers: Mapping[str, str] = {}


class Api:
    def __init__(
        self,
        *,
        store: Store,
        catalogue: Catalogue,
        authenticator: Authenticator,
        authorizer: Authorizer,
        reviews: Reviews,
        writes: Writes,
    ) -> None:
        self.store = store
        self.catalogue = catalogue
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._reviews = reviews
        self._writes = writes

    def target(self, method: str, path: str, query: Mapping[str, str]) -> Target:
        """Return the target of a request."""
        watch = lists.flag(query, "watch")
        return parse_target(method, path, watch=watch, find=self.catalogue.find)

    def admit(
        self, target: Target, query: Mapping[str, str], headers: Headers, body: bytes
    ) -> Call:
        """Authenticate and authorize a request."""
        user = self._authenticator.authenticate(headers.get("Authorization"))
        user = authorization.acting(headers, user, self._authorizer)
        if target.resource:
            attributes = Attributes(
                verb=target.verb,
                group=target.group,
                version=target.version,
                resource=target.resource,
                subresource=target.subresource,
                namespace=target.namespace,
                name=target.name,
            )
        else:
            attributes = Attributes(verb=target.verb, path=target.path)
        self._authorizer.require(user, attributes)
        return Call(target=target, query=query, headers=headers, body=body, user=user)

    async def answer(self, call: Call) -> Answer:
        """Answer a request; refuse by raising."""
        target = call.target
        if not target.resource:
            return self._document(call)
        kind = require_kind(target)
        if kind.group in _REVIEWS:
            return self._review(call)
        if target.subresource and target.subresource not in {"status", "finalize"}:
            return await self._subresource(call)
        if kind.resource == "bindings" and not kind.group:
            await bindings.bind(self._writes, call)
            return _success(_CREATED)
        return await self._object(call)

    async def _object(self, call: Call) -> Answer:
        form = answers.form_of(call.headers.get("Accept", ""))
        writer = Writer(call.kind, form, call.query)
        match call.target.verb:
            case "list":
                return await self._list(call, writer)
            case "watch":
                return self._watch(call, writer)
            case "delete":
                return await self._delete(call, writer)
            case "deletecollection":
                return Answer(body=writer.many(await deletion.delete_all(self._writes, call)))
            case _:
                status, stored = await self._one(call)
                return Answer(body=writer.one(stored), status=status)

    async def _one(self, call: Call) -> tuple[int, Stored]:
        match call.target.verb:
            case "get":
                return _OK, self._writes.current(call)
            case "create":
                return _CREATED, await self._writes.create(call)
            case "update":
                return _OK, await updates.replace(self._writes, call)
            case _:
                return await updates.patch(self._writes, call)

    async def _list(self, call: Call, writer: Writer) -> Answer:
        options = lists.parse(call.query)
        page = await lists.page(self.store, call.kind.stored, options, _selection(call, options))
        return Answer(body=writer.many(page))

    def _watch(self, call: Call, writer: Writer) -> Answer:
        options = lists.parse(call.query)
        watch = watches.Watch(
            self.store, call.kind.stored, options, _selection(call, options), writer
        )
        return Answer(body=watch.lines())

    async def _delete(self, call: Call, writer: Writer) -> Answer:
        outcome = await deletion.delete(self._writes, call)
        if outcome.shown:
            return Answer(body=writer.one(outcome.object))
        return Answer(body=msgspec.json.encode(deletion.answer(call, outcome)))

    async def _subresource(self, call: Call) -> Answer:
        match call.subresource:
            case "binding":
                await bindings.bind(self._writes, call)
                return _success(_CREATED)
            case "eviction":
                await bindings.evict(self._writes, call)
                return _success(_CREATED)
            case "scale":
                stored = await updates.answer(self._writes, call)
                return Answer(body=stored.whole)
            case "token":
                content = self._reviews.token(call.namespace, call.name, plain_body(call))
                return Answer(body=msgspec.json.encode(content), status=_CREATED)
            case _:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _review(self, call: Call) -> Answer:
        content = self._reviews.answer(
            call.kind.resource, plain_body(call), user=call.user, namespace=call.namespace
        )
        return Answer(body=msgspec.json.encode(content), status=_CREATED)

    def _document(self, call: Call) -> Answer:
        accept = call.headers.get("Accept", "")
        found = documents.find(self.catalogue, call.target.path, call.query, accept)
        if found is None or call.target.verb not in {"get", "head"}:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        tag = found.headers.get("ETag")
        if tag and call.headers.get("If-None-Match") == tag:
            return Answer(body=b"", status=304, headers=found.headers)
        return Answer(body=found.body, content_type=found.content_type, headers=found.headers)


def _selection(call: Call, options: lists.ListOptions) -> Selection:
    return Selection(
        call.kind,
        namespace=call.namespace,
        name=call.name,
        label_selector=options.label_selector,
        field_selector=options.field_selector,
    )


def _success(code: int) -> Answer:
    content: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code,
    }
    return Answer(body=msgspec.json.encode(content), status=code)
