"""`hami agent` and `hami monitor` understand the flags that the chart sets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.agent.kubelet import runtime
from hami.agent.settings import Settings as AgentSettings
from hami.cli import agent as cli_agent
from hami.cli import flags
from hami.cli import monitor as cli_monitor
from hami.monitor.settings import Settings as MonitorSettings
from hami.vendors import device_config
from tests.chart import rendering
from tests.chart.rendering import Rendered

NODE = "node-1"
#: Where runtimes have their sockets, as the agent sees the node's /run.
SOCKETS = [f"/host{each}" for each in runtime.CANDIDATES if each.startswith("/run/")]


def environment(rendered: Rendered, container: str) -> dict[str, str]:
    """Give a container's variables, as they are on the node NODE."""
    given = rendered.container("DaemonSet", "hami-device-plugin", container)["env"]
    fields = {"spec.nodeName": NODE}
    return {
        each["name"]: each["value"]
        if "value" in each
        else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in given
    }


def agent(rendered: Rendered) -> AgentSettings:
    container = rendered.container("DaemonSet", "hami-device-plugin", "device-plugin")
    command, *arguments = container["args"]
    assert command == "agent"
    given = environment(rendered, "device-plugin")
    resolved = flags.resolve(cli_agent.TABLE, arguments, given)
    assert resolved.warnings == ()
    return resolved.settings


def monitor(rendered: Rendered) -> MonitorSettings:
    container = rendered.container("DaemonSet", "hami-device-plugin", "vgpu-monitor")
    command, *arguments = container["args"]
    assert command == "monitor"
    given = environment(rendered, "vgpu-monitor")
    resolved = flags.resolve(cli_monitor.TABLE, arguments, given)
    assert resolved.warnings == ()
    return resolved.settings


def changed(settings: msgspec.Struct) -> dict[str, Any]:
    """Give what differs from the program's own defaults."""
    usual = msgspec.structs.asdict(type(settings)())
    given = msgspec.structs.asdict(settings)
    return {name: value for name, value in given.items() if value != usual[name]}


def test_the_agent_gets_its_paths_and_keeps_its_other_defaults() -> None:
    assert changed(agent(rendering.render())) == {
        "node_name": NODE,
        "runtime_endpoint": ",".join(SOCKETS),
        "device_config_file": "/etc/hami/config/device-config.yaml",
        "node_config_file": "/etc/hami/node/config.json",
    }


def test_the_monitor_gets_its_node_and_keeps_its_defaults() -> None:
    assert changed(monitor(rendering.render())) == {"node_name": NODE}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"migStrategy": "mixed"}, {"mig_strategy": "mixed"}),
        (
            {"enableGetPreferredAllocation": False},
            {"enable_get_preferred_allocation": False},
        ),
        ({"advertiseShares": True}, {"advertise_shares": True}),
        ({"binding": "lock"}, {"binding": "lock"}),
        ({"driverInjection": "runtime"}, {"driver_injection": "runtime"}),
        ({"allowUnsignedGrants": True}, {"allow_unsigned_grants": True}),
        ({"uncontrolledNamespaces": ["a", "b"]}, {"uncontrolled_namespaces": "a,b"}),
        ({"quarantine": "1h30m"}, {"quarantine": 5400.0}),
        ({"disableHealthChecks": "all"}, {"disable_health_checks": "all"}),
        ({"enableHealthChecks": "13,31"}, {"enable_health_checks": "13,31"}),
        ({"pluginPath": "/data/kubelet/device-plugins"}, {"kubelet_dir": "/data/kubelet"}),
        ({"cdiDir": "/etc/cdi"}, {"cdi_dir": "/etc/cdi"}),
        ({"nvidiaCdiDirs": ["/opt/cdi"]}, {"nvidia_cdi_dirs": "/opt/cdi"}),
        ({"stateDir": "/data/hami"}, {"state_dir": "/data/hami"}),
        ({"runDir": "/run/cards"}, {"run_dir": "/run/cards"}),
        (
            {"runtimeEndpoint": "unix:///var/snap/run/containerd.sock"},
            {"runtime_endpoint": "/host/var/snap/run/containerd.sock"},
        ),
        ({"nvidiaDriverRoot": "/run/nvidia/driver"}, {"driver_root": "/driver-root"}),
        ({"nvidiaDriverRoot": None}, {"driver_root": ""}),
        ({"metricsBindAddress": ":9000"}, {"metrics_bind_address": ":9000"}),
        ({"extraArgs": ["--debug"]}, {"debug": True}),
        ({"extraEnvs": {"HAMI_POD_WAIT": "7s"}}, {"pod_wait": 7.0}),
    ],
)
def test_a_value_becomes_a_setting_of_the_agent(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    given = {f"devicePlugin.{name}": value for name, value in values.items()}
    reply = msgspec.structs.asdict(agent(rendering.render(given)))
    assert {name: reply[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"legacyMetrics": True}, {"legacy_metrics": True}),
        ({"devicePlugin.monitor.resyncInterval": "1h"}, {"hami_resync_interval": 3600.0}),
        ({"devicePlugin.monitor.overuseTolerance": 64}, {"overuse_tolerance": 64}),
        ({"devicePlugin.stateDir": "/data/hami"}, {"state_dir": "/data/hami"}),
        ({"devicePlugin.runDir": "/run/cards"}, {"run_dir": "/run/cards"}),
        ({"devicePlugin.nvidiaDriverRoot": "/"}, {"driver_root": "/driver-root"}),
        ({"devicePlugin.monitor.extraArgs": ["--debug"]}, {"debug": True}),
        ({"devicePlugin.monitor.extraEnvs": {"HAMI_DEBUG": True}}, {"debug": True}),
    ],
)
def test_a_value_becomes_a_setting_of_the_monitor(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    reply = msgspec.structs.asdict(monitor(rendering.render(values)))
    assert {name: reply[name] for name in expected} == expected


def test_both_look_for_the_library_where_the_scheduler_says_it_is() -> None:
    elsewhere = {"global.gpuHookPath": "/opt/hook", "devicePlugin.libPath": "/opt/hook/vgpu"}
    rendered = rendering.render(elsewhere)
    scheduler = rendered.flags("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
    assert agent(rendered).hook_path == scheduler["hook-path"] == "/opt/hook"
    assert monitor(rendered).hook_path == "/opt/hook"


def test_agent_and_scheduler_read_one_file_about_devices() -> None:
    rendered = rendering.render()
    kinds = (("DaemonSet", "hami-device-plugin"), ("Deployment", "hami-scheduler"))
    names = [
        volume["configMap"]["name"]
        for kind, workload in kinds
        for volume in rendered.pod(kind, workload)["spec"]["volumes"]
        if volume["name"] == "config"
    ]
    assert names[0] == names[1]
    data = rendered.one("ConfigMap", names[0])["data"]
    reply = device_config.parse(data["device-config.yaml"], source="the chart")
    assert reply.nvidia.device_split_count == 10
