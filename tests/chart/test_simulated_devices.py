"""Simulated devices in the chart: off by default, few rights, the description."""

from __future__ import annotations

from hami.cli import flags, simulate_devices
from hami.simulation import description
from hami.vendors import device_config
from tests.chart import rendering
from tests.chart.rendering import NAMESPACE, Rendered
from tests.chart.test_rights import bound, rights

NAME = "hami-simulated-devices"
NODES = [
    {"names": ["gpu-*"], "devices": [{"model": "A100-40GB", "cards": 8}]},
    {"devices": [{"vendor": "DCU", "model": "DCU-X", "memory": 1048576, "unhealthy": [0]}]},
]
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"


def render(**more: object) -> Rendered:
    on = {"simulatedDevices.enabled": True, "simulatedDevices.nodes": NODES}
    return rendering.render({**on, **more})


def test_by_default_nothing_is_simulated() -> None:
    for values in (None, {"webhookOnly.enabled": True, "simulatedDevices.enabled": True}):
        rendered = rendering.render(values)
        assert not [each for each in rendered.objects if "simulated" in each["metadata"]["name"]]
        for name in rendered.names("ValidatingAdmissionPolicy"):
            assert ACCOUNT not in str(rendered.one("ValidatingAdmissionPolicy", name))


def test_the_process_reads_the_description_of_the_values() -> None:
    rendered = render()
    command, *arguments = rendered.container("DaemonSet", NAME, "simulated-devices")["args"]
    assert command == "simulate-devices"
    resolved = flags.resolve(simulate_devices.TABLE, arguments, {"NODE_NAME": "node-1"})
    assert resolved.warnings == ()
    assert resolved.settings.devices_file == "/etc/hami/simulated/devices.yaml"
    assert resolved.settings.kubelet_dir == "/var/lib/kubelet"
    text = rendered.one("ConfigMap", NAME)["data"]["devices.yaml"]
    vendors = device_config.load_or_built_in("").vendors
    found = description.parse(text, vendors, source="devices.yaml")
    assert [(each.cards, each.memory) for each in found.of_node("gpu-1")] == [(8, 40960)]
    assert [(each.cards, each.memory) for each in found.of_node("other")] == [(1, 1048576)]


def test_it_has_the_rights_that_it_needs_and_no_more() -> None:
    rendered = render()
    assert rights(rendered, "ClusterRole", NAME) == {
        "nodes": {"get", "patch"},
        "pods": {"get", "list", "patch"},
    }
    assert bound(rendered, NAME) == {NAME}
    pod = rendered.pod("DaemonSet", NAME)["spec"]
    assert pod["serviceAccountName"] == NAME
    assert not pod.get("hostPID")
    assert not pod.get("hostNetwork")
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each] == [
        "/var/lib/kubelet/device-plugins"
    ]


def test_the_policies_let_its_account_write_the_keys_of_all_vendors() -> None:
    rendered = render()
    for name in rendered.names("ValidatingAdmissionPolicy"):
        variables = rendered.one("ValidatingAdmissionPolicy", name)["spec"]["variables"]
        [trusted] = [each["expression"] for each in variables if each["name"] == "isTrusted"]
        assert ACCOUNT in trusted


def test_the_notes_say_that_cards_are_simulated() -> None:
    values = {"simulatedDevices.enabled": True, "simulatedDevices.nodes": NODES}
    assert "nodes offer cards that do not exist" in rendering.notes(values)
    assert "do not exist" not in rendering.notes()
