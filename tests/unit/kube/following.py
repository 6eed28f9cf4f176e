"""A reflector of pods that runs for as long as a test wants, and what it has filled."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from typing import Any

from hami.kube import paths, store
from hami.kube.client import Client
from hami.kube.informer import Ignored, Reflector
from hami.wire import codec, objects
from tests.scripted_api.server import ScriptedApi

#: Seconds; with a deliberate error in the product most waits are for ever (tests/mutants).
PATIENCE_S = float(os.environ.get("HAMI_PATIENCE_S", "60"))


def pod(name: str, **more: Any) -> dict[str, Any]:
    """Make a pod that the reflector wants; `wanted=False` for one that it does not."""
    wanted = "yes" if more.pop("wanted", True) else "no"
    meta = {"name": name, "namespace": "default", "annotations": {"wanted": wanted}}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": more.pop("node", None)}, **more}


def decode(body: bytes) -> objects.Pod | Ignored:
    if not store.mentions(body, [b'"wanted": "yes"']):
        return Ignored(*store.meta(body))
    return codec.decode(body, objects.Pod, what="pod")


class Held:
    """A sink that notes everything, and notices calls within calls."""

    def __init__(self) -> None:
        self.pods: dict[str, objects.Pod] = {}
        self.calls: list[tuple[str, object]] = []
        self._busy = False

    def put(self, obj: objects.Pod) -> None:
        with self._alone():
            self.calls.append(("put", obj.name))
            self.pods[obj.uid] = obj

    def drop(self, uid: str) -> None:
        with self._alone():
            self.calls.append(("drop", uid))
            self.pods.pop(uid, None)

    def retain(self, uids: AbstractSet[str]) -> None:
        with self._alone():
            self.calls.append(("retain", len(uids)))
            self.pods = {uid: pod for uid, pod in self.pods.items() if uid in uids}

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
    """Return what a sink should hold: UID and version of every wanted pod."""
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
) -> AsyncIterator[tuple[Reflector[objects.Pod], Held]]:
    """Run a reflector of all pods."""
    held = options.pop("sink", None) or Held()
    options = {"decode": decode, "sleep": quick, **options}
    reflector = Reflector(client, paths.pods(), sink=held, kind="pods", **options)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, held
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
