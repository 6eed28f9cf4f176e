"""`hami webhook` from start to first answer: ready once it has read the nodes."""

from __future__ import annotations

import asyncio
import pathlib

from tests.builders import GPU
from tests.integration.admission import webhooks
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import desk, pods

ASKS = pods.pod(pods.container(mig={"3g.40gb": 1}))
SMALLEST = {f"{pods.MIG}1g.10gb": "7"}
MIDDLE = {f"{pods.MIG}2g.20gb": "3"}


async def test_it_is_healthy_at_once_and_ready_when_the_nodes_were_read(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", SMALLEST))
        gate = asyncio.Event()
        held = api.fault(path="/nodes", gate=gate, times=None)
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.serves()
            assert (await webhook.get("/healthz"))[0] == 200
            for path in ("/readyz", "/readyz?webhook"):
                status, reply = await webhook.get(path)
                assert status == 503
                assert "[-] caches: nodes not read yet" in reply
            early = asyncio.create_task(webhook.review(ASKS))
            gate.set()
            # A review that came too early waits a moment, and is then answered like any other.
            assert pods.asked(desk.patched(ASKS, await early)) == {f"{pods.MIG}1g.10gb": "1"}
            await webhook.ready()
            assert held.hits > 0
            assert (await webhook.get("/readyz?webhook"))[0] == 200


async def test_a_missing_profile_is_replaced_by_what_the_nodes_have_now(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", SMALLEST))
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.ready()

            async def given() -> dict[str, str]:
                return pods.asked(desk.patched(ASKS, await webhook.review(ASKS)))

            assert await given() == {f"{pods.MIG}1g.10gb": "1"}
            api.put(webhooks.node("b", MIDDLE))
            async with asyncio.timeout(30):
                while await given() != {f"{pods.MIG}2g.20gb": "1"}:
                    pass
            api.remove("nodes", "b")
            api.put(webhooks.node("a", {GPU: "8"}))
            async with asyncio.timeout(30):
                while await given() != {GPU: "1"}:
                    pass


async def test_replacements_and_their_times_are_counted_and_dry_runs_are_not(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", SMALLEST))
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.ready()
            for dry in (False, True, False):
                assert (await webhook.review(ASKS, dryRun=dry))["allowed"]
            async with webhook.connected() as connection:
                assert (await connection.ask("POST", "/webhook", body=b"{}"))[0] == 400
            counted = await webhook.metrics()
    assert counted["gpu_webhook_fallback_total{from=3g.40gb, to=1g.10gb}"] == 2
    assert counted["gpu_webhook_response_time_seconds_count{result=changed}"] == 2
    assert counted["gpu_webhook_errors_total{kind=no review}"] == 1
    assert counted["hami_webhook_certificate_days{}"] > 29
    assert [value for name, value in counted.items() if name.startswith("hami_build_info{")] == [1]


async def test_only_in_available_mode_are_pods_watched(tmp_path: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", SMALLEST))
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.ready()
            assert not api.sent("GET", "/pods")
        (tmp_path / "other").mkdir()
        async with webhooks.serving(api, tmp_path / "other", "--mig-fallback=available") as webhook:
            await webhook.ready()
            assert api.sent("GET", "/pods")


async def test_it_loads_neither_numpy_nor_the_scheduler(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", SMALLEST))
        async with webhooks.serving(api, tmp_path, python=["-X", "importtime"]) as webhook:
            await webhook.ready()
            assert (await webhook.review(ASKS))["allowed"]
            await webhook.metrics()
            mapped = webhook.process.mapped()
            assert await webhook.process.stop() == 0
    assert "msgspec" in mapped
    assert "numpy" not in mapped
    reply = (line for line in webhook.process.lines if line.startswith("import time:"))
    loaded = {line.rpartition("|")[2].strip() for line in reply}
    assert "hami.admission.decide" in loaded
    heavy = ("numpy", "opentelemetry", "cryptography")
    assert loaded.isdisjoint(heavy)
    # Whose error is among those that the command line tells of every process.
    assert {name for name in loaded if name.startswith("hami.scheduler.")} <= {
        "hami.serving.grant_keys"
    }
    assert {name for name in loaded if name.startswith("hami.placement.")} <= {
        "hami.placement.request",
        "hami.placement.policy",
    }
