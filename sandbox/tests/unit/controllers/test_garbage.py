"""Leftovers of nodes: they go, also if nobody saw the node."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.controllers.controller import Api, Changed, Object, Watches
from hami_sandbox.controllers.garbage import Garbage

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Silent:
    """Watches that show nothing."""

    def follow(self, kind: Kind, changed: Changed) -> None:
        pass


class Server:
    """An API server with leases of nodes, and some of the nodes."""

    def __init__(self, *nodes: str) -> None:
        self.objects: dict[str, Object] = {
            f"/api/v1/nodes/{name}": {"metadata": {"name": name, "uid": f"uid-{name}"}}
            for name in nodes
        }
        self.deleted = asyncio.Event()

    def lease(self, node: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": f"uid-{node}"}
        metadata = {"name": node, "uid": f"lease-{node}", "resourceVersion": "1"}
        self.objects[f"{LEASES}/{node}"] = {"metadata": metadata | {"ownerReferences": [owner]}}

    async def get(self, where: str) -> Object | None:
        return self.objects.get(where)

    async def items(self, where: str) -> list[Object]:
        return [each for name, each in self.objects.items() if name.startswith(f"{where}/")]

    async def delete(self, where: str, *, uid: str = "", **_: Any) -> None:
        assert self.objects.pop(where)["metadata"]["uid"] == uid
        self.deleted.set()


async def test_the_lease_of_a_node_that_went_unseen_goes_too() -> None:
    """The node came and went before the watch began: nothing tells of it but its lease."""
    server = Server("living")
    for node in ("living", "unseen"):
        server.lease(node)
    garbage = Garbage(cast("Api", server), cast("Watches", Silent()))
    working = asyncio.create_task(garbage.run())
    async with asyncio.timeout(30):
        await server.deleted.wait()
    working.cancel()
    assert [name for name in server.objects if name.startswith(LEASES)] == [f"{LEASES}/living"]
