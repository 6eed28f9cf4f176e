"""The messages have the bytes that kubelet 1.36.3's own Go types encode."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from tests.e2e.kubelet_api import device_plugin, pod_resources
from tests.e2e.kubelet_api.device_plugin import Allocation, Device, DeviceSpec, Mount
from tests.e2e.kubelet_api.pod_resources import PodDevices

ALLOCATION = Allocation(
    envs={"A": "1", "B": "ü"},
    mounts=(Mount("/c", "/h", read_only=True),),
    devices=(DeviceSpec("/dev/a", "/dev/b", "rw"),),
    annotations={"k": "v"},
    cdi_devices=("bare.hami.io/vgpu=t1",),
)
ALLOCATION_BYTES = (
    b"\x0a\x06\x0a\x01A\x12\x011"  # envs
    b"\x0a\x07\x0a\x01B\x12\x02\xc3\xbc"
    b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"  # mounts
    b"\x1a\x14\x0a\x06/dev/a\x12\x06/dev/b\x1a\x02rw"  # devices
    b"\x22\x06\x0a\x01k\x12\x01v"  # annotations
    b"\x2a\x16\x0a\x14bare.hami.io/vgpu=t1"  # cdi_devices
)
PODS = [
    {
        "name": "p",
        "namespace": "n",
        "containers": [
            {
                "name": "c",
                "devices": [
                    {
                        "resource_name": "r",
                        "device_ids": ["a", "b"],
                        "topology": {"nodes": [{"ID": 1}]},
                    }
                ],
                "cpu_ids": [1, 300],
                "memory": [{"memory_type": "memory", "size": 5}],
                "dynamic_resources": [
                    {
                        "claim_name": "cn",
                        "claim_namespace": "cs",
                        "claim_resources": [
                            {
                                "cdi_devices": [{"name": "x"}],
                                "driver_name": "d",
                                "pool_name": "po",
                                "device_name": "de",
                                "share_id": "s",
                            }
                        ],
                    }
                ],
            }
        ],
    }
]
PODS_BYTES = (
    b"\x0a\x4c\x0a\x01p\x12\x01n\x1a\x44\x0a\x01c"
    b"\x12\x0f\x0a\x01r\x12\x01a\x12\x01b\x1a\x04\x0a\x02\x08\x01"  # devices
    b"\x1a\x03\x01\xac\x02"  # cpu_ids, packed
    b"\x22\x0a\x0a\x06memory\x10\x05"
    b"\x2a\x1d\x12\x02cn\x1a\x02cs\x22\x13\x0a\x03\x0a\x01x\x12\x01d\x1a\x02po\x22\x02de\x2a\x01s"
)


@pytest.fixture
def socket() -> Iterator[pathlib.Path]:
    """Return a path that is short enough for a socket; pytest's own folders are not always."""
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        yield pathlib.Path(folder) / "s.sock"


def test_an_allocation_is_encoded_as_kubelet_does_and_read_back() -> None:
    assert ALLOCATION.encode() == ALLOCATION_BYTES
    assert Allocation.decode(ALLOCATION_BYTES) == ALLOCATION


@pytest.mark.parametrize(
    ("types", "name", "fields", "expected"),
    [
        (
            device_plugin.MESSAGES,
            "RegisterRequest",
            {
                "version": "v1beta1",
                "endpoint": "bare.sock",
                "resource_name": "example.com/vgpu",
                "options": {
                    "pre_start_required": True,
                    "get_preferred_allocation_available": True,
                },
            },
            b"\x0a\x07v1beta1\x12\x09bare.sock\x1a\x10example.com/vgpu\x22\x04\x08\x01\x10\x01",
        ),
        (
            device_plugin.MESSAGES,
            "PreferredAllocationRequest",
            {
                "container_requests": [
                    {
                        "available_deviceIDs": ["a"],
                        "must_include_deviceIDs": ["b"],
                        "allocation_size": 300,
                    }
                ]
            },
            b"\x0a\x09\x0a\x01a\x12\x01b\x18\xac\x02",
        ),
        (
            device_plugin.MESSAGES,
            "PreStartContainerRequest",
            {"devices_ids": ["d1", "d2"]},
            b"\x0a\x02d1\x0a\x02d2",
        ),
        (pod_resources.MESSAGES, "ListPodResourcesResponse", {"pod_resources": PODS}, PODS_BYTES),
    ],
)
def test_a_message_has_the_public_field_numbers(
    types: dict[str, Any], name: str, fields: dict[str, Any], expected: bytes
) -> None:
    message = types[name](**fields)
    assert message.SerializeToString(deterministic=True) == expected
    assert types[name].FromString(expected) == message


def test_a_device_names_its_numa_nodes() -> None:
    device = Device("d", numa_nodes=(0, 3))
    message = device_plugin.MESSAGES["ListAndWatchResponse"](devices=[device.message()])
    expected = b"\x0a\x14\x0a\x01d\x12\x07Healthy\x1a\x06\x0a\x00\x0a\x02\x08\x03"
    assert message.SerializeToString() == expected
    assert Device.of(message.devices[0]) == device


def test_a_share_that_is_not_named_is_told_from_an_empty_one() -> None:
    claim = pod_resources.MESSAGES["ClaimResource"]
    assert not claim.FromString(b"").HasField("share_id")
    assert claim.FromString(b"\x2a\x00").HasField("share_id")


def test_pod_resources_are_gathered_by_container_and_resource(socket: pathlib.Path) -> None:
    pieces = [
        {
            "resource_name": "r",
            "device_ids": [id_],
            "topology": {"nodes": [{"ID": node} for node in nodes]},
        }
        for id_, nodes in (("a", [0]), ("b", [1]), ("c", []))
    ]
    containers = [
        {"name": "one", "devices": [*pieces, {"resource_name": "q", "device_ids": ["x"]}]},
        {"name": "none"},
    ]
    asked = []
    types = pod_resources.MESSAGES
    pod = types["PodResources"](name="p", namespace="n", containers=containers)

    def get(request: Any, _context: Any) -> Any:
        asked.append((request.pod_namespace, request.pod_name))
        return types["GetPodResourcesResponse"](pod_resources=pod)

    functions = {
        "List": lambda _request, _context: types["ListPodResourcesResponse"](pod_resources=[pod]),
        "Get": get,
        "GetAllocatableResources": lambda _request, _context: types["AllocatableResourcesResponse"](
            devices=pieces
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((pod_resources.LISTER.handler(functions),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        rows = (
            PodDevices("n", "p", "one", "r", frozenset("abc"), frozenset({0, 1})),
            PodDevices("n", "p", "one", "q", frozenset("x")),
        )
        assert pod_resources.list_pod_resources(socket) == rows
        assert pod_resources.get_pod_resources(socket, "n", "p") == rows
        assert asked == [("n", "p")]
        assert pod_resources.allocatable_devices(socket) == {"r": frozenset("abc")}
    finally:
        server.stop(None).wait()


def test_a_kubelet_that_does_not_answer_is_named(socket: pathlib.Path) -> None:
    with pytest.raises(
        pod_resources.PodResourcesError, match=rf"PodResources List on {socket}: UNAVAILABLE"
    ):
        pod_resources.list_pod_resources(socket)


def test_a_call_that_the_plugin_does_not_have_is_unimplemented(socket: pathlib.Path) -> None:
    async def ask() -> grpc.StatusCode:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((device_plugin.DEVICE_PLUGIN.handler({}),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        client = device_plugin.PluginClient(socket)
        try:
            await client.pre_start(["d"])
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            await client.close()
            await server.stop(None)
        raise AssertionError

    assert asyncio.run(ask()) is grpc.StatusCode.UNIMPLEMENTED
