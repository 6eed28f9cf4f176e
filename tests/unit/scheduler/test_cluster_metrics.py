"""Metrics of the cluster: names, labels and numbers, by hand-computed examples."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.metrics_core import Metric

from hami.cluster import state
from hami.cluster.pod_info import Hold, PodInfo
from hami.cluster.state import Cluster
from hami.scheduler import cluster_metrics
from hami.wire.objects import ContainerKind
from hami.wire.shares import Share
from tests import builders as b
from tests.unit.vendors import fleets
from tests.unit.vendors import test_placement as tp

MIB = 2**20
DEFAULTS: dict[str, Any] = {"legacy": False, "cards": True, "container_limit": 20_000}
TYPE = "NVIDIA A100-SXM4-40GB"


async def text(cluster: Cluster, **options: Any) -> str:
    chunks = [c async for c in cluster_metrics.families(cluster, **(DEFAULTS | options))]
    return b"".join(chunks).decode()


async def read(cluster: Cluster, **options: Any) -> dict[str, Metric]:
    """Parse everything; each sample must have the zone, which is then left out."""
    found: dict[str, Metric] = {}
    for family in parser.text_string_to_metric_families(await text(cluster, **options)):
        assert family.name not in found
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.pop("zone") == "vGPU"
        found[family.name] = family
    return found


def samples(family: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    """Return values by the named labels; all labels must be named."""
    for sample in family.samples:
        assert set(sample.labels) == set(labels)
    by_labels = {tuple(s.labels[label] for label in labels): s.value for s in family.samples}
    assert len(by_labels) == len(family.samples)
    return by_labels


#: The two containers of `web` hold different cards; `train` has an init container first.
def small_cluster() -> Cluster:
    return b.cluster(
        b.node("n1", [b.card("GPU-a", index=0), b.card("GPU-b", index=1, devmem=16000)]),
        b.node("n2", [b.card("GPU-c", index=3, devcore=200, type="NVIDIA T4")]),
        b.granted("web", "n1", [("GPU-a", 1000, 10)], [("GPU-b", 2000, 20), ("GPU-a", 500, 5)]),
        b.granted(
            "train",
            "n2",
            [("GPU-c", 4000, 50)],
            [],
            [("GPU-c", 3000, 40)],
            init=[b.container("prepare", gpu=1)],
            containers=[b.container("side"), b.container("main", gpu=1)],
            namespace="science",
        ),
        b.quota("limits", memory=6000),
        b.quota("limits", namespace="empty", cores=300),
    )


CARD = ("node", "device_uuid", "device_index", "device_type")
A, B, C = ("n1", "GPU-a", "0", TYPE), ("n1", "GPU-b", "1", TYPE), ("n2", "GPU-c", "3", "NVIDIA T4")


async def test_cards_have_samples_of_limits_and_use() -> None:
    found = await read(small_cluster())
    want = {
        "hami_gpu_memory_limit_bytes": {A: 8000 * MIB, B: 16000 * MIB, C: 8000 * MIB},
        "hami_gpu_core_limit_ratio": {A: 100, B: 100, C: 200},
        "hami_gpu_shared_count": {A: 2, B: 1, C: 1},
        "hami_gpu_core_allocated_ratio": {A: 15, B: 20, C: 50},
        "hami_node_gpu_memory_allocated_ratio": {A: 1500 / 8000, B: 2000 / 16000, C: 0.5},
    }
    assert {name: samples(found[name], *CARD) for name in want} == want


async def test_use_of_memory_is_labelled_with_the_cards_cores_and_memory() -> None:
    found = await read(small_cluster())
    allocated = samples(found["hami_gpu_memory_allocated_bytes"], *CARD, "device_cores")
    assert allocated == {
        (*A, "100"): 1500 * MIB,
        (*B, "100"): 2000 * MIB,
        (*C, "200"): 4000 * MIB,
    }
    overview = samples(
        found["hami_node_gpu_overview"], *CARD, "device_cores", "device_memory_limit"
    )
    assert overview == {
        (*A, "100", "8000"): 1500 * MIB,
        (*B, "100", "16000"): 2000 * MIB,
        (*C, "200", "8000"): 4000 * MIB,
    }


SHARE = ("namespace", "node", "pod", "container_index", "device_uuid")


async def test_every_container_has_samples_with_its_own_index_and_cards() -> None:
    found = await read(small_cluster())
    assert samples(found["hami_vgpu_memory_allocated_bytes"], *SHARE) == {
        ("default", "n1", "web", "0", "GPU-a"): 1000 * MIB,
        ("default", "n1", "web", "1", "GPU-b"): 2000 * MIB,
        ("default", "n1", "web", "1", "GPU-a"): 500 * MIB,
        ("science", "n2", "train", "0", "GPU-c"): 4000 * MIB,
        ("science", "n2", "train", "2", "GPU-c"): 3000 * MIB,
    }
    assert samples(found["hami_vgpu_core_allocated_ratio"], *SHARE) == {
        ("default", "n1", "web", "0", "GPU-a"): 10,
        ("default", "n1", "web", "1", "GPU-b"): 20,
        ("default", "n1", "web", "1", "GPU-a"): 5,
        ("science", "n2", "train", "0", "GPU-c"): 50,
        ("science", "n2", "train", "2", "GPU-c"): 40,
    }


async def test_an_init_container_that_has_ended_holds_nothing() -> None:
    cluster = b.cluster(
        b.node("n", [b.card("GPU-a")]),
        b.granted(
            "train",
            "n",
            [("GPU-a", 4000, 50)],
            [("GPU-a", 3000, 40)],
            init=[b.container("prepare", gpu=1)],
            init_exit_codes={"prepare": 0},
        ),
    )
    found = await read(cluster)
    shares = samples(found["hami_vgpu_memory_allocated_bytes"], *SHARE)
    assert shares == {("default", "n", "train", "1", "GPU-a"): 3000 * MIB}
    (used,) = samples(found["hami_gpu_memory_allocated_bytes"], *CARD, "device_cores").values()
    assert used == 3000 * MIB


async def test_two_grants_of_one_card_to_one_container_are_one_sample() -> None:
    grants = [("GPU-a", 1000, 10), ("GPU-a", 300, 3)]
    found = await read(b.cluster(b.node("n", [b.card("GPU-a")]), b.granted("p", "n", grants)))
    key = ("default", "n", "p", "0", "GPU-a")
    assert samples(found["hami_vgpu_memory_allocated_bytes"], *SHARE) == {key: 1300 * MIB}
    assert samples(found["hami_vgpu_core_allocated_ratio"], *SHARE) == {key: 13}


async def test_quotas_have_samples_by_resource_with_use_and_limit() -> None:
    found = await read(small_cluster())
    used = samples(found["hami_resource_quota_used"], "namespace", "quota_name", "limit")
    assert used == {
        ("default", b.MEMORY, "6000"): 3500,
        ("default", b.CORES, "0"): 35,
        ("science", b.MEMORY, "0"): 4000,
        ("science", b.CORES, "0"): 50,
        ("empty", b.CORES, "300"): 0,
    }
    limits = samples(found["hami_resource_quota_limit"], "namespace", "quota_name")
    assert limits == {("default", b.MEMORY): 6000, ("empty", b.CORES): 300}


async def test_the_tightest_of_several_limits_counts() -> None:
    found = await read(b.cluster(b.quota("wide", memory=900), b.quota("tight", memory=0)))
    limits = samples(found["hami_resource_quota_limit"], "namespace", "quota_name")
    assert limits == {("default", b.MEMORY): 0}


async def test_a_reservation_counts_as_allocated() -> None:
    cluster = b.cluster(b.node("n", [b.card("GPU-a")]))
    row = PodInfo(
        uid="u",
        namespace="default",
        name="p",
        node="n",
        kinds=(ContainerKind.APP,),
        shares=((b.NVIDIA.name, ((Share("GPU-a", b.NVIDIA.name, 700, 7),),)),),
        hold=Hold.RESERVED,
    )
    cluster.apply(state.PutPod(row))
    found = await read(cluster)
    (used,) = found["hami_gpu_memory_allocated_bytes"].samples
    (share,) = found["hami_vgpu_memory_allocated_bytes"].samples
    assert (used.value, share.value) == (700 * MIB, 700 * MIB)


async def test_a_card_without_memory_has_no_ratio() -> None:
    found = await read(b.cluster(b.node("n", [b.card("GPU-a", devmem=0)])))
    assert found["hami_node_gpu_memory_allocated_ratio"].samples == []
    assert len(found["hami_gpu_memory_limit_bytes"].samples) == 1


async def test_compute_units_of_amd_are_percent_rounded_up_but_raw_by_old_names() -> None:
    cluster = b.cluster(
        b.node("n", [b.card("GPU-a", devcore=304, type="amd Instinct MI300X")]),
        b.granted("p", "n", [("GPU-a", 1000, 100)]),
    )
    found = await read(cluster, legacy=True)
    values = {name: [sample.value for sample in found[name].samples] for name in found}
    assert values["hami_gpu_core_limit_ratio"] == [100]
    assert values["hami_gpu_core_allocated_ratio"] == [33]  # 100 * 100 / 304 = 32.9
    assert values["hami_vgpu_core_allocated_ratio"] == [33]
    assert values["GPUDeviceCoreLimit"] == [304]
    assert values["GPUDeviceCoreAllocated"] == [100]
    assert values["vGPUCoreAllocated"] == [100]


async def test_mig_slices_are_announced_without_samples() -> None:
    found = await read(small_cluster(), legacy=True)
    for name in ("hami_node_gpu_mig_instance_info", "nodeGPUMigInstance"):
        assert found[name].samples == []


OLD_CARD = ("nodeid", "deviceuuid", "deviceidx")


@pytest.mark.parametrize(
    ("old", "new", "labels"),
    [
        ("GPUDeviceMemoryLimit", "hami_gpu_memory_limit_bytes", (*OLD_CARD, "devicetype")),
        ("GPUDeviceCoreLimit", "hami_gpu_core_limit_ratio", (*OLD_CARD, "devicetype")),
        (
            "GPUDeviceMemoryAllocated",
            "hami_gpu_memory_allocated_bytes",
            (*OLD_CARD, "devicecores", "devicetype"),
        ),
        ("GPUDeviceSharedNum", "hami_gpu_shared_count", (*OLD_CARD, "devicetype")),
        ("GPUDeviceCoreAllocated", "hami_gpu_core_allocated_ratio", (*OLD_CARD, "devicetype")),
        (
            "nodeGPUOverview",
            "hami_node_gpu_overview",
            (*OLD_CARD, "devicecores", "devicememorylimit", "devicetype"),
        ),
        ("nodeGPUMemoryPercentage", "hami_node_gpu_memory_allocated_ratio", OLD_CARD),
        ("QuotaUsed", "hami_resource_quota_used", ("quotanamespace", "quotaName", "limit")),
        (
            "vGPUMemoryAllocated",
            "hami_vgpu_memory_allocated_bytes",
            ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
        ),
        (
            "vGPUCoreAllocated",
            "hami_vgpu_core_allocated_ratio",
            ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
        ),
    ],
)
async def test_old_names_say_the_same_when_asked_for(
    old: str, new: str, labels: tuple[str, ...]
) -> None:
    cluster = small_cluster()
    assert old not in await read(cluster)
    found = await read(cluster, legacy=True)
    assert [list(sample.labels) for sample in found[old].samples] == (
        [list(labels)] * len(found[new].samples)
    )
    assert [s.value for s in found[old].samples] == [s.value for s in found[new].samples]
    dropped = len(found[new].samples[0].labels) - len(labels)
    for before, after in zip(found[new].samples, found[old].samples, strict=True):
        assert list(after.labels.values()) == (list(before.labels.values())[: -dropped or None])


async def test_all_names_of_hami_are_there_even_with_an_empty_cluster() -> None:
    names = [
        line.split()[2]
        for line in (await text(b.cluster(), legacy=True)).splitlines()
        if line.startswith("# TYPE")
    ]
    assert len(names) == len(set(names)) == 12 + 11 + len(OUR_SUMS)


async def test_numbers_are_written_out_exactly() -> None:
    large = 2**31 - 1
    lines = (await text(b.cluster(b.node("n", [b.card("GPU-a", devmem=large)])))).splitlines()
    assert any(
        line.startswith("hami_gpu_memory_limit_bytes{") and line.endswith(f"}} {large * MIB}")
        for line in lines
    )


async def test_odd_names_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    found = await read(b.cluster(b.node("n", [b.card("GPU-a", type=odd)])))
    assert found["hami_gpu_shared_count"].samples[0].labels["device_type"] == odd


async def test_nodes_and_pods_may_come_and_go_between_two_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_metrics, "_CHUNK", 3)
    nodes = [b.node(f"n{at}", b.cards(f"GPU-{at}", 4)) for at in range(10)]
    wide = [b.node(node.name, b.cards(f"wide-{node.name}", 20)) for node in nodes]
    pods = [b.granted(f"p{at}", f"n{at}", [(f"GPU-{at}-0", 10, 1)]) for at in range(10)]
    cluster = b.cluster(*nodes, *pods)
    chunks = []
    async for chunk in cluster_metrics.families(cluster, **(DEFAULTS | {"legacy": True})):
        chunks.append(chunk)
        at = len(chunks) % 10
        if len(chunks) % 3 == 0:
            cluster.forget_node(f"n{at}")
            cluster.forget_pod(f"p{at}")
        elif len(chunks) % 3 == 1:
            cluster.observe_node(wide[at])
        else:
            cluster.observe_node(nodes[at])
            cluster.observe_pod(pods[at])
        await asyncio.sleep(0)
    families = list(parser.text_string_to_metric_families(b"".join(chunks).decode()))
    assert len({family.name for family in families}) == len(families) == 23 + len(OUR_SUMS)
    for family in families:
        keys = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(keys) == len(set(keys))


async def test_a_chunk_is_small_however_large_the_cluster() -> None:
    cluster = b.cluster(*(b.node(f"n{at}", b.cards(f"GPU-{at}", 8)) for at in range(200)))
    sizes = [chunk.count(b"\n") async for chunk in cluster_metrics.families(cluster, **DEFAULTS)]
    assert sum(sizes) > 7 * 1600
    assert max(sizes) <= 200


OUR_SUMS = (
    *("hami_node_memory_limit_bytes", "hami_node_memory_allocated_bytes", "hami_node_shares"),
    *("hami_cluster_cards", "hami_cluster_memory_limit_bytes"),
    *("hami_cluster_memory_allocated_bytes", "hami_cluster_shares"),
)


async def test_nodes_and_the_cluster_have_the_sums_of_their_cards() -> None:
    found = await read(small_cluster())
    assert {name: samples(found[name], "node") for name in OUR_SUMS[:3]} == {
        "hami_node_memory_limit_bytes": {("n1",): 24000 * MIB, ("n2",): 8000 * MIB},
        "hami_node_memory_allocated_bytes": {("n1",): 3500 * MIB, ("n2",): 4000 * MIB},
        "hami_node_shares": {("n1",): 3, ("n2",): 1},
    }
    assert {name: samples(found[name])[()] for name in OUR_SUMS[3:]} == {
        "hami_cluster_cards": 3,
        "hami_cluster_memory_limit_bytes": 32000 * MIB,
        "hami_cluster_memory_allocated_bytes": 7500 * MIB,
        "hami_cluster_shares": 4,
    }


async def test_without_metrics_of_cards_those_of_nodes_namespaces_and_the_cluster_remain() -> None:
    found = await read(small_cluster(), cards=False, legacy=True)
    quotas = ("hami_resource_quota_used", "hami_resource_quota_limit", "QuotaUsed")
    assert set(found) == {*OUR_SUMS, *quotas}


async def test_without_metrics_of_cards_shares_of_unknown_cards_have_none_either() -> None:
    cluster = b.cluster(b.node("n", [b.card("GPU-a")]), b.granted("p", "n", [("GPU-x", 1000, 10)]))
    found = await read(cluster, cards=False, legacy=True)
    assert not {name for name in found if name.startswith(("hami_vgpu", "vGPU"))}


@pytest.mark.parametrize(("limit", "written"), [(4, True), (3, False), (0, False)])
async def test_above_the_limit_no_container_has_metrics_and_the_text_says_so(
    limit: int, written: bool
) -> None:
    cluster = small_cluster()  # four shares on cards
    found = await read(cluster, container_limit=limit, legacy=True)
    assert ("hami_vgpu_memory_allocated_bytes" in found) == written
    assert ("vGPUMemoryAllocated" in found) == written
    assert "hami_gpu_memory_allocated_bytes" in found
    stated = f"out: 4 shares, --card-metrics=true --container-metrics-limit={limit}\n"
    assert (stated in await text(cluster, container_limit=limit)) != written
    omitted = cluster_metrics.omitted_shares(cluster, cards=True, container_limit=limit)
    assert omitted == (0 if written else 4)


async def test_all_samples_of_a_scrape_are_of_one_moment() -> None:
    cluster = b.cluster(b.node("n", [b.card("GPU-a")]), b.granted("p", "n", [("GPU-a", 1000, 10)]))
    writing = cluster_metrics.families(cluster, **DEFAULTS)
    chunks = [await anext(writing)]
    cluster.observe_pod(b.granted("q", "n", [("GPU-a", 2000, 20)]))
    cluster.forget_node("n")
    chunks += [chunk async for chunk in writing]
    lines = b"".join(chunks).decode().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if "allocated_bytes{" in line]
    assert values == [str(1000 * MIB)] * 4


async def test_pods_on_a_deleted_node_are_left_out_as_its_cards_are() -> None:
    cluster = b.cluster(b.node("n", [b.card("GPU-a")]), b.granted("p", "n", [("GPU-a", 1000, 10)]))
    cluster.forget_node("n")
    found = await read(cluster)
    assert found["hami_vgpu_memory_allocated_bytes"].samples == []
    assert found["hami_gpu_memory_allocated_bytes"].samples == []


async def test_cards_of_every_vendor_are_in_the_metrics() -> None:
    cluster = fleets.cluster_of(
        *(
            fleets.node(
                f"n{at}", node.capacity, **{k: v or "" for k, v in node.annotations.items()}
            )
            for at, node in enumerate((tp.HYGON, tp.MLU, tp.GCU, tp.DRS, tp.VGCU, tp.AMD, tp.BIREN))
        )
    )
    cluster.observe_pod(fleets.bound(cluster, "p", fleets.container(**{"enflame.com/drs-gcu": 3})))
    found = await read(cluster, legacy=True)

    allocated = found["hami_gpu_memory_allocated_bytes"].samples
    by_card = {sample.labels["device_uuid"]: sample.value for sample in allocated}
    assert by_card.pop("n3-enflame-drs-0", 0) + by_card.pop("n3-enflame-drs-1", 0) == 24576 * MIB
    assert set(by_card.values()) == {0.0}
    assert {"DCU-1", "n1-cambricon-mlu-1", "n2-GCU-0", "n4-enflame-1", "amd-1", "br-0"} < set(
        by_card
    )
