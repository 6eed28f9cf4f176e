"""The chart's kube-scheduler gets what `hami scheduler config` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hami.cli import main
from tests.chart import rendering
from tests.chart.rendering import NAMESPACE, Rendered

OLDEST, NEWEST = 18, 36
SECURE = {"--url=https://127.0.0.1:8443", "--insecure"}


def by_chart(rendered: Rendered) -> dict[str, Any]:
    files = rendered.one("ConfigMap", "hami-scheduler")["data"]
    return {name: yaml.safe_load(text) for name, text in files.items()}


def by_command(rendered: Rendered, version: str, folder: Path, *flags: str) -> dict[str, Any]:
    devices = folder / "device-config.yaml"
    config = rendered.one("ConfigMap", "hami-scheduler-device")["data"]
    devices.write_text(config["device-config.yaml"])
    code = main.main(
        [
            *("scheduler", "config", f"--kube-version={version}", f"--output-dir={folder}/made"),
            *(f"--lease-namespace={NAMESPACE}", f"--device-config-file={devices}", *flags),
        ]
    )
    assert code == 0
    return {path.name: yaml.safe_load(path.read_text()) for path in (folder / "made").iterdir()}


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_each_version_reads_the_same_from_both(minor: int, tmp_path: Path) -> None:
    version = f"1.{minor}"
    rendered = rendering.render(kube=version)

    assert by_chart(rendered) == by_command(rendered, version, tmp_path, *SECURE)


@pytest.mark.parametrize("version", ["1.18", "1.36"])
def test_what_the_values_change_both_change(version: str, tmp_path: Path) -> None:
    rendered = rendering.render(
        {
            "schedulerName": "mine",
            "scheduler.leaderElect": False,
            "scheduler.leaseDuration": "1m30s",
            "scheduler.renewDeadline": "60s",
            "scheduler.retryPeriod": "1.5s",
            "scheduler.extenderHTTPTimeout": 45,
            "scheduler.service.httpTargetPort": 9443,
            "scheduler.admissionWebhook.enabled": False,
            "resourceName": "example.com/gpu",
            "resourcePriority": "",
        },
        kube=version,
    )
    assert by_chart(rendered) == by_command(
        rendered,
        version,
        tmp_path,
        "--url=http://127.0.0.1:9443",
        "--scheduler-name=mine",
        "--lease-name=mine",
        "--leader-elect=false",
        "--lease-duration=1m30s",
        "--renew-deadline=60s",
        "--retry-period=1.5s",
        "--http-timeout=45s",
    )


def test_iluvatars_cards_are_managed_where_they_are_enabled(tmp_path: Path) -> None:
    rendered = rendering.render({"devices.iluvatar.enabled": True})

    made = by_chart(rendered)

    assert made == by_command(rendered, "1.36", tmp_path, *SECURE, "--enable-iluvatar")
    [extender] = made["kube-scheduler.yaml"]["extenders"]
    assert extender["managedResources"][-1]["name"] == "iluvatar.ai/BI-V100.vCore"


def test_a_device_config_of_ones_own_says_which_resources_are_ours(tmp_path: Path) -> None:
    content = "nvidia:\n  resourceCountName: example.com/gpu\n  resourceMemoryName: ''\n"
    rendered = rendering.render({"device-config.content": content})

    made = by_chart(rendered)

    assert made == by_command(rendered, "1.36", tmp_path, *SECURE)
    [extender] = made["kube-scheduler.yaml"]["extenders"]
    assert [each["name"] for each in extender["managedResources"]] == [
        "example.com/gpu",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("v1.27.3-eks-a5565ad", "v1.27.3"), ("v1.30.1+k3s1", "v1.30.1"), ("1.33", "v1.33.0")],
)
def test_versions_of_vendors_are_understood(version: str, expected: str) -> None:
    rendered = rendering.render(kube=version)

    container = rendered.container("Deployment", "hami-scheduler", "kube-scheduler")
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{expected}"
    api_version = by_chart(rendered)["kube-scheduler.yaml"]["apiVersion"]
    assert api_version == "kubescheduler.config.k8s.io/v1"


def test_its_file_lies_where_its_flag_says() -> None:
    rendered = rendering.render(kube="1.18")
    container = rendered.container("Deployment", "hami-scheduler", "kube-scheduler")

    assert "--config=/etc/kube-scheduler/kube-scheduler.yaml" in container["command"]
    assert container["volumeMounts"] == [
        {"name": "kube-scheduler", "mountPath": "/etc/kube-scheduler", "readOnly": True}
    ]
    policy = by_chart(rendered)["kube-scheduler.yaml"]["algorithmSource"]["policy"]["file"]
    assert policy == {"path": "/etc/kube-scheduler/policy.yaml"}
