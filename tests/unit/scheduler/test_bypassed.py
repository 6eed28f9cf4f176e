"""Pods that bypassed admission are counted, and get an event."""

from __future__ import annotations

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_metrics import scrape

METRIC = "hami_scheduler_bypassed_pods"


def bound_by_another(name: str, *, gpu: int = 1) -> rig.Object:
    pod = rig.pod(name, gpu=gpu)
    pod["spec"] |= {"schedulerName": "default-scheduler", "nodeName": "a"}
    return pod


def messages(api: ScriptedApi) -> list[str]:
    return [
        event["message"]
        for event in api.objects("events")
        if event["reason"] == "AdmissionBypassed"
    ]


async def test_a_pod_bound_without_us_is_counted_until_deleted_and_gets_an_event() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            await replica.place(rig.pod("ours"))
            api.put(bound_by_another("none", gpu=0))
            past = api.put(bound_by_another("past"))
            await replica.seen()
            assert (await scrape(replica)).value(METRIC) == 1
            await rig.eventually(lambda: bool(messages(api)))
            (message,) = messages(api)
            assert message.startswith("bound to a without a card: it asks for nvidia.com/gpu")
            assert "schedulerName default-scheduler and not by hami-scheduler" in message
            assert "hami.io/webhook=ignore" in message
            api.put({**past, "status": {"phase": "Running"}})
            api.remove("pods", "past")
            await replica.seen()
            assert (await scrape(replica)).value(METRIC) == 0
            assert len(messages(api)) == 1


async def test_only_the_leader_sends_events(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api,
            ready=False,
            leader_elect=True,
            leader_elect_resource_name="lease",
            leader_elect_resource_namespace="kube-system",
        ) as replica:
            for informer in replica.scheduler.informers.values():
                await informer.wait_synced()
            api.put(bound_by_another("past"))
            await replica.seen()
            assert (await scrape(replica)).value(METRIC) == 1
            assert "pod bypassed admission" not in caplog.text
