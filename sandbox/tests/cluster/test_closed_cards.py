"""A whole card on the embedded cluster: deleted by force, then let go.

kubelet stands still while the pod is deleted by force, so its process runs on; scheduler and agent
are killed meanwhile. Then every card is cordoned, and neither agent nor monitor has one open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

from hami_sandbox.cluster import HAMI_SCHEDULER, Sandbox
from hami_sandbox.plan import Plan, parse_node
from sandbox.tests.cluster.kubectl import Kubectl, KubectlError

PLAN = Plan(nodes=(parse_node("n-a=1xA10"),))
CLOSED = "hami.io/node-nvidia-closed"
PATIENCE_S = 60.0


def whole(name: str) -> dict[str, Any]:
    """Make a pod that has a card for itself."""
    container = {
        "name": "main",
        "image": "hami",
        "command": ["gpu-work", "--memory=500Mi"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Cluster:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._kubectl = Kubectl(sandbox.kubeconfig)

    async def kubectl(self, *arguments: str, given: object = None) -> str:
        return await asyncio.to_thread(self._kubectl, *arguments, given=given)

    async def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until a check holds; while the API server restarts nothing does."""
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(KubectlError):
                if await asyncio.to_thread(check):
                    return
            assert time.monotonic() < end, what
            await asyncio.sleep(0.1)

    def create(self, name: str) -> bool:
        return bool(self._kubectl("create", "-f", "-", given=whole(name)))

    def states(self) -> list[str]:
        """Return what the node says of its closed cards."""
        node = self._kubectl.json("get", "node", "n-a")
        return list(json.loads(node["metadata"]["annotations"].get(CLOSED, "{}")).values())

    def phase(self, name: str) -> str:
        return str(self._kubectl.json("get", "pod", name)["status"]["phase"])

    def node_of(self, name: str) -> str:
        return str(self._kubectl.json("get", "pod", name)["spec"].get("nodeName", ""))

    def refused(self, name: str) -> bool:
        events = self._kubectl.json("get", "events")["items"]
        about = [each["reason"] for each in events if each["involvedObject"]["name"] == name]
        return "FailedScheduling" in about

    def open_cards(self, program: str) -> set[str]:
        """Return the device files that a program has open, as every other process sees it."""
        pid = self.sandbox.programs[f"n-a/{program}"].pid
        found = set()
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = entry.readlink()
                if target.parent == self.sandbox.nodes["n-a"].gpus / "dev":
                    found.add(target.name)
        return found

    def have_restarted(self) -> bool:
        names = (HAMI_SCHEDULER, "n-a/agent")
        return all(self.sandbox.programs[name].restarts for name in names)

    def signal(self, *programs: str, number: int = signal.SIGKILL) -> None:
        for name in programs:
            assert self.sandbox.programs[name].kill(number) is not None, name


async def test_a_whole_card_is_kept_while_used_and_then_let_go() -> None:
    async with Sandbox(PLAN) as sandbox:
        cluster = Cluster(sandbox)
        cluster.create("old")
        await cluster.until("old to run", lambda: cluster.phase("old") == "Running")
        view = sandbox.nodes["n-a"].folders.proc
        await cluster.until("its process to be in /proc", lambda: any(view.iterdir()))

        # Deleted by force.
        still = ["processes of deleted pod default/old still run on it"]
        cluster.signal("n-a/kubelet", number=signal.SIGSTOP)
        try:
            cluster.create("new")
            await cluster.kubectl("delete", "pod", "old", "--force", "--grace-period=0")
            await cluster.until("the card to be closed", lambda: cluster.states() == still)
            cluster.signal(HAMI_SCHEDULER, "n-a/agent")
            await cluster.until("both to restart", cluster.have_restarted)
            await cluster.until("later to be taken", lambda: cluster.create("later"))
            await cluster.until("later to be refused", lambda: cluster.refused("later"))
            assert [cluster.node_of(name) for name in ("new", "later")] == ["", ""]
            assert cluster.states() == still
            await cluster.kubectl("delete", "pod", "later")
        finally:
            cluster.signal("n-a/kubelet", number=signal.SIGCONT)
        await cluster.until("new to run", lambda: cluster.phase("new") == "Running")
        assert cluster.states() == []

        # Let go.
        await cluster.kubectl("annotate", "node", "n-a", "hami.io/device-cordon=all")
        used = ["cordoned; still used by pod default/new"]
        await cluster.until("the card to be cordoned", lambda: cluster.states() == used)
        assert cluster.open_cards("agent") == {"nvidiactl", "nvidia0"}
        await cluster.kubectl("delete", "pod", "new")
        await cluster.until("the card to be released", lambda: cluster.states() == ["released"])
        await cluster.until("the agent to let it go", lambda: not cluster.open_cards("agent"))
        await cluster.until("the monitor to let it go", lambda: not cluster.open_cards("monitor"))
        await cluster.kubectl("annotate", "node", "n-a", "hami.io/device-cordon-")
        cluster.create("next")
        await cluster.until("next to run", lambda: cluster.phase("next") == "Running")
