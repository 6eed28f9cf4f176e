"""The process with real containers: killed in the middle, it resumes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from hami_sandbox.programs import LIFELINE
from hami_sandbox.runtime.runtime import Runtime
from sandbox.tests.unit.kubelet.pods import NODE, container, pod
from sandbox.tests.unit.kubelet.rig import TOKEN, Node
from tests.unit.kube.following import PATIENCE_S, until

LIVES = ["sh", "-c", "echo up as $NAME; exec sleep 1000"]


class Lifeline:
    """Keeps containers alive, and their kubelet; without it they end."""

    def __init__(self) -> None:
        self.end, self._held = os.pipe()

    def cut(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


@pytest.fixture
def lifeline() -> Iterator[Lifeline]:
    made = Lifeline()
    try:
        yield made
    finally:
        made.cut()
        os.close(made.end)


@contextlib.asynccontextmanager
async def process(node: Node, lifeline: Lifeline) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run the process; at the end it is killed."""
    started = spawned(node, lifeline)
    try:
        yield started
    finally:
        started.kill()
        await asyncio.to_thread(started.wait)


def spawned(node: Node, lifeline: Lifeline) -> subprocess.Popen[bytes]:
    settings = node.settings()
    kubeconfig = node.folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": node.api.url}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "hami_sandbox.kubelet"),
            f"--node-name={NODE}",
            f"--kubeconfig={kubeconfig}",
            f"--folder={settings.folder}",
            f"--cdi-dirs={node.folder / 'cdi'}",
            f"--cri-socket={settings.cri_socket}",
            f"--runtime-dir={settings.runtime_dir}",
            f"--log-token-file={settings.log_token_file}",
            "--version=v1.36.3",
            "--backoff-initial=0.1",
        ],
        pass_fds=[lifeline.end],
        env={**os.environ, LIFELINE: str(lifeline.end)},
    )


def running(node: Node) -> dict[str, int]:
    """Return the processes of the containers that run, by pod."""
    found = Runtime(node.settings().runtime_dir, cdi_dirs=()).list()
    return {each.spec.pod_name: each.pid for each in found if each.phase == "running"}


async def test_killed_and_started_again(node: Node, lifeline: Lifeline) -> None:
    name = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    for each in ("stays", "goes"):
        node.put(pod(each, container(command=LIVES, env=[name]), terminationGracePeriodSeconds=1))
    async with process(node, lifeline):
        await until(lambda: node.phase("stays") == node.phase("goes") == "Running")
    before = running(node)
    assert set(before) == {"stays", "goes"}
    told = node.status("stays")
    half_made = node.settings().runtime_dir / "containers" / ".half-made"
    half_made.mkdir()
    node.api.remove("pods", "goes")
    node.put(pod("comes", container(command=["sh", "-c", "exit 3"]), restartPolicy="Never"))
    async with process(node, lifeline) as kubelet:
        await until(lambda: node.phase("comes") == "Failed")
        await until(lambda: "goes" not in running(node))
        assert running(node) == {"stays": before["stays"]}
        assert not half_made.exists()
        assert node.status("stays") == told
        assert node.state("main", "comes")["terminated"]["exitCode"] == 3
        assert await log(node, "stays") == "up as stays\n"
        kubelet.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(kubelet.wait, PATIENCE_S) == 0
    # The containers are not its: they went on.
    assert running(node) == {"stays": before["stays"]}


async def test_it_ends_with_its_sandbox(node: Node, lifeline: Lifeline) -> None:
    node.put(pod("p", container(command=LIVES)))
    async with process(node, lifeline) as kubelet:
        await until(lambda: node.phase() == "Running")
        lifeline.cut()
        assert await asyncio.to_thread(kubelet.wait, PATIENCE_S) == 0
        await until(lambda: not running(node))


async def log(node: Node, name: str) -> str:
    made = node.api.find("nodes", NODE)
    assert made is not None
    port = made["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"http://127.0.0.1:{port}/containerLogs/default/{name}/main"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return await answer.text()


def test_what_is_told_wrongly_is_said(tmp_path: Path) -> None:
    words = ["--node-name=n", "--kubeconfig=/no/such", f"--folder={tmp_path}", "--cdi-dirs=x"]
    words += [f"--cri-socket={tmp_path / 's'}", f"--runtime-dir={tmp_path}"]
    words += ["--log-token-file=/no/such", "--version=v1.36.3", "--labels=team"]
    ran = subprocess.run(
        [sys.executable, "-m", "hami_sandbox.kubelet", *words],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "--labels 'team': is no label; write them as key=value,..." in ran.stderr
