"""A cluster and a node with one of everything, for labels of metrics."""

from __future__ import annotations

import asyncio

from hami.monitor import metrics
from hami.monitor.collect import NodeSnapshot, ShareUsage
from hami.monitor.driver import CardProcesses, CardSample, DriverSample
from hami.monitor.findings import Findings
from hami.monitor.pods import WatchedPod
from hami.node.nvml_cards import Card
from hami.scheduler import cluster_metrics
from tests import builders as b

_CARD = "GPU-1"
_MIG = (
    '[{"deviceIndex":0,"gpuUUID":"GPU-1","profile":"1g.10gb","placement":{"start":0,"size":1},'
    '"migUUID":"MIG-1","gpuInstanceID":0,"containerIndex":0,"computeInstanceID":0}]'
)


def cluster_text(*, legacy: bool) -> str:
    """Return what the scheduler shows of a cluster with one card, one pod and one quota."""
    cluster = b.cluster(
        b.node("node", [b.card(_CARD, index=0)]),
        b.granted("pod", "node", [(_CARD, 1000, 10)]),
        b.quota("quota", memory=6000),
    )

    async def gather() -> bytes:
        return b"".join(
            [
                part
                async for part in cluster_metrics.families(
                    cluster, legacy=legacy, cards=True, container_limit=100
                )
            ]
        )

    return asyncio.run(gather()).decode()


def node_text(*, legacy: bool) -> str:
    """Return what the monitor shows of a node with one card and one container."""
    card = Card(
        uuid=_CARD,
        index=0,
        minor=0,
        name="NVIDIA A10",
        memory=2**34,
        numa=0,
        bus_id="0000:1a:00.0",
        mig_enabled=False,
    )
    share = ShareUsage(
        namespace="team",
        pod="pod",
        container="main",
        index=0,
        card=_CARD,
        memory_limit=1,
        core_limit=1,
        memory_used=1,
        core_used=1,
        context=1,
        module=1,
        data=1,
        offset=1,
        over_limit=1,
        since_last_kernel=1.0,
    )
    pod = WatchedPod(
        uid="uid",
        namespace="team",
        name="pod",
        version=1,
        containers=("main",),
        ids={},
        ended=frozenset(),
        finished=False,
        mig_allocations=_MIG,
    )
    sample = DriverSample(
        taken=0.0,
        cards=(CardSample(card=card, memory_used=1, utilization=(1, 1)),),
        processes=(CardProcesses(uuid=_CARD, index=0),),
    )
    findings = Findings(sample=sample)
    snapshot = NodeSnapshot(node="node", shares=[share], findings=findings, pods=[pod])
    return b"".join(metrics.families(snapshot, legacy=legacy)).decode()
