"""Logs over HTTP, as the API server asks for them."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from hami_sandbox.kubelet.main import Kubelet
from sandbox.tests.unit.kubelet.pods import pod
from sandbox.tests.unit.kubelet.rig import TOKEN, Node
from tests.unit.kube.following import until


def write(node: Node, *texts: str, end: str = "\n") -> None:
    for text in texts:
        append(node, f"2026-01-01T00:00:01.000000001Z stdout F {text}{end}")


def append(node: Node, text: str) -> None:
    with Path(node.runtime.latest("main").spec.log).open("a") as file:
        file.write(text)


async def ask(
    kubelet: Kubelet, query: str = "", *, path: str = "default/p/main"
) -> tuple[int, str]:
    url = f"http://127.0.0.1:{kubelet.log_server.port}/containerLogs/{path}?{query}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def up(node: Node) -> None:
    node.put(pod())
    await until(lambda: node.phase() == "Running")


async def test_what_was_written(node: Node) -> None:
    async with node.running() as kubelet:
        await up(node)
        write(node, "one", "two", "three")
        assert await ask(kubelet) == (200, "one\ntwo\nthree\n")
        assert await ask(kubelet, "tailLines=1&timestamps=true") == (
            200,
            "2026-01-01T00:00:01.000000001Z three\n",
        )
        assert await ask(kubelet, "limitBytes=5") == (200, "one\nt")
        assert await ask(kubelet, "sinceSeconds=1") == (200, "")
        assert await ask(kubelet, "sinceTime=2026-01-01T00:00:00Z&tailLines=1") == (200, "three\n")
        assert (await ask(kubelet, "tailLines=x"))[0] == 400


async def test_following_to_the_end(node: Node) -> None:
    async with node.running() as kubelet:
        await up(node)
        write(node, "one", "two")
        url = f"http://127.0.0.1:{kubelet.log_server.port}/containerLogs/default/p/main"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        query = {"follow": "true", "tailLines": "1"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, params=query, headers=headers) as answer,
        ):
            assert await answer.content.readline() == b"two\n"
            write(node, "thr", end="")
            append(node, "ee\n")
            assert await answer.content.readline() == b"three\n"
            write(node, "last")
            node.runtime.end("main")
            assert await answer.content.read() == b"last\n"


async def test_the_run_before(node: Node) -> None:
    async with node.running() as kubelet:
        await up(node)
        assert await ask(kubelet, "previous=true") == (
            400,
            'previous terminated container "main" in pod "p" not found',
        )
        write(node, "first run")
        node.runtime.end("main", 1)
        await until(lambda: node.runtime.latest("main").spec.attempt == 1)
        await until(lambda: "running" in node.state())
        write(node, "second run")
        assert await ask(kubelet, "previous=true") == (200, "first run\n")
        assert await ask(kubelet) == (200, "second run\n")


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("default/q/main", 404, 'pods "q" not found'),
        ("default/p/other", 400, 'container "other" in pod "p" is not available'),
        (
            "default/p/main",
            400,
            'container "main" in pod "p" is waiting to start: CreateContainerError',
        ),
    ],
)
async def test_what_has_no_log(node: Node, path: str, status: int, told: str) -> None:
    node.runtime.refuses_create["main"] = "no"
    async with node.running() as kubelet:
        node.put(pod())
        await until(lambda: node.waits_for() == "CreateContainerError")
        await until(lambda: kubelet.pods.find("default", "p") == node.api.find("pods", "p"))
        assert await ask(kubelet, path=path) == (status, told)


async def test_only_who_knows_the_token_reads(node: Node) -> None:
    async with node.running() as kubelet, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{kubelet.log_server.port}"
        async with session.get(f"{base}/pods") as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with session.get(f"{base}/pods", headers=headers) as answer:
            assert (await answer.json())["items"] == []
        async with session.get(f"{base}/healthz") as answer:
            assert answer.status == 200
