"""The served certificate: reloaded under load, reported when it has expired."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

from cryptography import x509

from tests import processes
from tests.authority import Issued
from tests.integration.admission import webhooks
from tests.integration.admission.webhooks import Webhook
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import pods
from tests.unit.kube.following import PATIENCE_S
from tests.unit.serving import servers

ASKS = pods.pod(pods.container(mig={"3g.40gb": 1}))
OFFERED = {f"{pods.MIG}1g.10gb": "7"}
#: Reviews a second, as far as this machine can.
RATE = 200
#: Who sends them: on one connection for ever, and on a new one each time.
KEPT, NEW = 6, 2


def serial(issued: Issued) -> int:
    return x509.load_pem_x509_certificate(issued.certificate.encode()).serial_number


def shown(connection: servers.Connection) -> int:
    """Return the serial number of the certificate that the other end has shown."""
    reply = connection.writer.get_extra_info("ssl_object").getpeercert()
    return int(str(reply["serialNumber"]), 16)


class Load:
    """Reviews at a steady rate, on connections that are kept and on new ones."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        #: A word for each review that is due; an empty one ends the client that takes it.
        self._due: asyncio.Queue[str] = asyncio.Queue(RATE)
        self.failures: list[str] = []
        self.on_kept = self.on_new = 0
        #: Serial numbers of the certificates that new connections were shown.
        self.shown: set[int] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            pace = group.create_task(self._pace())
            for _ in range(KEPT):
                group.create_task(self._send_on_one())
            for _ in range(NEW):
                group.create_task(self._send_on_new())
            yield
            pace.cancel()
            for _ in range(KEPT + NEW):
                await self._due.put("")

    async def goes_on(self, reviews: int = 50) -> None:
        """Wait until so many more were answered on either kind of connection."""
        kept, new = self.on_kept, self.on_new
        await processes.eventually(
            lambda: self.on_kept - kept >= reviews and self.on_new - new >= reviews
        )

    async def _pace(self) -> None:
        while True:
            await self._due.put("next")
            await asyncio.sleep(1 / RATE)

    async def _send_on_one(self) -> None:
        async with self._webhook.connected() as connection:
            while await self._due.get():
                self.on_kept += await self._review(connection)

    async def _send_on_new(self) -> None:
        while await self._due.get():
            try:
                async with self._webhook.connected() as connection:
                    self.shown.add(shown(connection))
                    self.on_new += await self._review(connection)
            except OSError as error:
                self.failures.append(repr(error))

    async def _review(self, connection: servers.Connection) -> bool:
        try:
            answer = await webhooks.review_over(connection, ASKS)
            assert "patch" in answer
        except (OSError, EOFError, AssertionError) as error:
            self.failures.append(repr(error))
            return False
        return True


async def test_a_certificate_is_exchanged_under_load_and_no_review_fails(
    tmp_path: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", OFFERED))
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.ready()
            load = Load(webhook)
            async with load.running():
                await load.goes_on()
                (before,) = load.shown
                renewed = webhook.issue()
                webhook.swap(renewed)
                async with asyncio.timeout(PATIENCE_S):
                    while serial(renewed) not in load.shown:
                        await asyncio.sleep(0.01)
                await load.goes_on()
            assert load.failures == []
            assert load.shown == {before, serial(renewed)}
            assert len(webhook.process.records("certificate reloaded")) == 1


async def test_an_expired_certificate_is_named_in_the_log_and_in_a_metric(
    tmp_path: pathlib.Path,
) -> None:
    message = "certificate has expired, clients refuse it; renew it with `hami certs create`"
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", OFFERED))
        async with webhooks.serving(api, tmp_path, days=-2) as webhook:
            reply = await webhook.process.logged(message)
            assert reply["level"] == "error"
            assert reply["file"] == webhook.secret.path("crt")
            await webhook.serves()
            assert -2.1 < (await webhook.metrics())["hami_webhook_certificate_days{}"] < -1.9
            # The cure needs no restart.
            webhook.swap(webhook.issue(days=90))
            await webhook.process.logged("certificate reloaded")
            await webhook.ready()
            assert (await webhook.metrics())["hami_webhook_certificate_days{}"] > 89
