"""After SIGTERM: clients learn of it first, and every request is answered."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from tests.integration.admission import webhooks
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import desk, pods
from tests.unit.serving import servers

ASKS = pods.pod(pods.container(mig={"3g.40gb": 1}))
OFFERED = {f"{pods.MIG}1g.10gb": "7"}


async def test_during_the_shutdown_delay_it_is_not_ready_but_still_answers(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", OFFERED))
        # Longer than any test: what is seen here is seen within the delay.
        async with webhooks.serving(api, tmp_path, "--shutdown-delay=1h") as webhook:
            await webhook.ready()
            async with webhook.connected() as kept:
                webhook.process.terminate()
                assert (await webhook.process.logged("stopping"))["still_answering_s"] == 3600
                for path in ("/readyz", "/readyz?webhook"):
                    status, reply = await webhook.get(path)
                    assert status == 503
                    assert "[-] running: the process is stopping" in reply
                assert (await webhook.get("/healthz"))[0] == 200
                for answer in (
                    await webhook.review(ASKS),
                    await webhooks.review_over(kept, ASKS),
                ):
                    assert pods.asked(desk.patched(ASKS, answer)) == {f"{pods.MIG}1g.10gb": "1"}
            assert webhook.process.running


async def test_after_the_delay_it_ends_well(tmp_path: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", OFFERED))
        async with webhooks.serving(api, tmp_path, "--shutdown-delay=100ms") as webhook:
            await webhook.ready()
            assert await webhook.process.stop() == 0
            assert webhook.process.records("stopped")
            with pytest.raises(ConnectionRefusedError):
                await webhook.get("/healthz")


async def test_it_ends_well_when_the_nodes_were_never_read(tmp_path: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.fault(path="/nodes", hang=True, times=None)
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.serves()
            assert await webhook.process.stop() == 0


async def test_a_review_under_way_is_answered_before_the_end(tmp_path: pathlib.Path) -> None:
    body = json.dumps(desk.review(ASKS)).encode()
    head = {"Content-Length": str(len(body)), "Expect": "100-continue"}
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", OFFERED))
        async with webhooks.serving(api, tmp_path, "--drain-timeout=1h") as webhook:
            await webhook.ready()
            async with webhook.connected() as connection:
                await connection.send(servers.head("POST", "/webhook", head))
                assert b"100 Continue" in await connection.reader.readuntil(b"\r\n\r\n")
                webhook.process.terminate()
                async with asyncio.timeout(30):
                    while await _is_connected(webhook):
                        pass
                await connection.send(body)
                status, headers, answer = await connection.answer()
            assert status == 200
            assert headers["connection"] == "close"
            assert json.loads(answer)["response"]["allowed"]
            assert await webhook.process.ended() == 0


async def _is_connected(webhook: webhooks.Webhook) -> bool:
    try:
        async with servers.connected(webhooks.PORT, host=webhook.host):
            return True
    except ConnectionResetError:
        return True  # it was just about to stop listening
    except ConnectionRefusedError:
        return False
