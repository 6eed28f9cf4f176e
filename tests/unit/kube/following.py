"""An informer of pods that runs during a test, and a handler of its changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.wire import codec, objects
from tests.scripted_api.server import ScriptedApi

#: Seconds; with a deliberate error in the product most waits are for ever (tests/mutants).
PATIENCE_S = float(os.environ.get("HAMI_PATIENCE_S", "60"))


def pod(name: str, **more: Any) -> dict[str, Any]:
    """Make a pod that the informer wants; `wanted=False` for one that it does not."""
    wanted = "yes" if more.pop("wanted", True) else "no"
    meta = {"name": name, "namespace": "default", "annotations": {"wanted": wanted}}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": more.pop("node", None)}, **more}


def encoded(obj: dict[str, Any]) -> bytes:
    """Write an object as the scripted server does."""
    return json.dumps(obj).encode()


def read(body: bytes) -> objects.Pod | None:
    if not listwatch.mentions(body, [b'"wanted": "yes"']):
        return None
    return codec.decode(body, objects.Pod, what="pod")


class Held:
    """A handler that notes every change, and notices calls within calls."""

    def __init__(self) -> None:
        self.pods: dict[str, objects.Pod] = {}
        self.calls: list[tuple[str, str]] = []
        self._busy = False

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        with self._alone():
            obj = new or old
            assert obj is not None
            assert self.pods.get(obj.uid) is old
            if new is None:
                self.calls.append(("delete", obj.name))
                del self.pods[obj.uid]
            else:
                self.calls.append(("update" if old else "add", obj.name))
                self.pods[obj.uid] = new

    @contextlib.contextmanager
    def _alone(self) -> Any:
        assert not self._busy
        self._busy = True
        yield
        self._busy = False

    @property
    def names(self) -> set[str]:
        return {pod.name for pod in self.pods.values()}

    @property
    def versions(self) -> dict[str, str | None]:
        return {
            uid: pod.metadata.resource_version if pod.metadata else None
            for uid, pod in self.pods.items()
        }


def truth(api: ScriptedApi) -> dict[str, str | None]:
    """Return what a store should hold: UID and version of every wanted pod."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
        for pod in api.objects("pods")
        if (pod["metadata"].get("annotations") or {}).get("wanted") == "yes"
    }


async def quick(seconds: float) -> None:
    """Sleep, as short as tests want it: order matters here, not duration."""
    await asyncio.sleep(min(seconds, 0.01))


async def until(check: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for something to become true; the bound only catches hangs."""
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(
    client: Client, **options: Any
) -> AsyncIterator[tuple[Informer[objects.Pod], Held]]:
    """Run an informer of all pods; `offered` are bodies that it knows before it runs."""
    held = options.pop("handler", None) or Held()
    reads = options.pop("read", read)
    offered = options.pop("offered", ())
    options = {"sleep": quick, **options}
    informer = Informer(client, paths.pods(), reads, kind="pods", **options)
    informer.add_handler(held.changed)
    for body in offered:
        informer.offer(body)
    task = asyncio.create_task(informer.run())
    try:
        yield informer, held
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
