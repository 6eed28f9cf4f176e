"""Sources of limits: the agent's policy file, HAMi's environment, none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SLACK, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

NO_DEVICE = 100
NVML_NOT_LOADED = 9


@pytest.mark.parametrize("trouble", ["missing", "empty", "cut", "changed"])
def test_without_a_valid_policy_there_is_no_gpu(tmp_path: Path, trouble: str) -> None:
    with Container(tmp_path, (GIB,), names={"CUDA_DEVICE_MEMORY_LIMIT": "8g"}) as box:
        policy = box.policy_path.read_bytes()
        if trouble == "missing":
            box.policy_path.unlink()
        else:
            changed = policy[:20] + bytes([policy[20] ^ 1]) + policy[21:]
            box.policy_path.write_bytes(
                {"empty": b"", "cut": policy[:-1], "changed": changed}[trouble]
            )
        probe = box.probe()
        assert probe.ask("init").code == NO_DEVICE
        assert probe.ask("nvml-init").code == NVML_NOT_LOADED
        assert probe.ask("take alloc a 1024").code != 0
        assert box.physical() == 0
        box.resize(GIB)  # the grant comes: whoever starts now has it
        box.started().do("take alloc a 1024")


def test_the_policy_beats_the_environment(tmp_path: Path) -> None:
    names = {"CUDA_DEVICE_MEMORY_LIMIT": "64g", "CUDA_DEVICE_MEMORY_LIMIT_0": "0"}
    with Container(tmp_path, (GIB,), names=names) as box:
        probe = box.started()
        assert probe.info() == (GIB - CONTEXT, GIB)
        assert probe.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        assert box.peak() <= GIB


@pytest.mark.parametrize("context_bytes", [0, CONTEXT, 4 * CONTEXT // 3])
def test_cost_of_a_context_need_not_be_known(tmp_path: Path, context_bytes: int) -> None:
    with Container(tmp_path, (2 * GIB,), context_bytes=context_bytes) as box:
        probe = box.started()
        assert box.used() == CONTEXT
        assert probe.fill("alloc", 16 * MIB).bytes >= 2 * GIB - CONTEXT - SLACK
        probe.do("drop")
        probe.fill("context", 0)
        assert box.peak() <= 2 * GIB


def test_hamis_environment_names_limit(tmp_path: Path) -> None:
    names = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1024m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache"),
    }
    with Container(tmp_path, None, state="none", names=names) as box:
        first, second = box.started(), box.probe()
        assert first.info() == (GIB - CONTEXT, GIB)
        assert first.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        second.do("init")
        second.refused("device 0")
        assert GIB - SLACK <= box.physical() <= GIB
        assert box.peak() <= GIB


def test_without_limits_the_library_is_not_there(tmp_path: Path) -> None:
    with Container(tmp_path, None, state="none") as box:
        before = sorted(path.name for path in box.folder.iterdir())
        probe = box.started()
        for name in (
            "cuMemAlloc_v2",
            "cuLaunchKernel",
            "cuMemGetInfo_v2",
            "nvmlDeviceGetMemoryInfo",
        ):
            assert probe.do(f"where {name}")[0] != "libvgpu.so"
        memory = box.node.cards[0].memory
        assert probe.number("total 0") == memory
        probe.do(f"take alloc a {64 * GIB}")
        assert sorted(path.name for path in box.folder.iterdir()) == before


@pytest.mark.parametrize("arguments", ["--lookup dlsym", "--lookup procaddress"])
def test_launches_are_the_drivers_own(tmp_path: Path, arguments: str) -> None:
    with Container(tmp_path, (GIB,)) as box:
        probe = box.started(*arguments.split())
        for name in ("cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2"):
            base = name.removesuffix("_v2") if "procaddress" in arguments else name
            assert probe.do(f"where {base}") == ["libcuda.so.1", name]
        base = "cuMemAlloc" if "procaddress" in arguments else "cuMemAlloc_v2"
        assert probe.do(f"where {base}") == ["libvgpu.so", "cuMemAlloc_v2"]


def test_limit_grows_while_running(tmp_path: Path) -> None:
    with Container(tmp_path, (GIB,)) as box:
        probe = box.started()
        probe.refused(f"take alloc large {GIB}")
        box.resize(2 * GIB)
        probe.do(f"take alloc large {GIB}")
        assert box.peak() <= 2 * GIB
        assert box.state().policy_generation == 2
        assert probe.info() == (2 * GIB - CONTEXT - GIB, 2 * GIB)


def test_limit_shrinks_while_running(tmp_path: Path) -> None:
    with Container(tmp_path, (2 * GIB,)) as box:
        probe = box.started()
        probe.do(f"take alloc large {GIB}")
        box.resize(GIB)
        # Nothing is taken away, but nothing more is given until enough came back.
        probe.refused(f"take alloc more {GIB}")
        probe.refused(f"take alloc more {2 * MIB}")
        probe.refused("take alloc more 1024")
        assert probe.info() == (0, GIB)
        probe.do("free large")
        probe.do(f"take alloc more {256 * MIB}")
        probe.refused(f"take alloc large {512 * MIB}")
        assert box.physical() <= GIB


def test_a_bad_or_older_policy_changes_nothing(tmp_path: Path) -> None:
    with Container(tmp_path, (GIB,)) as box:
        probe = box.started()
        old = box.policy_path.read_bytes()
        for content in (b"nonsense", old[:-4] + b"\0\0\0\0"):
            fresh = box.folder / "policy" / "fresh"
            fresh.write_bytes(content)
            fresh.replace(box.policy_path)
            probe.refused(f"take alloc large {GIB}")
        box.policy_path.unlink()
        probe.refused(f"take alloc large {GIB}")
        probe.do(f"take alloc small {256 * MIB}")
        box.resize(2 * GIB)
        probe.do(f"take alloc large {GIB}")
        fresh.write_bytes(old)
        fresh.replace(box.policy_path)
        probe.do(f"take alloc more {64 * MIB}")
