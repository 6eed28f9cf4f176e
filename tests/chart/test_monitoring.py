"""Alerts and dashboards ask for metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from hami.admission import serve as admission
from hami.agent import metrics as agent
from hami.monitor import metrics
from hami.monitor.collect import NodeSnapshot
from hami.scheduler import metrics as scheduler
from tests.chart import rendering

ON = {"prometheus.enabled": True, "grafana.dashboards": True}
#: Written by `hami webhook` itself.
ALONE = {"hami_webhook_certificate_days"}
_METRIC = re.compile(r"\b(?:hami|gpu)_[a-z_]+\b")
#: Alerts about what only the agent itself knows.
OF_THE_AGENT = {
    "HamiCardUnhealthy",
    "HamiLedgerDamaged",
    "HamiNodeOffersNothing",
    "HamiNodeTakesLocks",
}


def known() -> set[str]:
    """Give the names under which our processes write samples."""
    counted = scheduler.Metrics()
    admission.Metrics(counted.registry)
    shown = NodeSnapshot(node="node-1", shares=(), findings=None)
    texts = (
        *counted.registry.render(),
        *agent.Metrics().registry.render(),
        *metrics.families(shown, legacy=False),
    )
    names = set()
    for family in _families(texts):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        names |= {family[0] + suffix for suffix in suffixes.get(family[1], ("",))}
    return names | ALONE


def _families(texts: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for text in texts:
        for line in text.decode().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                yield name.removesuffix("_total"), kind


def asked(expressions: list[str]) -> set[str]:
    texts = [text.replace("(scheduler|webhook)", "scheduler") for text in expressions]
    return {name for text in texts for name in _METRIC.findall(text)}


def test_alerts_ask_for_what_is_there() -> None:
    rule = rendering.render(ON).one("PrometheusRule", "hami")
    rules: list[dict[str, Any]] = [each for g in rule["spec"]["groups"] for each in g["rules"]]
    by_name = {each["alert"]: each for each in rules}
    assert by_name["HighGPUFallbackRate"]["expr"] == "rate(gpu_webhook_fallback_total[5m]) > 10"
    names = asked([each["expr"] for each in rules])
    assert names == names & known()
    assert len(names) == 12
    for each in rules:
        assert each["annotations"]["summary"]
        assert "$value" in each["annotations"]["description"]


def alerts(values: dict[str, Any]) -> set[str]:
    rule = rendering.render({**ON, **values}).one("PrometheusRule", "hami")
    return {each["alert"] for group in rule["spec"]["groups"] for each in group["rules"]}


def test_an_agent_that_serves_no_metrics_is_not_asked_for_them() -> None:
    silent = alerts({"devicePlugin.metricsBindAddress": ""})
    assert alerts({}) - silent == OF_THE_AGENT
    assert {"HamiContainerOverLimit", "HamiUnmanagedGPUProcess"} <= silent


def test_without_a_scheduler_its_metrics_are_not_scraped() -> None:
    alone = alerts({"webhookOnly.enabled": True})
    assert alone == {"HighGPUFallbackRate", "HamiCertificateExpires"}


def test_dashboards_ask_for_what_is_there_and_grafana_finds_them() -> None:
    made = rendering.render(ON).one("ConfigMap", "hami-dashboards")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    for text in made["data"].values():
        board = json.loads(text)
        expressions = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
        names = asked(expressions)
        assert names == names & known()
        assert names
    assert sorted(made["data"]) == ["hami-admission.json", "hami-node.json"]


def test_where_the_kind_is_unknown_there_is_no_rule() -> None:
    assert rendering.render(ON, knows=()).names("PrometheusRule") == []
