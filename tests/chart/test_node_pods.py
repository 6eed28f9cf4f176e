"""The pod on GPU nodes: its rights, what of the node it sees, and where it runs."""

from __future__ import annotations

import json
import posixpath
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chart import rendering
from tests.chart.rendering import Object, Rendered

NAME = "hami-device-plugin"
AGENT, MONITOR = "device-plugin", "vgpu-monitor"
#: Where the agent finds the runtime's sockets.
RUNTIME = "runtime"


def render(values: dict[str, Any] | None = None, **settings: Any) -> Rendered:
    given = {f"devicePlugin.{name}": value for name, value in (values or {}).items()}
    return rendering.render(given, **settings)


def spec(rendered: Rendered) -> Object:
    found = rendered.pod("DaemonSet", NAME)["spec"]
    assert isinstance(found, dict)
    return found


def mounts(rendered: Rendered, container: str) -> dict[str, Object]:
    """Give the mounts of folders of the node, each with its folder, by place in the container."""
    hosts = {
        volume["name"]: volume["hostPath"]
        for volume in spec(rendered)["volumes"]
        if "hostPath" in volume
    }
    given = rendered.container("DaemonSet", NAME, container)["volumeMounts"]
    places = [each["mountPath"] for each in given]
    assert len(set(places)) == len(places)
    return {
        each["mountPath"]: {**each, **hosts[each["name"]]}
        for each in given
        if each["name"] in hosts
    }


def test_all_paths_for_kubelet_and_the_runtime_are_the_nodes_own() -> None:
    for container in (AGENT, MONITOR):
        for place, mount in mounts(render(), container).items():
            if mount["name"] != RUNTIME:
                assert place == mount["path"]


def test_the_agent_writes_where_it_must_and_nowhere_else() -> None:
    found = mounts(render(), AGENT)
    assert {place for place, mount in found.items() if not mount.get("readOnly")} == {
        "/var/lib/kubelet/device-plugins",
        "/usr/local/vgpu",
        "/var/lib/hami",
        "/run/hami",
        "/var/run/cdi",
    }
    assert found["/run/hami"]["mountPropagation"] == "Bidirectional"
    assert {place for place, mount in found.items() if mount.get("readOnly")} == {
        "/var/lib/kubelet/pod-resources",
        "/etc/cdi",
        "/host/run",
    }


def test_the_monitor_reads_and_removes_files_of_hami_only() -> None:
    found = mounts(render(), MONITOR)
    assert set(found) == {
        "/usr/local/vgpu",
        "/usr/local/vgpu/containers",
        "/var/lib/hami",
        "/run/hami",
    }
    written = [place for place, mount in found.items() if not mount.get("readOnly")]
    assert written == ["/usr/local/vgpu/containers"]
    # What the agent mounts there later must be seen.
    assert found["/run/hami"]["mountPropagation"] == "HostToContainer"


def test_folders_of_others_are_not_made_for_them() -> None:
    found = mounts(render({"nvidiaDriverRoot": "/run/nvidia/driver"}), AGENT)
    for place in ("/host/run", "/driver-root", "/var/lib/kubelet/device-plugins"):
        assert found[place]["type"] == "Directory"


@pytest.mark.parametrize(
    ("endpoint", "folder"),
    [
        ("", "/run"),
        ("/run/containerd/containerd.sock", "/run/containerd"),
        ("unix:///run/cri-dockerd.sock", "/run"),
        ("/var/snap/microk8s/common/run/containerd.sock", "/var/snap/microk8s/common/run"),
    ],
)
def test_the_runtimes_socket_is_found_again_when_the_runtime_restarts(
    endpoint: str, folder: str
) -> None:
    rendered = render({"runtimeEndpoint": endpoint})
    [mount] = [each for each in mounts(rendered, AGENT).values() if each["name"] == RUNTIME]
    assert (mount["path"], mount["mountPath"]) == (folder, f"/host{folder}")
    # Else rootfs of deleted containers would stay mounted for as long as the agent runs.
    assert mount["mountPropagation"] == "HostToContainer"
    reply = rendered.flags("DaemonSet", NAME, AGENT)["runtime-endpoint"].split(",")
    assert all(posixpath.commonpath((each, f"/host{folder}")) == f"/host{folder}" for each in reply)


@pytest.mark.parametrize(
    ("folders", "read_only"),
    [(["/etc/cdi", "/var/run/cdi"], {"/etc/cdi"}), (["/var/run/cdi"], set()), ([], set())],
)
def test_each_folder_of_specs_is_mounted_once(folders: list[str], read_only: set[str]) -> None:
    found = mounts(render({"nvidiaCdiDirs": folders}), AGENT)
    named = {place for place, mount in found.items() if mount["name"].startswith("nvidia-cdi")}
    assert named == read_only


def test_the_agent_is_root_and_may_mount_but_does_not_write_into_its_image() -> None:
    rendered = render()
    assert spec(rendered)["securityContext"]["runAsUser"] == 0
    assert rendered.container("DaemonSet", NAME, AGENT)["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
    }


@pytest.mark.parametrize(
    ("values", "added"), [({}, ["DAC_OVERRIDE"]), ({"migStrategy": "single"}, None)]
)
def test_the_monitor_has_few_rights(values: dict[str, Any], added: list[str] | None) -> None:
    rendered = render(values)
    confined = rendered.container("DaemonSet", NAME, MONITOR)["securityContext"]
    assert confined == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": added or ["DAC_OVERRIDE", "SYS_ADMIN"]},
        # Under SELinux no other domain reads /proc of containers.
        "seLinuxOptions": {"type": "spc_t"},
    }
    # NVIDIA's runtime starts no container that asks for this without SYS_ADMIN.
    names = {each["name"] for each in rendered.container("DaemonSet", NAME, MONITOR)["env"]}
    assert ("NVIDIA_MIG_MONITOR_DEVICES" in names) is (added is None)


def test_where_it_opens_the_driver_itself_the_monitor_may_use_the_devices() -> None:
    rendered = render({"nvidiaDriverRoot": "/"})
    confined = rendered.container("DaemonSet", NAME, MONITOR)["securityContext"]
    assert confined == {"privileged": True, "readOnlyRootFilesystem": True}
    for container in (AGENT, MONITOR):
        mount = mounts(rendered, container)["/driver-root"]
        assert (mount["path"], mount["readOnly"]) == ("/", True)
        # The GPU Operator mounts its driver when it is ready.
        assert mount["mountPropagation"] == "HostToContainer"


def test_the_monitors_rights_can_be_chosen() -> None:
    own = {"privileged": False, "capabilities": {"drop": ["ALL"]}}
    rendered = render({"monitor.securityContext": own, "nvidiaDriverRoot": "/"})
    assert rendered.container("DaemonSet", NAME, MONITOR)["securityContext"] == own


@pytest.mark.parametrize("container", [AGENT, MONITOR])
def test_nvidias_runtime_shows_them_all_cards(container: str) -> None:
    given = render().container("DaemonSet", NAME, container)["env"]
    reply = {each["name"]: each.get("value") for each in given}
    assert reply["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert reply["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


@pytest.mark.parametrize(("container", "port"), [(AGENT, 9396), (MONITOR, 9394)])
def test_one_that_hangs_is_restarted(container: str, port: int) -> None:
    probed = render().container("DaemonSet", NAME, container)
    [listening] = probed["ports"]
    assert listening["containerPort"] == port
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert probed[probe]["httpGet"] == {"path": path, "port": listening["name"]}


def test_an_agent_that_serves_nothing_is_not_asked() -> None:
    rendered = render({"metricsBindAddress": ""})
    probed = rendered.container("DaemonSet", NAME, AGENT)
    assert {"ports", "startupProbe", "livenessProbe", "readinessProbe"}.isdisjoint(probed)
    [port] = rendered.one("Service", f"{NAME}-monitor")["spec"]["ports"]
    assert port["name"] == "monitorport"


def test_pods_run_on_labelled_nodes_as_configured() -> None:
    rendered = render(
        {
            "nvidiaNodeSelector": {"gpu": None, "card": "yes"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "updateStrategy.rollingUpdate.maxUnavailable": "10%",
            "hostNetwork": True,
        }
    )
    reply = spec(rendered)
    assert reply["nodeSelector"] == {"card": "yes"}
    assert reply["tolerations"] == [{"operator": "Exists"}]
    assert reply["priorityClassName"] == "high"
    assert reply["runtimeClassName"] == "nvidia"
    assert (reply["hostNetwork"], reply["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert reply["hostPID"] is True
    strategy = rendered.one("DaemonSet", NAME)["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert spec(render())["nodeSelector"] == {"gpu": "on"}
    assert spec(render())["priorityClassName"] == "system-node-critical"


def test_images_are_the_schedulers_unless_others_are_named() -> None:
    def images(values: dict[str, Any]) -> list[tuple[str, str]]:
        containers = spec(rendering.render(values))["containers"]
        return [(each["image"], each["imagePullPolicy"]) for each in containers]

    assert images({"scheduler.extender.image.pullPolicy": "Never"}) == [("hami:0.1.0", "Never")] * 2
    agents = {"devicePlugin.image.repository": "gpu/agent", "devicePlugin.image.tag": "v1"}
    assert images(agents) == [("gpu/agent:v1", "IfNotPresent")] * 2
    own = {"devicePlugin.monitor.image.tag": "v2", "devicePlugin.monitor.image.registry": "r.io"}
    assert images({**agents, **own}) == [
        ("gpu/agent:v1", "IfNotPresent"),
        ("r.io/gpu/agent:v2", "IfNotPresent"),
    ]


def test_a_changed_file_starts_new_pods_unless_the_agent_follows_it_by_itself() -> None:
    before = render().pod("DaemonSet", NAME)
    assert render({"deviceSplitCount": 3}).pod("DaemonSet", NAME) != before
    config = '{"nodeconfig": [{"name": "node-1", "devicesplitcount": 3}]}'
    assert render({"nodeConfiguration.config": config}).pod("DaemonSet", NAME) == before


def test_settings_of_nodes_are_a_file_that_is_always_there() -> None:
    config = '{"nodeconfig": [{"name": "node-1", "devicesplitcount": 4}]}'
    for given, expected in ((config, json.loads(config)), ("", {"nodeconfig": []})):
        made = render({"nodeConfiguration.config": given}).one("ConfigMap", NAME)
        assert json.loads(made["data"]["config.json"]) == expected

    own = render({"nodeConfiguration.externalConfigName": "mine"})
    assert not own.has("ConfigMap", NAME)
    [volume] = [each for each in spec(own)["volumes"] if each["name"] == "node-config"]
    assert volume["configMap"] == {"name": "mine"}


def test_both_containers_get_the_volumes_that_are_added() -> None:
    volume, mount = {"name": "more", "emptyDir": {}}, {"name": "more", "mountPath": "/more"}
    rendered = render({"extraVolumes": [volume], "extraVolumeMounts": [mount]})
    assert volume in spec(rendered)["volumes"]
    for container in (AGENT, MONITOR):
        assert mount in rendered.container("DaemonSet", NAME, container)["volumeMounts"]


def test_it_waits_for_the_gpu_operators_toolkit(tmp_path: Path) -> None:
    assert "initContainers" not in spec(render())
    [waiting] = spec(render({"gpuOperatorToolkitReady.enabled": True}))["initContainers"]
    [mount] = waiting["volumeMounts"]
    program = waiting["command"][-1].replace(mount["mountPath"], str(tmp_path))
    assert program != waiting["command"][-1]
    (tmp_path / "toolkit-ready").touch()
    # Ends, as the file is there; without it the program would be stopped by the limit.
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(("version", "group"), [("1.19.0", "v1beta1"), ("1.20.0", "v1")])
def test_a_runtime_class_can_be_had(version: str, group: str) -> None:
    made = render({"createRuntimeClass": True}, kube=version).one("RuntimeClass", "nvidia")
    assert (made["apiVersion"], made["handler"]) == (f"node.k8s.io/{group}", "nvidia")
    named = {"createRuntimeClass": True, "runtimeClassName": "gpu"}
    assert render(named, kube=version).names("RuntimeClass") == ["gpu"]
    assert render({"runtimeClassName": "gpu"}, kube=version).names("RuntimeClass") == []


@pytest.mark.parametrize("values", [{"devicePlugin.enabled": False}, {"webhookOnly.enabled": True}])
def test_without_it_there_is_nothing_of_it(values: dict[str, bool]) -> None:
    more = {"devicePlugin.createRuntimeClass": True, "prometheus.enabled": True}
    rendered = rendering.render({**values, **more, "grafana.dashboards": True})
    assert rendered.names("DaemonSet") == rendered.names("RuntimeClass") == []
    for each in rendered.objects:
        assert "device-plugin" not in each["metadata"]["name"]
    rules = rendered.one("PrometheusRule", "hami")["spec"]["groups"]
    assert [group["name"] for group in rules] == ["hami-admission"]
    assert list(rendered.one("ConfigMap", "hami-dashboards")["data"]) == ["hami-admission.json"]
