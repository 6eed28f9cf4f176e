"""The API server without HTTP: an administrator's requests, and hooks between."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from multidict import CIMultiDict

from hami_sandbox.access import User
from hami_sandbox.apiserver import snapshot
from hami_sandbox.apiserver.api import Api
from hami_sandbox.apiserver.auth.admission import Admission
from hami_sandbox.apiserver.auth.authorization import Authorizer
from hami_sandbox.apiserver.auth.reviews import Reviews
from hami_sandbox.apiserver.auth.users import Authenticator
from hami_sandbox.apiserver.auth.webhook_matching import AdmissionRequest
from hami_sandbox.apiserver.definitions import Definitions
from hami_sandbox.apiserver.kinds import Catalogue
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.writes import Writes

TOKEN = "administrator"  # noqa: S105 - of a server that nobody else reaches
MERGE = "application/merge-patch+json"

Say = Callable[[AdmissionRequest], Awaitable[None]]


class _Admission(Admission):
    """Lets the test act while a write is under way."""

    say: Say | None = None

    async def mutate(self, request: AdmissionRequest) -> Object | None:
        say, self.say = self.say, None  # once; what it does itself is not interrupted
        if say is not None:
            await say(request)
        return request.object

    async def validate(self, request: AdmissionRequest) -> None:
        """Have nothing against it."""


class Rig:
    def __init__(self) -> None:
        self.store = Store()
        snapshot.add_built_in(self.store)
        self.admission = _Admission(self.store)
        users = [User(token=TOKEN, user="admin", groups=("system:masters",))]
        authenticator = Authenticator(self.store, users, key=b"key")
        authorizer = Authorizer(self.store)
        catalogue = Catalogue()
        Definitions(self.store, catalogue).start()
        self.api = Api(
            store=self.store,
            catalogue=catalogue,
            authenticator=authenticator,
            authorizer=authorizer,
            reviews=Reviews(self.store, authenticator, authorizer),
            writes=Writes(self.store, self.admission),
        )

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> Any:
        """Return the parsed answer; a Refusal is raised."""
        headers = CIMultiDict(
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": content_type, "User-Agent": "test"}
        )
        sent = b"" if body is None else json.dumps(body).encode()
        target = self.api.target(method, path, query)
        answer = await self.api.answer(self.api.admit(target, query, headers, sent))
        assert isinstance(answer.body, bytes)
        return json.loads(answer.body)

    async def patch(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        return await self.ask("PATCH", path, body, content_type=MERGE, **query)

    async def account(self, namespace: str = "default") -> None:
        """Make the account that pods need; here no controller does."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        await self.ask("POST", path, {"metadata": {"name": "default"}})

    async def pod(self, name: str, namespace: str = "default", **spec: object) -> Any:
        containers = [{"name": "main", "image": "x"}]
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": containers, **spec},
        }
        return await self.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)
