"""A restore of etcd under a running scheduler, against a fresh one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hami.scheduler import readiness
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

#: The pod that nothing changes, until it is deleted right before the restore.
KEPT = "kept"


def snapshot(replica: rig.Replica) -> dict[str, object]:
    """Return the cards of every node with all that is used of them, and who uses it."""
    cluster = replica.scheduler.watched.cluster
    found: dict[str, object] = {f"pod {uid}": info for uid, info in cluster.pods.items()}
    for name, info in cluster.nodes.items():
        located = cluster.locate(name)
        assert located is not None
        table, row = located
        columns = vars(table.cards[NVIDIA.name])
        number = len(info.cards.get(NVIDIA.name, ()))
        cards = {
            key: column[:number, row].tolist()
            for key, column in columns.items()
            if isinstance(column, np.ndarray) and column.ndim == 2
        }
        assert cards
        found[f"node {name}"] = info, cards
    return found


async def change(api: ScriptedApi, replica: rig.Replica | None, rng: random.Random) -> None:
    """Let something happen in the cluster, as seen by the scheduler where one is given."""
    pods = [p["metadata"]["name"] for p in api.objects("pods") if p["metadata"]["name"] != KEPT]
    nodes = [node["metadata"]["name"] for node in api.objects("nodes")]
    kind = rng.random()
    if kind < 0.5 and replica is not None and nodes:
        await replica.seen()
        memory = rng.choice([500, 1000, 3000])
        pod = api.put(rig.pod(f"p{rng.randrange(10**6)}", memory=memory))
        chosen = (await replica.filter(pod))["NodeNames"]
        if chosen:
            await replica.bind(pod, chosen[0])
    elif kind < 0.75 and pods:
        api.remove("pods", rng.choice(pods))
    elif kind < 0.85 and nodes[1:]:
        api.remove("nodes", rng.choice(nodes[1:]))
    else:
        name = f"n{rng.randrange(1, 4)}"
        api.put(rig.node(name, cards=rng.randrange(1, 4)))


@pytest.mark.parametrize("later", [0, 40], ids=["at once", "overtaken"])
@pytest.mark.parametrize("seed", range(4))
async def test_after_a_restore_a_running_scheduler_has_the_state_of_a_fresh_one(
    seed: int, later: int
) -> None:
    rng = random.Random(seed)
    async with ScriptedApi(bookmark_interval=0.02) as api:
        for number in range(3):
            api.put(rig.node(f"n{number}", cards=2))
        async with rig.running(api) as old:
            await old.place(rig.pod(KEPT))
            for _ in range(8):
                await change(api, old, rng)
            backup = api.snapshot()
            for _ in range(15):
                await change(api, old, rng)
            await old.seen()
            kept = api.find("pods", KEPT)
            assert kept is not None
            api.remove("pods", KEPT)
            old.scheduler.watched.pods.offer_missing(kept["metadata"]["uid"])  # a GET found none
            api.restore(backup)
            for _ in range(later):
                await change(api, None, rng)
            for informer in old.scheduler.informers.values():
                informer.resync()
            async with rig.running(api) as fresh:
                wanted = snapshot(fresh)
                await rig.eventually(lambda: snapshot(old) == wanted)
                assert wanted


async def test_a_new_leader_does_not_decide_before_it_has_noticed_a_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "RETRY_S", 0.01)
    async with ScriptedApi(bookmark_interval=0.02) as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod(KEPT))
            backup = api.snapshot()
            api.remove("pods", KEPT)
            for number in range(5):
                api.put(rig.pod(f"p{number}"))
            await replica.seen()
            assert replica.used("a") == [0]
            api.restore(backup)
            replica.scheduler.readiness._caught_up = 0  # the lease was lost and gained
            await rig.eventually(lambda: replica.scheduler.readiness.ready)
            assert replica.used("a") == [1000]
