"""Objects that leave and return, and lists that are older than what is known."""

from __future__ import annotations

import asyncio

import pytest

from hami.kube import listwatch
from tests.scripted_api.server import Kind, Lost, ScriptedApi
from tests.unit.scheduler import rig


def labelled(value: str) -> rig.Object:
    """Make node a with the label that the selector names."""
    made = rig.node("a")
    made["metadata"]["labels"] = {"gpu": value}
    return made


async def test_a_node_that_re_enters_the_selector_gets_pods_again() -> None:
    async with ScriptedApi() as api:
        api.put(labelled("on"))
        async with rig.running(api, node_label_selector="gpu=on") as replica:
            assert await replica.place(rig.pod("before")) == "a"
            api.put(labelled("off"))
            await replica.seen()
            refused = await replica.filter(api.put(rig.pod("meanwhile")))
            assert not refused["NodeNames"]
            api.put(labelled("on"))
            await replica.seen()
            assert await replica.place(rig.pod("after")) == "a"
            assert replica.used("a") == [2000]


async def test_a_pod_known_from_a_get_outlives_a_list_that_began_before_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 1)
    async with ScriptedApi() as api:
        api.refuse_watch_list()
        api.put(rig.node("a"))
        for name in ("one", "two"):
            api.put(rig.pod(name))
        async with rig.running(api) as replica:
            gate = asyncio.Event()
            list_ = api.fault(path="/pods", when=lambda r: "continue" in r.query, gate=gate)
            # The pods are listed again, and no watch runs until the second page has come.
            api.stream_fault(Kind.ERROR, path="/pods")
            api.put(rig.pod("three"))
            await rig.eventually(lambda: bool(list_.hits))
            # The answer to the Binding is lost, so the scheduler reads the pod.
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            assert await replica.place(rig.pod("late")) == "a"
            assert replica.used("a") == [1000]
            gate.set()
            await replica.seen()
            assert replica.used("a") == [1000]
            full = await replica.filter(api.put(rig.pod("large", memory=7500)))
            assert not full["NodeNames"]
