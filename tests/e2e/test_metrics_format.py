"""Prometheus' promtool accepts our /metrics."""

from __future__ import annotations

import pathlib
import subprocess

import pytest
import yaml

from tests.chart import rendering
from tests.e2e.parts import catalogue, promtool
from tests.integration.admission import webhooks
from tests.scripted_api.server import ScriptedApi
from tests.unit.admission import pods
from tests.unit.scheduler import rig
from tests.unit.serving import servers


@pytest.fixture(scope="session")
def program() -> str:
    return str(catalogue.provide(promtool.promtool()) / promtool.PROGRAM)


def complaints(program: str, metrics: bytes) -> set[str]:
    """Return the metrics whose names promtool advises against; it must be able to read the text."""
    ran = subprocess.run(
        [program, "check", "metrics"], input=metrics, capture_output=True, check=False
    )
    told = ran.stderr.decode()
    assert ran.returncode in (0, 3), told
    return {line.split()[0] for line in told.splitlines()}


async def test_the_webhooks_metrics_are_read(tmp_path: pathlib.Path, program: str) -> None:
    asks = pods.pod(pods.container(mig={"3g.40gb": 1}))
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", {f"{pods.MIG}1g.10gb": "7"}))
        async with webhooks.serving(api, tmp_path) as webhook:
            await webhook.ready()
            assert (await webhook.review(asks))["allowed"]
            text = await webhook.scrape()
    assert b"gpu_webhook_fallback_total{" in text
    # Days are what people have in mind who look at certificates.
    assert complaints(program, text) == {"hami_webhook_certificate_days"}


async def test_the_schedulers_metrics_are_read(program: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api) as replica:
            assert await replica.place(rig.pod("p")) == "a"
            async with servers.serving(replica.scheduler.metrics_page.route()) as server:
                _, _, text = await servers.ask(server.port, "GET", "/metrics")
    assert b"hami_gpu_shared_count{" in text
    # HAMi's dashboards know the first by this name.
    assert complaints(program, text) == {"hami_gpu_shared_count", "hami_scheduler_certificate_days"}


def test_what_is_no_metric_is_not_read(program: str) -> None:
    with pytest.raises(AssertionError, match="error"):
        complaints(program, b'hami_build_info{version="1} 1\n')


def test_the_charts_alerts_are_read(tmp_path: pathlib.Path, program: str) -> None:
    rule = rendering.render({"prometheus.enabled": True}).one("PrometheusRule", "hami")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    ran = subprocess.run(
        [program, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rules = [rule for group in rule["spec"]["groups"] for rule in group["rules"]]
    assert f"{len(rules)} rules found" in ran.stdout
