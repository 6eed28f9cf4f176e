"""Every value does something, and a wrong one is refused with its name."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.alternatives import ALTERNATIVES, Other
from tests.chart.rendering import CHART, Object


def leaves(values: Object, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        place = f"{path}.{name}".removeprefix(".")
        if isinstance(value, dict) and value:
            yield from leaves(value, place)
        else:
            yield place, value


LEAVES = dict(leaves(rendering.defaults()))


def outcome(values: rendering.Values, kube: str) -> Any:
    try:
        return rendering.render(values, kube=kube)
    except rendering.Refused as refused:
        return str(refused)


def test_each_value_has_an_alternative_in_the_table() -> None:
    assert sorted(ALTERNATIVES) == sorted(LEAVES)


@pytest.mark.parametrize(("path", "other"), ALTERNATIVES.items())
def test_another_value_makes_another_installation(path: str, other: Other) -> None:
    assert other.value != LEAVES[path]

    before = outcome(other.beside, other.kube)

    assert isinstance(before, rendering.Rendered)
    assert before != outcome({**other.beside, path: other.value}, other.kube)


def test_only_values_that_must_follow_others_or_must_not_change_are_refused() -> None:
    refused = [
        path
        for path, other in ALTERNATIVES.items()
        if isinstance(outcome({**other.beside, path: other.value}, other.kube), str)
    ]
    assert sorted(refused) == [
        "devicePlugin.hostPID",
        "devicePlugin.libPath",
        "global.gpuHookPath",
    ]


def test_a_folder_for_the_library_that_both_values_agree_on_is_used() -> None:
    rendered = rendering.render(
        {"global.gpuHookPath": "/opt/hook/", "devicePlugin.libPath": "/opt/hook/vgpu"}
    )
    flags = rendered.flags("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
    assert flags["hook-path"] == "/opt/hook/"


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(path: str) -> bool:
        place = schema
        for name in path.split("."):
            if name not in place.get("properties", {}):
                # Maps of the user's own names end the walk.
                return "additionalProperties" in place
            place = place["properties"][name]
            place = schema["$defs"][place["$ref"].split("/")[-1]] if "$ref" in place else place
        return True

    assert [path for path in LEAVES if not known(path)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("fallback.mode", "sometimes"),
        ("fallback.chains", [["big"]]),
        ("scheduler.replicas", 0),
        ("scheduler.replicas", "two"),
        ("scheduler.runAsUser", 0),
        ("scheduler.nodeLockExpire", "5 minutes"),
        ("scheduler.overuse.action", "delete"),
        ("scheduler.overuse.grace", "soon"),
        ("scheduler.overwriteEnv", "yes"),
        ("scheduler.admissionWebhook.failurePolicy", "Maybe"),
        ("scheduler.admissionWebhook.timeoutSeconds", 31),
        ("scheduler.service.type", "ExternalName"),
        ("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy", "binpack,random"),
        ("devicePlugin.deviceSplitCount", 0),
        ("devicePlugin.deviceMemoryScaling", -1),
        ("devicePlugin.binding", "never"),
        ("devicePlugin.driverInjection", "magic"),
        ("devicePlugin.migStrategy", "some"),
        ("devicePlugin.quarantine", "5 minutes"),
        ("devicePlugin.stateDir", "hami"),
        ("devicePlugin.cdiDir", "/var/run/cdi,/etc/cdi"),
        ("devicePlugin.runtimeEndpoint", "containerd.sock"),
        ("devicePlugin.updateStrategy.type", "Recreate"),
        ("devicePlugin.extraEnvs", ["A=b"]),
        ("devicePlugin.monitor.resyncInterval", 5),
        ("devicePlugin.service.httpPort", 0),
        ("devices.nvidia.gpuCorePolicy", "sometimes"),
        ("resourceName", "gpu"),
        ("schedulerName", "Not A Name"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_name(path: str, value: object) -> None:
    assert f"'/{path.replace('.', '/')}" in rendering.refusal({path: value})


def test_helm_finds_nothing_to_complain_of() -> None:
    done = subprocess.run(
        [str(rendering.helm_4()), "lint", "--strict", str(CHART)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_the_names_that_are_read_are_those_of_the_values_file() -> None:
    text = (CHART / "templates/_unknown.tpl").read_text()
    sections = re.findall(r'^  "([^"]*)" \(list ((?:[^)])*)\)', text, re.MULTILINE)
    assert len(sections) > 10
    for section, names in sections:
        place = rendering.defaults()
        for part in filter(None, section.split(".")):
            place = place[part]
        assert sorted(re.findall(r'"([^"]+)"', names)) == sorted(place), section


#: As HAMi's own values.yaml writes it.
HAMI_NODE_CONFIG = """\
{
  "nodeconfig": [
    {
      "name": "your-node-name",
      "operatingmode": "hami-core",
      "devicememoryscaling": 1,
      "devicesplitcount": 10,
      "migstrategy": "none",
      "filterdevices": {"uuid": [], "index": []}
    }
  ]
}
"""


def test_values_of_hami_are_taken_as_they_are() -> None:
    rendered = rendering.render(
        {
            "global.imageTag": "v2.10.0",
            "mluResourceName": "cambricon.com/vmlu",
            "metaxsGPUTopologyAware": "false",
            "scheduler.overwriteEnv": "true",
            "scheduler.livenessProbe": False,
            "scheduler.podDisruptionBudget.minAvailable": 1,
            "scheduler.kubeScheduler.extraNewArgs": ["--config=/config/config.yaml", "-v=4"],
            "scheduler.kubeScheduler.extraArgs": ["--policy-config-file=/config/config.json"],
            "scheduler.extender.extraArgs": ["--debug", "-v=4"],
            "scheduler.extenderHTTPTimeout": 30,
            "scheduler.admissionWebhook.whitelistNamespaces": None,
            "scheduler.admissionWebhook.namespaceSelector.matchLabels": None,
            "scheduler.patch.imageNew.tag": "v1.1.1",
            "scheduler.service.httpTargetPort": 9443,
            "scheduler.service.monitorTargetPort": "metrics",
            "devicePlugin.enabled": True,
            "devicePlugin.disablecorelimit": "true",
            "devicePlugin.nvidiaNodeSelector.gpu": "on",
            "devicePlugin.monitor.ctrPath": "/usr/local/vgpu/containers",
            "devicePlugin.monitor.extraArgs": ["-v=4"],
            "devicePlugin.monitor.extraEnvs": {},
            "devicePlugin.gpuOperatorToolkitReady.securityContext.privileged": True,
            "devicePlugin.nodeConfiguration.config": HAMI_NODE_CONFIG,
            "devicePlugin.nvidiaDriverRoot": None,
            "devicePlugin.nvidiaHookPath": None,
            "devicePlugin.gdrcopyEnabled": None,
            "devicePlugin.passDeviceSpecsEnabled": False,
            "devicePlugin.deviceListStrategy": "envvar",
            "devicePlugin.extraArgs": ["-v=4"],
            "devicePlugin.securityContext.privileged": True,
            "devices.amd.customresources": ["amd.com/gpu"],
            "devices.ascend.enabled": False,
            "mockDevicePlugin.enabled": False,
        }
    )
    kube_scheduler = rendered.container("Deployment", "hami-scheduler", "kube-scheduler")
    assert kube_scheduler["command"] == [
        "kube-scheduler",
        "--config=/etc/kube-scheduler/kube-scheduler.yaml",
        "-v=4",
    ]
    config = rendered.one("ConfigMap", "hami-scheduler-device")["data"]["device-config.yaml"]
    assert "overwriteEnv: true" in config
    assert "disableCoreLimit: true" in config
