"""device-config.yaml of HAMi 2.8 and 2.10: tables of keys and defaults.

Facts, not HAMi's text: the file is put together from them. Each table says what differs between the
two versions.
"""

from __future__ import annotations

from typing import Any, Literal

import yaml

Version = Literal["2.8", "2.10"]
VERSIONS: tuple[Version, ...] = ("2.8", "2.10")

NVIDIA_NAMES = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
}
NVIDIA_SETTINGS: dict[str, Any] = {
    "overwriteEnv": False,
    "defaultMemory": 0,
    "defaultCores": 0,
    "defaultGPUNum": 1,
    "memoryFactor": 1,
    "deviceSplitCount": 10,
    "deviceMemoryScaling": 1,
    "deviceCoreScaling": 1,
    "gpuCorePolicy": "default",
    "libCudaLogLevel": 1,
    "runtimeClassName": "",
}
NVIDIA_SETTINGS_SINCE_2_10: dict[str, Any] = {
    "preConfiguredDeviceMemory": 0,
    "enableNumaTopology": False,
}
#: Models and profiles; 2.8 has each profile with core, memory and count, as ways to cut a card.
MIG: tuple[tuple[tuple[str, ...], str], ...] = (
    (("A30",), "1g.6gb 2g.12gb 4g.24gb"),
    (("A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"), "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    (("A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"), "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    (("H100-PCIE-80GB", "H100-SXM5-80GB"), "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    (("H100-PCIE-94GB", "H100-SXM5-94GB"), "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    (("H20", "H100 on GH200"), "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    (("H200 NVL", "H200-SXM5"), "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    (("B200",), "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
)
MIG_SINCE_2_10 = ((("RTX PRO 6000 Blackwell Server Edition",), "1g.24gb 2g.48gb 4g.96gb"),)

#: The same in both.
COMMON: dict[str, dict[str, Any]] = {
    "cambricon": {
        "resourceCountName": "cambricon.com/vmlu",
        "resourceMemoryName": "cambricon.com/mlu.smlu.vmemory",
        "resourceCoreName": "cambricon.com/mlu.smlu.vcore",
    },
    "hygon": {
        "resourceCountName": "hygon.com/dcunum",
        "resourceMemoryName": "hygon.com/dcumem",
        "resourceCoreName": "hygon.com/dcucores",
        "memoryFactor": 1,
    },
    "metax": {
        "resourceCountName": "metax-tech.com/gpu",
        "resourceVCountName": "metax-tech.com/sgpu",
        "resourceVMemoryName": "metax-tech.com/vmemory",
        "resourceVCoreName": "metax-tech.com/vcore",
        "sgpuTopologyAware": False,
    },
    "mthreads": {
        "resourceCountName": "mthreads.com/vgpu",
        "resourceMemoryName": "mthreads.com/sgpu-memory",
        "resourceCoreName": "mthreads.com/sgpu-core",
    },
    "kunlun": {
        "resourceCountName": "kunlunxin.com/xpu",
        "resourceVCountName": "kunlunxin.com/vxpu",
        "resourceVMemoryName": "kunlunxin.com/vxpu-memory",
    },
    "awsneuron": {
        "resourceCountName": "aws.amazon.com/neuron",
        "resourceCoreName": "aws.amazon.com/neuroncore",
    },
}
DIFFERENT: dict[Version, dict[str, dict[str, Any]]] = {
    "2.8": {
        "enflame": {
            "resourceNameGCU": "enflame.com/gcu",
            "resourceNameVGCU": "enflame.com/vgcu",
            "resourceNameVGCUPercentage": "enflame.com/vgcu-percentage",
        },
        "amd": {"resourceCountName": "amd.com/gpu"},
    },
    "2.10": {
        "enflame": {
            "resourceNameGCU": "enflame.com/gcu",
            "resourceNameDRSGCU": "enflame.com/drs-gcu",
            "resourceNameGCUMemory": "enflame.com/gcu-memory",
            "resourceNameGCUCore": "enflame.com/gcu-core",
        },
        "amd": {
            "resourceCountName": "amd.com/gpu",
            "resourceMemoryName": "amd.com/gpumem",
            "resourceCoreName": "amd.com/gpucores",
        },
        "vastai": {"resourceCountName": "vastaitech.com/va"},
        "biren": {"resourceCountName": "birentech.com/gpu"},
    },
}
ILUVATARS = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")

#: Chip, word, allocatable and capacity in MiB, aiCore, aiCPU (0: no key), templates (name, memory,
#: aiCore, aiCPU).
Template = tuple[str, int, int, int]
Chip = tuple[str, str, int, int, int, int, tuple[Template, ...]]
_FIFTHS: tuple[Template, ...] = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
ASCENDS: tuple[Chip, ...] = (
    ("910A", "Ascend910A", 32768, 32768, 30, 0,
     (("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0), ("vir08", 8738, 8, 0),
      ("vir16", 17476, 16, 0))),
    ("910B2", "Ascend910B2", 65536, 65536, 24, 6,
     (("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1),
      ("vir12_3c_32g", 32768, 12, 3))),
    ("910B3", "Ascend910B3", 65536, 65536, 20, 7, _FIFTHS),
    ("910B4-1", "Ascend910B4-1", 65536, 65536, 20, 7, _FIFTHS),
    ("910B4", "Ascend910B4", 32768, 32768, 20, 7,
     (("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3))),
    ("310P3", "Ascend310P", 21527, 24576, 8, 7,
     (("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4))),
)  # fmt: skip
#: 2.8 has these names for its templates of the same sizes.
NAMES_IN_2_8 = {"910B4-1": {"vir05_1c_16g": "vir05_1c_8g", "vir10_3c_32g": "vir10_3c_16g"}}
ASCEND_SINCE_2_10: Chip = ("Ascend910", "Ascend910C", 65536, 65536, 20, 7, _FIFTHS)


def sections(version: Version) -> dict[str, Any]:
    """Return the file's data."""
    newer = version == "2.10"
    nvidia = {**NVIDIA_NAMES, **NVIDIA_SETTINGS}
    if newer:
        nvidia |= NVIDIA_SETTINGS_SINCE_2_10
        nvidia["migProfileAllowlist"] = [
            {"models": list(models), "profiles": profiles.split()}
            for models, profiles in MIG + MIG_SINCE_2_10
        ]
    else:
        nvidia["knownMigGeometries"] = [
            {
                "models": list(models),
                "allowedGeometries": [[_geometry(name)] for name in profiles.split()],
            }
            for models, profiles in MIG
        ]
    chips: list[dict[str, Any]] = [_ascend(chip, newer=newer) for chip in ASCENDS]
    if newer:
        last = _ascend(ASCEND_SINCE_2_10, newer=True) | {"superPod": True}
        del last["memoryFactor"]
        chips.append(last)
    return {
        "nvidia": nvidia,
        **COMMON,
        **DIFFERENT[version],
        "iluvatars": [_iluvatar(word) for word in ILUVATARS],
        "vnpus": {"hamiVnpuCore": False, "configs": chips} if newer else chips,
    }


def text(version: Version) -> str:
    """Return the file."""
    return yaml.safe_dump(sections(version), sort_keys=False)


def _geometry(profile: str) -> dict[str, Any]:
    slices, _, memory = profile.removesuffix("gb").partition("g.")
    return {"name": profile, "core": 14, "memory": int(memory) * 1024, "count": 7 // int(slices)}


def _iluvatar(word: str) -> dict[str, Any]:
    return {
        "chipName": word,
        "commonWord": word,
        "resourceCountName": f"iluvatar.ai/{word}-vgpu",
        "resourceMemoryName": f"iluvatar.ai/{word}.vMem",
        "resourceCoreName": f"iluvatar.ai/{word}.vCore",
    }


def _ascend(chip: Chip, *, newer: bool) -> dict[str, Any]:
    name, word, allocatable, capacity, core, cpu, templates = chip
    older = {} if newer else NAMES_IN_2_8.get(name, {})
    made: dict[str, Any] = {
        "chipName": name,
        "commonWord": word,
        "resourceName": f"huawei.com/{word}",
        "resourceMemoryName": f"huawei.com/{word}-memory",
        "memoryAllocatable": allocatable,
        "memoryCapacity": capacity,
        "memoryFactor": 1,
        "aiCore": core,
        **({"aiCPU": cpu} if cpu else {}),
        "templates": [
            {
                "name": older.get(template, template),
                "memory": memory,
                "aiCore": core,
                **({"aiCPU": cpu} if cpu else {}),
            }
            for template, memory, core, cpu in templates
        ],
    }
    if newer:
        made["resourceCoreName"] = f"huawei.com/{word}-core"
        # As Helm writes HAMi's own values.
        made |= {"runtimeClassName": "", "overwriteEnv": False}
    return made
