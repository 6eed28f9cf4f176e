"""The demo's view of its cluster: watches, logs, monitors.

Everything comes by the ways that users have: the API server, the monitors' pages and the command
`hami explain`. Nothing is taken from inside of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import aiohttp
import msgspec
from prometheus_client import parser

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.wire import objects
from hami_sandbox.demo.cards import SeenPod

#: Used memory of a container's share, and of a card.
SHARE_USED = "hami_vgpu_memory_used_bytes"
CARD_USED = "hami_host_gpu_memory_used_bytes"


class Sample(msgspec.Struct, frozen=True, gc=False):
    node: str
    name: str
    labels: Mapping[str, str]
    value: float


def read(node: str, page: str) -> Iterator[Sample]:
    """Yield the samples of a monitor's page; raises ValueError for another text."""
    for family in parser.text_string_to_metric_families(page):
        for sample in family.samples:
            yield Sample(node, sample.name, sample.labels, sample.value)


def select(samples: Iterable[Sample], name: str, labels: Mapping[str, str]) -> list[Sample]:
    """Return the samples of this name that have these labels, whatever others they have."""
    return [
        sample
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


_SYNC_S = 30.0
_PAGE_S = 3.0
_EXPLAIN_S = 30.0
#: Seconds for which samples are reused: the view and several checks share them.
_FRESH_S = 0.5


class Node(Protocol):
    @property
    def monitor_url(self) -> str: ...


class Cluster(Protocol):
    """The part of a Sandbox that the demo reads."""

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def client(self) -> Client: ...

    @property
    def nodes(self) -> Mapping[str, Node]: ...

    @property
    def isolation(self) -> str: ...


class ClusterView:
    """Use it as a context manager: it watches in between."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        read_pod = listwatch.all_of(SeenPod, "pod")
        read_node = listwatch.all_of(objects.Node, "node")
        self.pods = Informer(cluster.client, paths.pods(), read_pod, kind="pods")
        self.nodes = Informer(cluster.client, paths.nodes(), read_node, kind="nodes")
        #: What the API server refused in the present step.
        self.refusals: dict[str, str] = {}
        #: When a pod was first seen on a node, by `clock`.
        self.first_placed: float | None = None
        self._clock = clock
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._samples: list[Sample] = []
        self._sampled_at = float("-inf")
        self._sampling = asyncio.Lock()
        self.pods.add_handler(self._note)
        self.nodes.add_handler(lambda _old, _new: self._changed.set())

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self.pods.run(), name="pods"),
            asyncio.create_task(self.nodes.run(), name="nodes"),
        ]
        try:
            async with asyncio.timeout(_SYNC_S):
                await self.pods.wait_synced()
                await self.nodes.wait_synced()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _note(self, _: SeenPod | None, pod: SeenPod | None) -> None:
        if pod is not None and pod.node_name and self.first_placed is None:
            self.first_placed = self._clock()
        self._changed.set()

    async def change(self, limit: float) -> None:
        """Wait until a pod or node has changed, but not longer than so many seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._changed.wait()

    def find_pods(self, namespace: str, name: str, labels: Mapping[str, str]) -> list[SeenPod]:
        """Return one pod by its name, or those with all these labels that are not leaving."""
        if name:
            pod = self.pods.by_key(f"{namespace}/{name}")
            return [] if pod is None else [pod]
        return [
            pod
            for pod in self.pods
            if pod.namespace == namespace
            if not pod.deleting and labels.items() <= pod.labels.items()
        ]

    async def log(self, namespace: str, pod: str, container: str) -> str:
        query = {"container": container} if container else None
        try:
            text = await self.cluster.client.get(f"{paths.pods(namespace, pod)}/log", query)
        except errors.KubeError as error:
            return f"(no log: {error})"
        return text.decode(errors="replace")

    async def samples(self) -> list[Sample]:
        """Read the monitors of all nodes; one that does not answer has no samples."""
        async with self._sampling:
            if self._clock() - self._sampled_at > _FRESH_S:
                nodes = self.cluster.nodes
                pages = await asyncio.gather(*(self._page(node) for node in nodes.values()))
                self._samples = [
                    sample
                    for name, page in zip(nodes, pages, strict=True)
                    for sample in read(name, page)
                ]
                self._sampled_at = self._clock()
        return self._samples

    async def _page(self, node: Node) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PAGE_S))
        url = f"{node.monitor_url.rstrip('/').removesuffix('/metrics')}/metrics"
        try:
            async with self._session.get(url) as answer:
                answer.raise_for_status()
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""

    async def explanation(self, namespace: str, pod: str) -> str:
        """Run `hami explain` as a user would."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "hami", "explain", pod, "--namespace", namespace),
            *("--kubeconfig", str(self.cluster.kubeconfig)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_EXPLAIN_S):
                output, _ = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return output.decode(errors="replace")
