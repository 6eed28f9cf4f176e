"""Run simulated nodes until SIGTERM: `python -m hami_sandbox.fleet`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from hami.kube import access
from hami.kube.client import Client
from hami.serving import lifetime, logs
from hami_sandbox import plan
from hami_sandbox.fleet import nodes, pods


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hami_sandbox.fleet", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--nodes", type=int, required=True, help="how many")
    parser.add_argument("--cards", default="8xH100", help="of each node, as 8xH100")
    parser.add_argument("--prefix", default="sim", help="of the nodes' names")
    parser.add_argument("--ready-file", type=Path, help="made when all nodes are there")
    asked = parser.parse_args()
    logs.set_up(level="info", stream=sys.stderr)
    cards = plan.parse_node(f"{asked.prefix}={asked.cards}").cards
    rows = nodes.rows(asked.prefix, asked.nodes, cards)
    asyncio.run(_run(asked.kubeconfig, rows, asked.ready_file))


async def _run(kubeconfig: str, rows: list[nodes.Row], ready: Path | None) -> None:
    stop = lifetime.stop_asked()
    async with Client(access.find(kubeconfig), user_agent="hami-sandbox-fleet") as client:
        work = asyncio.create_task(_work(client, rows, ready))
        end = asyncio.create_task(stop.wait())
        await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
        for task in (work, end):
            task.cancel()
        results = await asyncio.gather(work, end, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _work(client: Client, rows: list[nodes.Row], ready: Path | None) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.FleetPods(client, {row.name for row in rows}).run())
        await nodes.write(client, rows)
        if ready is not None:
            await asyncio.to_thread(ready.touch)


if __name__ == "__main__":
    main()
