"""After every storm the sink equals the server's state.

While pods are created, changed and deleted, the script drops, delays, duplicates and reorders
events, cuts lines, ends streams with 410 and 500, refuses requests with 409, 410, 429 and 500,
loses answers and forgets history. Each seed is another storm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from hami.kube import listwatch
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.wire import objects
from tests.scripted_api.server import Kind, ScriptedApi, Storm
from tests.unit.kube.following import PATIENCE_S, Held, following, pod, truth, until

EVENTS = {
    Kind.DROP: 0.03,
    Kind.DELAY: 0.05,
    Kind.DUPLICATE: 0.05,
    Kind.REORDER: 0.02,
    Kind.CUT: 0.02,
    Kind.CUT_CLEANLY: 0.02,
    Kind.CLOSE: 0.02,
    Kind.ERROR: 0.02,
}
#: So many changes at least, and on until there were so many faults and the reflector met one.
CHANGES, FAULTS = 300, 25
#: More of them look for what these miss (`make soak`).
SEEDS = int(os.environ.get("HAMI_STORMS", "4"))


class Checked(Held):
    """Also notices an object that goes back in time, which nothing but a restore explains."""

    def __init__(self) -> None:
        super().__init__()
        self.highest: dict[str, int] = {}

    def put(self, obj: objects.Pod) -> None:
        held = obj.uid in self.pods
        super().put(obj)
        assert obj.metadata is not None
        version, highest = int(obj.metadata.resource_version or 0), self.highest.get(obj.uid, 0)
        # The same again is right only after a list had left it out.
        assert version > highest or (version == highest and not held), obj.name
        self.highest[obj.uid] = version


async def change_things(
    api: ScriptedApi, storm: Storm, rng: random.Random, reflector: Reflector[objects.Pod]
) -> None:
    """Write to the store, past the storm: what happens there is the truth."""
    number = 0
    while number < CHANGES or sum(storm.counts.values()) < FAULTS or not reflector.stats.errors:
        number += 1
        names = [p["metadata"]["name"] for p in api.objects("pods")]
        match rng.choices(["create", "change", "ignore", "delete", "again"], [5, 8, 1, 3, 1])[0]:
            case "create":
                api.put(pod(f"p{number}", wanted=rng.random() < 0.7))
            case "change" if names:
                api.put(pod(rng.choice(names), node=f"n{number}"))
            case "ignore" if names:
                api.put(pod(rng.choice(names), wanted=False))
            case "delete" if names:
                api.remove("pods", rng.choice(names))
            case "again" if names:
                name = rng.choice(names)
                api.remove("pods", name)
                api.put(pod(name))
        if rng.random() < 0.01:
            api.compact()
        # Server and client run in this loop as well: its turns are their time.
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("watch_lists", [True, False], ids=["watch-list", "pages"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_every_storm_the_sink_equals_the_servers_state(
    seed: int,
    watch_lists: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hami.kube.informer._CATCH_UP", 0.05)
    monkeypatch.setattr(listwatch, "PAGE", 7)
    rng = random.Random(seed)
    async with (
        ScriptedApi(bookmark_interval=0.02) as api,
        Client(api.access(), user_agent="storm", timeout=PATIENCE_S) as client,
    ):
        if not watch_lists:
            api.refuse_watch_list(in_stream=bool(seed % 2))
        api.storm = storm = Storm(
            seed, events=EVENTS, statuses=[409, 410, 429, 500, 503], refused=0.15, lost=0.05
        )
        held = Checked()
        async with following(client, sink=held, resync_interval=0.15, random=rng.random) as (
            reflector,
            _,
        ):
            await change_things(api, storm, rng, reflector)
            api.storm = None
            with contextlib.suppress(TimeoutError):
                await until(lambda: held.versions == truth(api))
            assert held.versions == truth(api)
