"""Our messages and the tests' own are the same bytes; some are what kubelet's code has encoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent.kubelet import kubelet_api
from hami.agent.kubelet.grpc import MessageError
from hami.agent.kubelet.kubelet_api import AllocateResponse, DeviceSpec, Mount
from tests.e2e.kubelet_api import device_plugin, pod_resources
from tests.unit.e2e_tools import test_bare_plugin_messages as samples

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PAIRS = st.dictionaries(TEXTS, TEXTS, max_size=4)
ALLOCATIONS = st.builds(
    AllocateResponse,
    envs=PAIRS,
    mounts=st.lists(st.builds(Mount, TEXTS, TEXTS, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(st.builds(DeviceSpec, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
    annotations=PAIRS,
    cdi_devices=st.lists(TEXTS, max_size=3).map(tuple),
)


@given(ALLOCATIONS)
def test_an_answer_reads_the_same_in_both_implementations(answer: AllocateResponse) -> None:
    theirs = device_plugin.Allocation.decode(answer.encode())
    assert theirs.envs == answer.envs
    assert theirs.annotations == answer.annotations
    assert theirs.cdi_devices == answer.cdi_devices
    assert [(m.container_path, m.host_path, m.read_only) for m in theirs.mounts] == [
        (m.container_path, m.host_path, m.read_only) for m in answer.mounts
    ]
    assert [(d.container_path, d.host_path, d.permissions) for d in theirs.devices] == [
        (d.container_path, d.host_path, d.permissions) for d in answer.devices
    ]
    assert len(theirs.encode()) == len(answer.encode())  # the order of pairs is free
    assert AllocateResponse.decode(theirs.encode()) == answer


def test_an_answer_is_encoded_as_kubelet_does() -> None:
    read = AllocateResponse.decode(samples.ALLOCATION_BYTES)
    assert read.envs == {"A": "1", "B": "ü"}
    assert read.mounts == (Mount("/c", "/h", read_only=True),)
    assert read.devices == (DeviceSpec("/dev/a", "/dev/b", "rw"),)
    assert read.encode() == samples.ALLOCATION_BYTES


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05abc"])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        AllocateResponse.decode(data)


@pytest.mark.parametrize(
    ("ours", "name", "fields", "types"),
    [
        (
            kubelet_api.REGISTER.request,
            "RegisterRequest",
            {
                "version": "v1beta1",
                "endpoint": "hami.sock",
                "resource_name": "nvidia.com/gpu",
                "options": {"get_preferred_allocation_available": True},
            },
            device_plugin.MESSAGES,
        ),
        (
            kubelet_api.LIST_AND_WATCH.answer,
            "ListAndWatchResponse",
            {
                "devices": [
                    kubelet_api.device("a", healthy=True, numa=None),
                    kubelet_api.device("b", healthy=False, numa=0),
                    kubelet_api.device("c", healthy=True, numa=300),
                ]
            },
            device_plugin.MESSAGES,
        ),
        (
            kubelet_api.LIST_PODS.answer,
            "ListPodResourcesResponse",
            {
                "pod_resources": [
                    {
                        "name": "p",
                        "namespace": "n",
                        "containers": [
                            {
                                "name": "c",
                                "devices": [{"resource_name": "r", "device_ids": ["a", "b"]}],
                            }
                        ],
                    }
                ]
            },
            pod_resources.MESSAGES,
        ),
    ],
)
def test_a_message_has_the_same_field_numbers(
    ours: Any, name: str, fields: dict[str, Any], types: dict[str, Any]
) -> None:
    theirs = types[name](**fields)
    assert ours.encode(fields) == theirs.SerializeToString()


def test_no_numa_node_is_told_from_node_zero() -> None:
    answer = {
        "devices": [
            kubelet_api.device(id_, healthy=True, numa=numa)
            for id_, numa in (("a", None), ("b", 0))
        ]
    }
    theirs = device_plugin.MESSAGES["ListAndWatchResponse"].FromString(
        kubelet_api.LIST_AND_WATCH.answer.encode(answer)
    )
    assert [device_plugin.Device.of(device) for device in theirs.devices] == [
        device_plugin.Device("a"),
        device_plugin.Device("b", numa_nodes=(0,)),
    ]


def test_fields_that_we_do_not_know_are_passed_over() -> None:
    assert kubelet_api.LIST_PODS.answer.decode(samples.PODS_BYTES) == {
        "pod_resources": [
            {
                "name": "p",
                "namespace": "n",
                "containers": [
                    {"name": "c", "devices": [{"resource_name": "r", "device_ids": ["a", "b"]}]}
                ],
            }
        ]
    }
