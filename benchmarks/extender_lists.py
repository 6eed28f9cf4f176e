"""Fetch and decode the lists that a scheduler reads at its start.

    python -m benchmarks.extender_lists KUBECONFIG

The baseline of "ready after start": the same client, the same pages, the same structs, no state.
"""

from __future__ import annotations

import sys

import uvloop

from hami.kube import access, listwatch, paths
from hami.kube.client import Client
from hami.wire import codec, objects


async def read(kubeconfig: str) -> dict[str, int]:
    """Return the number of objects of each kind."""
    counts = {"nodes": 0, "pods": 0}
    async with Client(access.find(kubeconfig), user_agent="benchmark") as client:
        async for page in listwatch.pages(client, paths.nodes(), {}):
            for body in page.items:
                codec.decode(body, objects.Node, what="node")
            counts["nodes"] += len(page.items)
        async for page in listwatch.pages(client, paths.pods(), {}):
            for body in page.items:
                codec.decode(body, objects.Pod, what="pod")
            counts["pods"] += len(page.items)
    return counts


def main() -> None:
    print(uvloop.run(read(sys.argv[1])))


if __name__ == "__main__":
    main()
