"""Pods run on while programs of the embedded cluster are killed and restart.

First the API server, which everybody watches; then all programs at once. The API server is asked to
end, as it keeps its objects in memory and writes them down then; the others are killed. (Agents and
kubelets are killed one by one in test_churn.) New pods come from a Deployment: a bare pod that
reaches a kubelet before its devices have come back fails for good, as it does on real Kubernetes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hami_sandbox.cluster import APISERVER, Sandbox
from hami_sandbox.plan import Plan, parse_node
from sandbox.tests.cluster.kubectl import Kubectl, KubectlError

PLAN = Plan(nodes=(parse_node("n-a=2xA10"), parse_node("n-b=1xH100")))
STAY = 20
PATIENCE_S = 240.0  # catches hangs only: killed programs start again on two busy cores
#: What the kubelet says of pods that came too early after its restart.
REFUSED = "UnexpectedAdmissionError"

Object = dict[str, object]


class Cluster:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._kubectl = Kubectl(sandbox.kubeconfig)

    async def kubectl(self, *arguments: str, given: object = None) -> str:
        return await asyncio.to_thread(self._kubectl, *arguments, given=given)

    async def rows(self) -> list[list[str]]:
        return await asyncio.to_thread(self._kubectl.rows, "get", "pods")

    async def apply(self, name: str, replicas: int) -> None:
        """Make a Deployment as soon as somebody takes it."""

        async def taken() -> bool:
            await self.kubectl("apply", "-f", "-", given=deployment(name, replicas))
            return True

        await until(f"{name} to be taken", taken)

    async def runs(self, name: str, number: int) -> None:
        """Wait until so many pods of a Deployment run, as kubectl's table says."""

        async def run() -> bool:
            found = [row for row in await self.rows() if row[0].startswith(f"{name}-")]
            return [row[1:3] for row in found if row[2] != REFUSED] == [["1/1", "Running"]] * number

        await until(f"{number} pods of {name} to run", run)

    async def identities(self, name: str) -> set[tuple[str, ...]]:
        """Return where the pods of a Deployment are, and which containers they have, since when."""
        fields = ["{.metadata.uid}", "{.spec.nodeName}"]
        status = "{.status.containerStatuses[0]."
        fields += [f"{status}{x}}}" for x in ("containerID", "restartCount", "state.running")]
        template = "{range .items[*]}" + "{' '}".join(fields) + "{'\\n'}{end}"
        told = await self.kubectl("get", "pods", f"-lapp={name}", "-o", f"jsonpath={template}")
        return {tuple(line.split()) for line in told.splitlines()}

    def kill(self, *names: str) -> None:
        for name in names:
            number = signal.SIGTERM if name == APISERVER else signal.SIGKILL
            assert self._sandbox.programs[name].kill(number) is not None, name

    def restarts(self) -> dict[str, int]:
        return {name: program.restarts for name, program in self._sandbox.programs.items()}


def deployment(name: str, replicas: int) -> Object:
    labels = {"app": name}
    container = {
        "name": "main",
        "image": "hami",
        "command": ["gpu-work", "--memory=500Mi"],
        "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1500}},
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_S
    said = ""
    while True:
        try:
            if await condition():
                return
        except KubectlError as error:
            said = str(error)
        assert time.monotonic() < end, f"waited for {what}; {said}"
        await asyncio.sleep(0.1)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Sandbox(PLAN) as sandbox:
        yield Cluster(sandbox)


@pytest.mark.timeout(600)
async def test_pods_run_on_and_new_ones_run_whatever_was_killed(cluster: Cluster) -> None:
    await cluster.apply("stay", STAY)
    await cluster.runs("stay", STAY)
    before = await cluster.identities("stay")
    assert len(before) == STAY
    everything = tuple(cluster.restarts())
    for number, names in enumerate([(APISERVER,), everything]):
        cluster.kill(*names)
        await cluster.apply(f"new{number}", 1)
        await cluster.runs(f"new{number}", 1)
        await cluster.runs("stay", STAY)
        assert await cluster.identities("stay") == before, names
    # Nobody ended but those who were killed.
    assert cluster.restarts() == dict.fromkeys(everything, 1) | {APISERVER: 2}
