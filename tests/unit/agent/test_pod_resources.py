"""kubelet's PodResources are asked and read; a kubelet that does not answer is named."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from hami.agent.kubelet import kubelet_api
from hami.agent.kubelet.kubelet_api import PodResourcesError
from tests.e2e.kubelet_api.pod_resources import LISTER, MESSAGES
from tests.unit.agent.kubelet_rig import served, short_folder


@pytest.fixture
def socket() -> Iterator[pathlib.Path]:
    with short_folder() as folder:
        yield folder / "kubelet.sock"


def container(name: str, **ids: list[str]) -> dict[str, Any]:
    """Return a container; kubelet often sends a piece for each id."""
    pieces = [
        {"resource_name": f"nvidia.com/{resource}", "device_ids": [id_]}
        for resource, those in ids.items()
        for id_ in those
    ]
    return {"name": name, "devices": pieces, "cpu_ids": [1, 2]}


async def test_the_holders_of_a_resource_are_gathered_by_id(socket: pathlib.Path) -> None:
    pods = [
        {
            "namespace": "n",
            "name": "p",
            "containers": [
                container("main", gpu=["a", "b"], other=["x"]),
                container("side", gpu=["a"]),
            ],
        },
        {"namespace": "m", "name": "q", "containers": [container("none")]},
        {"namespace": "m", "name": "r", "containers": [container("main", gpu=["c"])]},
    ]

    async def tell(_request: Any, _context: Any) -> Any:
        return MESSAGES["ListPodResourcesResponse"](pod_resources=pods)

    async with served(socket, LISTER.handler({"List": tell})):
        assert await kubelet_api.holders(socket, "nvidia.com/gpu") == {
            "a": {("n", "p", "main"), ("n", "p", "side")},
            "b": {("n", "p", "main")},
            "c": {("m", "r", "main")},
        }
        assert await kubelet_api.holders(socket, "nvidia.com/none") == {}


async def test_a_list_of_many_megabytes_is_read(socket: pathlib.Path) -> None:
    pods = [
        {
            "namespace": "n",
            "name": f"p{number}",
            "containers": [{**container("c", gpu=["a"]), "cpu_ids": [2**62] * 20_000}],
        }
        for number in range(40)
    ]
    answer = MESSAGES["ListPodResourcesResponse"](pod_resources=pods)
    assert answer.ByteSize() > 5 << 20

    async def tell(_request: Any, _context: Any) -> Any:
        return answer

    async with served(socket, LISTER.handler({"List": tell})):
        found = await kubelet_api.holders(socket, "nvidia.com/gpu", timeout=30)
        assert len(found["a"]) == 40


async def test_a_missing_socket_is_named_with_the_remedy(socket: pathlib.Path) -> None:
    with pytest.raises(PodResourcesError, match=rf"{socket}: does not exist; .*--kubelet-dir"):
        await kubelet_api.holders(socket, "nvidia.com/gpu")


async def test_a_kubelet_that_refuses_is_quoted(socket: pathlib.Path) -> None:
    async def refuse(_request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    async with served(socket, LISTER.handler({"List": refuse})):
        with pytest.raises(
            PodResourcesError, match="does not list pods: RESOURCE_EXHAUSTED: rejected by rate"
        ):
            await kubelet_api.holders(socket, "nvidia.com/gpu")


async def test_a_kubelet_that_hangs_is_not_waited_for(socket: pathlib.Path) -> None:
    async def hang(_request: Any, _context: Any) -> None:
        await asyncio.Event().wait()

    async with served(socket, LISTER.handler({"List": hang})):
        with pytest.raises(PodResourcesError, match="DEADLINE_EXCEEDED"):
            await kubelet_api.holders(socket, "nvidia.com/gpu", timeout=0.05)
