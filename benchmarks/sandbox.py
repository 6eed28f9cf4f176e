"""Speed of the embedded cluster: its start, and pods that run on it.

    python -m benchmarks.sandbox [--pods 100] [--nodes 1000]

The baseline, in the same run and in turns with what is measured, are the same pods without a card:
what API server, scheduler and containers cost by themselves. Shares come on top with admission, the
extender, the device plugin and a container that is prepared. Then a fleet of simulated nodes takes
five times as many, which are placed and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from hami.kube import paths
from hami.kube.client import Client
from hami.wire import codec, objects
from hami_sandbox.cluster import Sandbox
from hami_sandbox.plan import Plan, parse_node

ROUNDS = 3
WRITERS = 8
LOOK_S = 0.1
NAMESPACE = "default"
SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
REAL = {"hami.io/benchmark": "real"}
SIMULATED = {"hami.io/sandbox": "simulated"}


class _PodList(codec.Object, frozen=True):
    items: list[objects.Pod]


def pod(number: int, limits: dict[str, int], where: dict[str, str]) -> bytes:
    container = {"name": "main", "image": "pause", "resources": {"limits": limits}}
    return codec.encode(
        {
            "metadata": {"name": f"pod-{number}"},
            "spec": {
                "containers": [container],
                "nodeSelector": where,
                "terminationGracePeriodSeconds": 0,
            },
        }
    )


async def burst(client: Client, count: int, limits: dict[str, int], where: dict[str, str]) -> float:
    """Create pods at once; return the seconds until all of them run, and take them away."""
    writers = asyncio.Semaphore(WRITERS)

    async def create(number: int) -> None:
        async with writers:
            await client.create(paths.pods(NAMESPACE), pod(number, limits, where))

    begin = time.monotonic()
    await asyncio.gather(*map(create, range(count)))
    await _until(client, lambda pods: sum(pod.phase == "Running" for pod in pods) == count)
    seconds = time.monotonic() - begin
    await client.delete(paths.pods(NAMESPACE))
    await _until(client, lambda pods: not pods)
    return seconds


async def _until(client: Client, holds: Callable[[list[objects.Pod]], bool]) -> None:
    while True:
        body = await client.get(paths.pods(NAMESPACE))
        if holds(codec.decode(body, _PodList, what="pods").items):
            return
        await asyncio.sleep(LOOK_S)


async def run(count: int, nodes: int) -> None:
    begin = time.monotonic()
    real = parse_node("real=8xH100,8xA100-80GB")
    plan = Plan(nodes=(type(real)(name=real.name, cards=real.cards, labels=REAL),), simulated=nodes)
    async with Sandbox(plan) as sandbox:
        print(f"ready after {time.monotonic() - begin:.1f} s, with {nodes} simulated nodes")
        client = sandbox.client
        plain, shares, placed = [], [], []
        for _ in range(ROUNDS):
            plain.append(await burst(client, count, {}, REAL))
            shares.append(await burst(client, count, SHARE, REAL))
            placed.append(await burst(client, 5 * count, SHARE, SIMULATED))
    base = statistics.median(plain)
    print(f"{count} pods without a card on one node Running: {base:.2f} s (baseline)")
    seconds = statistics.median(shares)
    print(f"{count} pods with a share: {seconds:.2f} s, {seconds / base:.2f} times the baseline")
    seconds = statistics.median(placed)
    print(
        f"{5 * count} pods with a share placed on {nodes} simulated nodes: {seconds:.2f} s, "
        f"{seconds / base:.2f} times the baseline"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1000, help="simulated ones")
    asked = parser.parse_args()
    asyncio.run(run(asked.pods, asked.nodes))


if __name__ == "__main__":
    main()
