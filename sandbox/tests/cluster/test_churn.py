"""80 pods on the embedded cluster under scheduled kills.

The auditor that judges the tests on real Kubernetes judges this, too: ledger, annotations,
PodResources, kubelet's checkpoint and the driver's own record of peaks must agree, and at no moment
may a card have been promised, or have given, more than it has.
"""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path

import pytest

from hami_sandbox.cluster import Sandbox
from hami_sandbox.plan import Plan, parse_node
from sandbox.tests.cluster.churning import KILLS, PODS, REFUSED, Churn
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.kubeapi.client import Client

PLAN = Plan(nodes=(parse_node("churn-a=2xA10"), parse_node("churn-b=1xH100")))
SEED = 9


@pytest.mark.timeout(600)  # beyond the patience of the churn itself, which says more
async def test_nothing_is_given_twice_whatever_is_killed(tmp_path: Path) -> None:
    await churned(tmp_path, SEED)


async def churned(folder: Path, seed: int, *, pods: int = PODS, kills: int = KILLS) -> Churn:
    """Run a churn, and judge what it leaves behind."""
    async with Sandbox(PLAN) as sandbox:
        churn = Churn(sandbox, seed, pods=pods, kills=kills)
        with (
            Client.from_kubeconfig(sandbox.kubeconfig) as client,
            Recorder(client, folder / "timeline.jsonl") as recorder,
        ):
            await churn.run()
            print(f"killed {dict(churn.kills)}, ended {dict(churn.ends)}")  # noqa: T201 - a figure
            keys = [path.read_bytes() for path in sandbox.grant_keys.iterdir()]
            sources = Sources(
                client=client,
                roots={name: node.folders.root for name, node in sandbox.nodes.items()},
                recorder=recorder,
                grant_keys=tuple(keys),
                quiet=True,
            )
            findings = await asyncio.to_thread(sources.settle)
        assert not findings, "\n".join(map(str, findings))
    assert churn.ends.total() == churn.created >= pods
    assert churn.kills == collections.Counter(kill.what for kill in churn.schedule)
    # What was neither killed nor deleted nor refused at the door has done its work.
    unexplained = [
        failure
        for failure in churn.failures
        if failure.reason != REFUSED and failure.pod not in churn.struck
    ]
    assert not unexplained, "\n".join(map(str, unexplained))
    return churn
