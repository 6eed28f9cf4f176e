"""Values of devices and MIG profiles arrive in the programs that read the files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from hami.admission import mig_fallback
from hami.vendors import device_config
from tests.chart import rendering


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


def test_chains_are_written_as_the_program_reads_them() -> None:
    given = [["3g.40gb", {"profile": "1g.10gb", "memory": 9000, "cores": 14}]]
    files = rendering.render({"fallback.chains": given}).one("ConfigMap", "hami-scheduler-device")
    read = mig_fallback.parse(files["data"]["mig-fallback.yaml"], source="the chart")

    assert read == mig_fallback.parse(yaml.safe_dump({"chains": given}), source="the chart")
    assert (
        "mig-fallback.yaml"
        not in rendering.render().one("ConfigMap", "hami-scheduler-device")["data"]
    )
