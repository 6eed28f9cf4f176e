"""Values of devices and MIG profiles arrive in the programs that read the files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from hami.admission import mig_fallback
from hami.vendors import device_config
from hami.vendors.device_config import DeviceConfig
from tests.chart import rendering
from tests.unit.vendors import hami_files


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"scheduler.overwriteEnv": True}, {"overwrite_env": True}),
        ({"devicePlugin.deviceSplitCount": 3}, {"device_split_count": 3}),
        ({"devicePlugin.deviceMemoryScaling": 1.5}, {"device_memory_scaling": 1.5}),
        ({"devicePlugin.deviceCoreScaling": 2}, {"device_core_scaling": 2.0}),
        # Helm would write it as 1e+06.
        (
            {"devicePlugin.preConfiguredDeviceMemory": 1000000},
            {"pre_configured_device_memory": 1000000},
        ),
        ({"devicePlugin.disablecorelimit": True}, {"disable_core_limit": True}),
        ({"devicePlugin.enableNumaTopology": True}, {"enable_numa_topology": True}),
        ({"devicePlugin.runtimeClassName": "nvidia"}, {"runtime_class_name": "nvidia"}),
        ({"devices.nvidia.gpuCorePolicy": "force"}, {"gpu_core_policy": "force"}),
        ({"devices.nvidia.libCudaLogLevel": 4}, {"lib_cuda_log_level": 4}),
    ],
)
def test_a_value_becomes_a_setting_of_the_devices(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    files = rendering.render(values).one("ConfigMap", "hami-scheduler-device")["data"]
    read = device_config.parse(files["device-config.yaml"], source="the chart")
    usual = device_config.NvidiaSettings()

    assert read.warnings == ()
    assert read.nvidia == msgspec.structs.replace(usual, **expected)


def test_names_of_resources_reach_the_devices() -> None:
    names = {
        "resourceName": "a.example/count",
        "resourceMem": "a.example/memory",
        "resourceMemPercentage": "",
        "resourceCores": "a.example/cores",
        "resourcePriority": "a.example/priority",
    }
    files = rendering.render(names).one("ConfigMap", "hami-scheduler-device")["data"]
    vendor, *_ = device_config.parse(files["device-config.yaml"], source="the chart").vendors

    assert list(vendor.resources.named()) == [name for name in names.values() if name]


def config_of(values: dict[str, Any]) -> DeviceConfig:
    files = rendering.render(values).one("ConfigMap", "hami-scheduler-device")["data"]
    return device_config.parse(files["device-config.yaml"], source="the chart")


@pytest.mark.parametrize(
    ("value", "vendor", "field"),
    [
        ("mluResourceName", "MLU", "count"),
        ("mluResourceMem", "MLU", "memory"),
        ("mluResourceCores", "MLU", "cores"),
        ("dcuResourceName", "DCU", "count"),
        ("dcuResourceMem", "DCU", "memory"),
        ("dcuResourceCores", "DCU", "cores"),
        ("enflameResourceNameDRSGCU", "Enflame", "count"),
        ("enflameResourceNameGCUMemory", "Enflame", "memory"),
        ("enflameResourceNameGCUCore", "Enflame", "cores"),
        ("enflameResourceNameVGCU", "Enflame-VGCU", "count"),
        ("birenResourceName", "Biren", "count"),
    ],
)
def test_a_value_of_hami_names_a_resource_of_its_vendor(
    value: str, vendor: str, field: str
) -> None:
    named = {
        each.name: getattr(each.resources, field)
        for each in config_of({value: "a.example/it"}).vendors
    }

    assert {name for name, resource in named.items() if resource == "a.example/it"} == {vendor}


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("cambricon", {"MLU"}),
        ("hygon", {"DCU"}),
        ("enflame", {"GCU", "Enflame"}),
        ("amd", {"AMD"}),
        ("biren", {"Biren"}),
    ],
)
def test_a_vendor_that_is_disabled_is_not_served(devices: str, names: set[str]) -> None:
    before = {vendor.name for vendor in config_of({}).vendors}
    after = {vendor.name for vendor in config_of({f"devices.{devices}.enabled": False}).vendors}

    assert before - after == names


def bare(value: Any) -> Any:
    """Return data without keys whose value says nothing."""
    if isinstance(value, dict):
        said = {key: bare(item) for key, item in value.items() if item not in ("", 0, None)}
        return {key: item for key, item in said.items() if (key, item) != ("memoryFactor", 1)}
    return [bare(item) for item in value] if isinstance(value, list) else value


def test_with_every_vendor_the_file_says_what_that_of_hami_2_10_says() -> None:
    values = {"devices.iluvatar.enabled": True, "devices.ascend.enabled": True}
    files = rendering.render(values).one("ConfigMap", "hami-scheduler-device")["data"]
    ours = yaml.safe_load(files["device-config.yaml"])
    theirs = hami_files.sections("2.10")
    # MIG profiles have no value, and the rest of this section is tested above.
    del ours["nvidia"], theirs["nvidia"]

    assert bare(ours) == bare(theirs)


def test_settings_of_vendors_that_are_not_served_arrive_in_the_file() -> None:
    values = {
        "metaxsGPUTopologyAware": "true",
        "devices.ascend.enabled": True,
        "devices.ascend.hamiVnpuCore": True,
        "devices.ascend.runtimeClassName": "ascend",
        "scheduler.overwriteEnv": "true",
    }
    files = rendering.render(values).one("ConfigMap", "hami-scheduler-device")["data"]
    read = yaml.safe_load(files["device-config.yaml"])

    assert read["metax"]["sgpuTopologyAware"] is True
    assert read["vnpus"]["hamiVnpuCore"] is True
    for entry in read["vnpus"]["configs"]:
        assert (entry["runtimeClassName"], entry["overwriteEnv"]) == ("ascend", True)


def test_chains_are_written_as_the_program_reads_them() -> None:
    given = [["3g.40gb", {"profile": "1g.10gb", "memory": 9000, "cores": 14}]]
    files = rendering.render({"fallback.chains": given}).one("ConfigMap", "hami-scheduler-device")
    read = mig_fallback.parse(files["data"]["mig-fallback.yaml"], source="the chart")

    assert read == mig_fallback.parse(yaml.safe_dump({"chains": given}), source="the chart")
    assert (
        "mig-fallback.yaml"
        not in rendering.render().one("ConfigMap", "hami-scheduler-device")["data"]
    )
