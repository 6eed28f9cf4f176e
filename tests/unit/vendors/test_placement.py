"""Placement by vendor: registered cards, fit, reasons, and what plugins read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import pod
from tests.unit.vendors import fleets
from tests.unit.vendors.fleets import container

DCU = "DCU-1,4,32768,100,DCU-Z100,0,true,0,hami-core:DCU-2,4,32768,100,DCU-K100,0,true,1,hami-core:"
HYGON = fleets.node("n", {"hygon.com/dcunum": 8}, **{"hami.io/node-dcu-register": DCU})
MLU = fleets.node(
    "n",
    {"cambricon.com/mlu.smlu.vcore": 200, "cambricon.com/mlu.smlu.vmemory": 160},
)
GCU = fleets.node("n", {"enflame.com/gcu": 2})
PROFILES = {"1g.8gb": "7", "2g.16gb": "5", "3g.24gb": "3", "6g.48gb": "0"}
REGISTER = {
    "devices": [
        {"index": "0", "minor": "4", "capacity": 6},
        {"index": "1", "minor": "", "capacity": "6"},
    ],
    "profiles": PROFILES,
}
DRS = fleets.node("n", **{"enflame.com/gcu-drs-capacity": json.dumps(REGISTER)})
VGCU = fleets.node("n", {"enflame.com/gcu-count": 2, "enflame.com/shared-gcu": 12})
AMD_CARDS: list[dict[str, Any]] = [
    {
        "id": "amd-0",
        "count": 4,
        "devmem": 65536,
        "devcore": 104,
        "type": "AMD MI210",
        "health": True,
    },
    {
        "id": "amd-1",
        "index": 1,
        "count": 4,
        "devmem": 196608,
        "devcore": 304,
        "type": "AMD MI300X",
        "health": True,
    },
]
AMD = fleets.node("n", {"amd.com/gpu": 8}, **{"hami.io/node-amd-register": json.dumps(AMD_CARDS)})
BIREN_CARDS: list[dict[str, Any]] = [
    {"id": f"br-{at}", "index": at, "count": 1, "devmem": 32768, "type": "Biren106", "health": True}
    for at in range(2)
]
BIREN = fleets.node(
    "n", {"birentech.com/gpu": 2}, **{"hami.io/node-biren-register": json.dumps(BIREN_CARDS)}
)
ILUVATAR = fleets.node(
    "n",
    {"iluvatar.ai/MR-V100-vgpu": 200},
    **{
        "hami.io/node-MR-V100-register": "GPU-a,100,32768,100,MR-V100,0,true:"
        "GPU-b,100,32768,100,MR-V100,0,true,1,:"
    },
)
BOTH_GCUS = "n-GCU-0,GCU,100,100:n-GCU-1,GCU,100,100:;"
BOTH_AMD_CARDS = "amd-0,AMD MI210,1000,26:amd-1,AMD MI300X,1000,76:;"
USE_DCU_2 = {"hygon.com/use-gpuuuid": "DCU-2"}


@pytest.mark.parametrize(
    ("node", "pod_", "want"),
    [
        pytest.param(
            HYGON,
            pod(
                "p",
                container(**{"hygon.com/dcunum": 1, "hygon.com/dcumem": 4096}),
                annotations=USE_DCU_2,
            ),
            {
                "hami.io/dcu-devices-to-allocate": "DCU-2,DCU,4096,100:;",
                "hami.io/dcu-devices-allocated": "DCU-2,DCU,4096,100:;",
            },
            id="Hygon, memory given",
        ),
        pytest.param(
            HYGON,
            pod(
                "p",
                container("plain"),
                container(**{"hygon.com/dcunum": 1, "hygon.com/dcucores": 30}),
                annotations={"hygon.com/use-dcutype": "k100"},
            ),
            {
                "hami.io/dcu-devices-to-allocate": ";DCU-2,DCU,32768,30:;",
                "hami.io/dcu-devices-allocated": ";DCU-2,DCU,32768,30:;",
            },
            id="Hygon, all memory and part of the compute of a product",
        ),
        pytest.param(
            MLU,
            pod(
                "p",
                container("plain"),
                container(
                    **{
                        "cambricon.com/vmlu": 1,
                        "cambricon.com/mlu.smlu.vmemory": 20,
                        "cambricon.com/mlu.smlu.vcore": 10,
                    }
                ),
                annotations={"cambricon.com/use-gpuuuid": "n-cambricon-mlu-1"},
            ),
            {
                "CAMBRICON_DSMLU_ASSIGNED": "false",
                "CAMBRICON_DSMLU_PROFILE": "1_10_20",
                "hami.io/cambricon-mlu-devices-to-allocate": ";n-cambricon-mlu-1,MLU,5120,10:;",
                "hami.io/cambricon-mlu-devices-allocated": ";n-cambricon-mlu-1,MLU,5120,10:;",
            },
            id="Cambricon",
        ),
        pytest.param(
            GCU,
            pod("p", container(**{"enflame.com/gcu": 2})),
            {
                "hami.io/enflame-gcu-devices-to-allocate": BOTH_GCUS,
                "hami.io/enflame-gcu-devices-allocated": BOTH_GCUS,
            },
            id="Enflame, whole cards",
        ),
        pytest.param(
            DRS,
            pod(
                "p",
                container("b", **{"enflame.com/drs-gcu": 3}),
                container("a", **{"enflame.com/gcu-memory": 9000, "enflame.com/gcu-core": 20}),
                init=[container("plain")],
                annotations={"enflame.com/use-gpuuuid": "n-enflame-drs-0"},
            ),
            {
                "hami.io/enflame-vgpu-devices-allocated": ";n-enflame-drs-0,Enflame,24576,50:;"
                "n-enflame-drs-0,Enflame,16384,34:;",
                "enflame.com/gcu-assigned": "false",
                "enflame.com/gcu-assigned-time": "1700000000123456000",
                "enflame.com/gcu-assigned-index": "0",
                "enflame.com/gcu-assigned-id": "0",
                "enflame.com/gcu-assigned-minor": "4",
                "enflame.com/gcu-request-size": "3",
                "assigned-containers": '{"a":{"allocated":false,"request":2,"profileID":"5",'
                '"profileName":"2g.16gb"},"b":{"allocated":false,"request":3,"profileID":"3",'
                '"profileName":"3g.24gb"}}',
            },
            id="Enflame, by profile: slices, and MiB with compute",
        ),
        pytest.param(
            VGCU,
            pod("p", container("plain"), container(**{"enflame.com/vgcu": 2})),
            {
                "hami.io/enflame-vgpu-devices-allocated": ";n-enflame-0,Enflame,100,0:"
                "n-enflame-1,Enflame,100,0:;",
                "enflame.com/gcu-assigned": "false",
                "enflame.com/gcu-assigned-time": "1700000000123456000",
                "enflame.com/gcu-assigned-id": "0,1",
            },
            id="Enflame, by percent",
        ),
        pytest.param(
            AMD,
            pod(
                "p",
                container(**{"amd.com/gpu": 2, "amd.com/gpumem": 1000, "amd.com/gpucores": 25}),
            ),
            {
                "hami.io/amd-devices-to-allocate": BOTH_AMD_CARDS,
                "hami.io/amd-devices-allocated": BOTH_AMD_CARDS,
            },
            id="AMD, compute units of each card",
        ),
        pytest.param(
            fleets.node(
                "n",
                {"amd.com/gpu": 1},
                **{"hami.io/node-amd-register": json.dumps([{**AMD_CARDS[0], "devcore": 10}])},
            ),
            pod("p", container(**{"amd.com/gpu": 1, "amd.com/gpumem": 9, "amd.com/gpucores": 5})),
            {
                "hami.io/amd-devices-to-allocate": "amd-0,AMD MI210,9,1:;",
                "hami.io/amd-devices-allocated": "amd-0,AMD MI210,9,1:;",
            },
            id="AMD, one unit at least",
        ),
        pytest.param(
            AMD,
            pod("p", container(**{"amd.com/gpu": 1}), annotations={"amd.com/use-gputype": "mi300"}),
            {
                "hami.io/amd-devices-to-allocate": "amd-1,AMD MI300X,196608,304:;",
                "hami.io/amd-devices-allocated": "amd-1,AMD MI300X,196608,304:;",
            },
            id="AMD, a whole card",
        ),
        pytest.param(
            BIREN,
            pod("p", container(**{"birentech.com/gpu": 2})),
            {
                "hami.io/Biren-devices-to-allocate": "br-0,Biren,0,0:br-1,Biren,0,0:;",
                "hami.io/Biren-devices-allocated": "br-0,Biren,0,0:br-1,Biren,0,0:;",
            },
            id="Biren",
        ),
        pytest.param(
            ILUVATAR,
            pod(
                "p",
                container(**{"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vMem": 4}),
                annotations={"hami.io/no-use-MR-V100-uuid": "GPU-a"},
            ),
            {
                "hami.io/MR-V100-devices-to-allocate": "GPU-b,MR-V100,1024,0:;",
                "hami.io/MR-V100-devices-allocated": "GPU-b,MR-V100,1024,0:;",
            },
            id="Iluvatar",
        ),
    ],
)
def test_a_pod_gets_its_cards_in_the_bytes_that_its_plugin_reads(
    node: Any, pod_: Any, want: dict[str, str]
) -> None:
    assert fleets.written(fleets.cluster_of(node), pod_) == want


@pytest.mark.parametrize(
    ("node", "before", "pod_", "want"),
    [
        pytest.param(
            HYGON,
            [container(**{"hygon.com/dcunum": 2, "hygon.com/dcucores": 60})],
            pod("p", container(**{"hygon.com/dcunum": 1, "hygon.com/dcumem": 1})),
            "2/2 CardInsufficientMemory",
            id="Hygon, memory",
        ),
        pytest.param(
            HYGON,
            [container(**{"hygon.com/dcunum": 2, "hygon.com/dcumem": 1, "hygon.com/dcucores": 60})],
            pod(
                "p",
                container(
                    **{"hygon.com/dcunum": 1, "hygon.com/dcumem": 1, "hygon.com/dcucores": 50}
                ),
            ),
            "2/2 CardInsufficientCore",
            id="Hygon, compute",
        ),
        pytest.param(
            MLU,
            [
                container(
                    **{
                        "cambricon.com/vmlu": 1,
                        "cambricon.com/mlu.smlu.vmemory": 1,
                        "cambricon.com/mlu.smlu.vcore": 1,
                    }
                )
            ],
            pod("p", container(**{"cambricon.com/vmlu": 2, "cambricon.com/mlu.smlu.vmemory": 1})),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore",
            id="Cambricon, cards without a limit of compute are whole",
        ),
        pytest.param(
            GCU,
            [container(**{"enflame.com/gcu": 1})],
            pod("p", container(**{"enflame.com/gcu": 2})),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
            id="Enflame, whole cards are for one",
        ),
        pytest.param(
            DRS,
            [],
            pod("p", container(**{"enflame.com/drs-gcu": 4})),
            "2/2 ModeNotFit",
            id="Enflame, no profile of four slices",
        ),
        pytest.param(
            DRS,
            [container(**{"enflame.com/drs-gcu": 6}), container("b", **{"enflame.com/drs-gcu": 3})],
            pod("p", container(**{"enflame.com/gcu-memory": 25})),
            "1/2 CardInsufficientMemory, 1/2 CardTimeSlicingExhausted",
            id="Enflame, slices count",
        ),
        pytest.param(
            VGCU,
            [container(**{"enflame.com/vgcu": 2, "enflame.com/vgcu-percentage": 100})],
            pod("p", container(**{"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 1})),
            "2/2 CardInsufficientMemory",
            id="Enflame, percent",
        ),
        pytest.param(
            AMD,
            [container(**{"amd.com/gpu": 2, "amd.com/gpumem": 1, "amd.com/gpucores": 60})],
            pod("p", container(**{"amd.com/gpu": 1, "amd.com/gpumem": 1, "amd.com/gpucores": 42})),
            "2/2 CardInsufficientCore",
            id="AMD, compute units",
        ),
        pytest.param(
            BIREN,
            [container(**{"birentech.com/gpu": 1})],
            pod("p", container(**{"birentech.com/gpu": 2})),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted",
            id="Biren",
        ),
        pytest.param(
            ILUVATAR,
            [
                container(
                    **{
                        "iluvatar.ai/MR-V100-vgpu": 2,
                        "iluvatar.ai/MR-V100.vMem": 1,
                        "iluvatar.ai/MR-V100.vCore": 100,
                    }
                )
            ],
            pod("p", container(**{"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vMem": 1})),
            "2/2 CardComputeUnitsExhausted",
            id="Iluvatar, nothing left for a container without a limit",
        ),
        pytest.param(
            HYGON,
            [],
            pod("p", container(**{"hygon.com/dcunum": 3})),
            "NodeInsufficientDevice",
            id="too few cards",
        ),
        pytest.param(
            HYGON,
            [],
            pod("p", container(**{"amd.com/gpu": 1})),
            "Device type not found",
            id="another vendor's node",
        ),
    ],
)
def test_a_pod_that_does_not_fit_is_refused_in_hamis_words(
    node: Any, before: list[Any], pod_: Any, want: str
) -> None:
    cluster = fleets.cluster_of(node)
    if before:
        cluster.observe_pod(fleets.bound(cluster, "before", *before))

    assert fleets.refusal(cluster, pod_) == want


@pytest.mark.parametrize(
    "node", [HYGON, AMD, BIREN, ILUVATAR], ids=["DCU", "AMD", "Biren", "Iluvatar"]
)
def test_a_node_whose_plugin_left_kubelet_has_no_cards(node: Any) -> None:
    (name,) = node.capacity
    left = fleets.node("n", {name: 0}, **{k: v or "" for k, v in node.annotations.items()})

    assert (
        fleets.refusal(fleets.cluster_of(left), pod("p", container(**{name: 1})))
        == "node unregistered"
    )


def test_slices_of_a_profile_are_counted_again_after_a_restart() -> None:
    cluster = fleets.cluster_of(DRS)
    first = fleets.bound(cluster, "first", container(**{"enflame.com/drs-gcu": 3}))
    again = fleets.cluster_of(DRS, pods=(first,))

    assert sorted(fleets.held(again, "n").values()) == [(0, 0, 0), (3, 24576, 50)]


def test_a_profile_of_a_pod_without_a_list_counts_with_its_slices() -> None:
    bypassed = pod("p", container(**{"enflame.com/drs-gcu": 2}), node_name="n")

    held = fleets.held(fleets.cluster_of(DRS, pods=(bypassed,)), "n")
    assert sorted(held.values()) == [(0, 0, 0), (2, 16384, 34)]


def test_a_list_that_two_kinds_of_cards_share_counts_for_its_own_kind_only() -> None:
    both = fleets.node("n", VGCU.capacity, **{k: v or "" for k, v in DRS.annotations.items()})
    cluster = fleets.cluster_of(both)
    shared = fleets.bound(
        cluster, "p", container(**{"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 33})
    )
    cluster.observe_pod(shared)

    assert [card for card, use in fleets.held(cluster, "n").items() if any(use)] in (
        ["n-enflame-0"],
        ["n-enflame-1"],
    )
