"""/metrics of a running replica: it parses, and its numbers are true."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import parser

from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.serving import servers


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = {f.name: f for f in parser.text_string_to_metric_families(text)}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, labels: Mapping[str, str] | None = None, /) -> float:
        return float(self._samples[name, frozenset((labels or {}).items())])

    def count(self, name: str, **labels: str) -> float:
        return float(self._samples.get((f"{name}_count", frozenset(labels.items())), 0))


async def scrape(replica: rig.Replica) -> Scrape:
    async with servers.serving(replica.scheduler.metrics_page.route()) as server:
        status, headers, body = await servers.ask(server.port, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(body.decode())


FILTER = "hami_scheduler_filter_duration_seconds"
BIND = "hami_scheduler_bind_duration_seconds"
QUEUE = "hami_scheduler_bind_queue_wait_seconds"
RESERVATIONS = "hami_scheduler_reservations"


async def test_filters_and_binds_are_counted_by_how_they_ended(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(rig.node("locked", late=False))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            before = await scrape(replica)
            assert [f for f in (FILTER, BIND, QUEUE) if f not in before.families] == []
            assert before.count(FILTER, result="placed") == 0
            first = api.put(rig.pod("first"))
            await replica.filter(first, ["a"])
            await replica.bind(first, "a")
            second = api.put(rig.pod("second"))
            await replica.filter(second, ["locked"])
            await replica.bind(second, "locked")
            await replica.filter(api.put(rig.pod("large", memory=9000)))
            plain = rig.pod("plain")
            plain["spec"]["containers"] = [{"name": "main"}]
            await replica.filter(api.put(plain))
            assert (await replica.filter({"metadata": {"name": 7}}))["Error"]
            assert await replica.bind(api.put(rig.pod("large", memory=9000)), "a")
            scraped = await scrape(replica)
    results = ("placed", "refused", "passed", "error")
    assert [scraped.count(FILTER, result=result) for result in results] == [2, 1, 1, 1]
    assert [scraped.count(BIND, result=result) for result in ("bound", "error")] == [2, 1]
    assert scraped.count(QUEUE) == 1
    assert scraped.count("hami_scheduler_filter_nodes") == 3
    assert scraped.value("hami_scheduler_filter_nodes_sum") == 4
    assert scraped.value("hami_scheduler_waiting_pods") == 1
    buckets = f"{FILTER}_bucket"
    assert scraped.value(buckets, {"result": "placed", "le": "+Inf"}) == 2


async def test_reservations_are_counted_by_stage(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:

            async def stages() -> dict[str, float]:
                scraped = await scrape(replica)
                names = ("held", "binding", "unknown", "accepted")
                return {name: scraped.value(RESERVATIONS, {"stage": name}) for name in names}

            none = dict.fromkeys(("held", "binding", "unknown", "accepted"), 0.0)
            assert await stages() == none
            pod = api.put(rig.pod("p"))
            await replica.filter(pod)
            await replica.filter(api.put(rig.pod("q")))
            assert await stages() == none | {"held": 2}
            gate = asyncio.Event()
            fault = api.fault(method="POST", path="/binding", gate=gate)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: fault.hits == 1)
            assert await stages() == none | {"held": 1, "binding": 1}
            deaf = api.fault(path="/api/v1/pods", hang=True, times=None)
            api.close_watches()
            await rig.eventually(lambda: deaf.hits > 0)
            gate.set()
            assert await bind == ""
            assert await stages() == none | {"held": 1, "accepted": 1}


async def test_leading_and_ready_are_gauges(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedApi() as api,
        rig.running(api, clock=times.clock, now=times.now) as replica,
    ):
        scraped = await scrape(replica)
        gauges = ("hami_scheduler_leading", "hami_scheduler_ready")
        assert [scraped.value(gauge) for gauge in gauges] == [1, 1]
        monkeypatch.setattr(replica.scheduler.leadership, "_until", 0.0)
        scraped = await scrape(replica)
        assert [scraped.value(gauge) for gauge in gauges] == [0, 0]


async def test_drift_and_watches_are_counted_for_every_informer(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            scraped = await scrape(replica)
            for kind in ("nodes", "pods", "quotas"):
                assert scraped.value("hami_scheduler_drift", {"kind": kind}) == 0
                labels = {"kind": kind, "what": "watch_lists"}
                assert scraped.value("hami_scheduler_watch", labels) == 1
            assert scraped.value("hami_scheduler_drift", {"kind": "tables"}) == 0


async def test_events_are_counted_by_what_became_of_them(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.place(rig.pod("p"))
            await rig.eventually(lambda: len(api.objects("events")) == 2)
            await rig.eventually(lambda: replica.scheduler.recorder.stats.sent == 2)
            scraped = await scrape(replica)
            assert scraped.value("hami_scheduler_events", {"outcome": "sent"}) == 2
            for outcome in ("aggregated", "dropped", "failed"):
                assert scraped.value("hami_scheduler_events", {"outcome": outcome}) == 0


async def test_what_cannot_be_read_is_counted(times: Times) -> None:
    async with ScriptedApi() as api:
        broken: dict[str, Any] = rig.node("broken")
        broken["metadata"]["annotations"][NVIDIA.annotations.register] = "{"
        api.put(broken)
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            scraped = await scrape(replica)
            assert scraped.value("hami_scheduler_unreadable_objects") == 1


async def test_requeues_are_counted(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.filter(api.put(rig.pod("p", gpu=2)))
            api.put(rig.node("a", cards=2))
            await replica.seen()
            await replica.scheduler.requeue.run_round()
            scraped = await scrape(replica)
            assert scraped.value("hami_scheduler_wake_ups") == 1


async def test_metrics_of_the_cluster_follow_those_of_the_process(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            await replica.place(rig.pod("p", memory=3000))
            await replica.seen()
            scraped = await scrape(replica)
    assert "hami_build_info" in scraped.families
    assert "process_cpu_seconds" in scraped.families
    cluster = [
        name for name in scraped.families if not name.startswith(("hami_scheduler", "python"))
    ]
    assert any("gpu" in name.lower() or "device" in name.lower() for name in cluster), cluster


async def test_shares_left_out_are_counted_and_the_loop_is_watched(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api, clock=times.clock, now=times.now, container_metrics_limit=1
        ) as replica:
            omitted = "hami_scheduler_container_metrics_omitted"
            await replica.place(rig.pod("one"))
            before = await scrape(replica)
            await replica.place(rig.pod("two"))
            after = await scrape(replica)
    assert (before.value(omitted), after.value(omitted)) == (0, 2)
    name = "hami_vgpu_memory_allocated_bytes"
    assert [name in scraped.families for scraped in (before, after)] == [True, False]
    assert "hami_gpu_memory_allocated_bytes" in after.families
    assert "hami_scheduler_loop_blocked_seconds" in after.families


async def test_a_replica_without_metrics_of_cards_writes_those_of_nodes(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(
            api, clock=times.clock, now=times.now, card_metrics=False
        ) as replica:
            await replica.place(rig.pod("one"))
            scraped = await scrape(replica)
    assert "hami_gpu_memory_allocated_bytes" not in scraped.families
    assert scraped.value("hami_scheduler_container_metrics_omitted") == 1
    labels = {"node": "a", "zone": "vGPU"}
    assert scraped.value("hami_node_memory_allocated_bytes", labels) == 1000 * 2**20
