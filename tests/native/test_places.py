"""Every copy of the library finds the agent's files, or gives no GPU.

What a tenant can do about it with root in the container, and what a pod's volumes could.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, SLACK
from tests.native.mounting import POLICY, STATE, USER, Mounted
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

LIMIT = 2 * GIB
NO_DEVICE = 100
#: With them a library that finds no policy takes the environment at its word.
FREE = {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "0"}
FOREIGN_ID = "f" * 32


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Mounted]:
    with Mounted(tmp_path, (LIMIT,)) as made:
        yield made


def is_held(box: Mounted, probe: Probe) -> None:
    """Check that a process gets its container's limit, and not more, by the driver's account."""
    probe.start()
    assert probe.info()[1] == LIMIT
    filled = probe.fill("alloc", 16 * MIB)
    assert filled.code == OUT_OF_MEMORY
    assert filled.bytes >= LIMIT - 2 * CONTEXT - SLACK
    assert 0 < box.peak() <= LIMIT
    assert [entry.pid for entry in box.state().processes]


def has_no_gpu(probe: Probe) -> None:
    assert probe.ask("init").code == NO_DEVICE


def test_the_library_finds_its_files(box: Mounted) -> None:
    is_held(box, box.inside(names=FREE))


def test_a_copy_in_another_folder_has_the_same_limit(box: Mounted) -> None:
    is_held(box, box.inside(preload=[box.copy()], names=FREE))


def test_a_copy_before_the_library_gains_nothing(box: Mounted) -> None:
    probe = box.inside(preload=[box.copy(), box.library], names=FREE).start()
    assert probe.info()[1] == LIMIT
    assert probe.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
    assert box.peak() <= LIMIT


def test_a_forged_policy_beside_a_copy_counts_for_nothing(box: Mounted) -> None:
    copy = box.copy()
    box.forged("policy")
    is_held(box, box.inside(preload=[copy], names=FREE))


def test_a_folder_without_a_policy_gives_no_gpu(tmp_path: Path) -> None:
    with Mounted(tmp_path, (LIMIT,), granted=False) as box:
        has_no_gpu(box.inside(names={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}))


def test_without_the_folder_the_environment_counts(box: Mounted) -> None:
    names = {"CUDA_DEVICE_MEMORY_LIMIT": "1g"}
    names["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(box.folder / "region")
    assert box.inside(mounted=False, names=names).start().info()[1] == GIB


def test_a_folder_that_is_no_mount_of_the_agent_counts_as_its_own(box: Mounted) -> None:
    """Some runtimes show no folder of the node in their list of mounts."""
    folder = box.forged("policy", LIMIT)
    steps = [f"mkdir -p {POLICY}", f"mount --bind {folder} {POLICY}"]
    assert box.inside(*steps, mounted=False, names=FREE).ask("init").ok
    has_no_gpu(box.inside(f"mkdir -p {POLICY}", mounted=False))


@pytest.mark.parametrize(
    "steps",
    [
        ["mv /run/hami /run/elsewhere"],
        ["mv /run/hami/share /run/elsewhere"],
        ["mv /run/hami /run/elsewhere", f"mkdir -p {POLICY}"],
        [
            *("mv /run/hami /run/elsewhere", "mkdir -p /run/hami/share"),
            *(f"cp -r {{forged}} {POLICY}", f"touch {STATE}"),
        ],
    ],
    ids=["moved", "share moved", "empty in its place", "forged in its place"],
)
def test_what_is_moved_is_found(box: Mounted, steps: list[str]) -> None:
    forged = box.forged("forged")
    is_held(box, box.inside(*(step.format(forged=forged) for step in steps), names=FREE))


@pytest.mark.skipif(bool(SANITIZER), reason="the sanitizers read /proc themselves")
def test_without_the_kernels_list_of_mounts_the_path_counts(box: Mounted) -> None:
    is_held(box, box.inside("mount -t tmpfs none /proc", names=FREE))


@pytest.mark.parametrize(
    "steps",
    [
        [f"mount --bind {{forged}} {POLICY}"],
        [f"mount --bind {{forged}}/policy {POLICY}/policy"],
        ["mount -t tmpfs none /run/hami", f"mkdir -p {POLICY}", f"cp {{forged}}/policy {POLICY}"],
        ["mkdir -p /run/x/policy", "mount --bind {named} /run/x/policy"],
        [
            *("mkdir -p /run/x/share/policy", "mount --bind {named} /run/x/share/policy"),
            *("mv /run/hami /run/y", "mkdir /run/hami", "mv /run/x/share /run/hami/share"),
        ],
        ["mkdir -p '/run/a b'", "mv /run/hami '/run/a b'"],
    ],
    ids=["over the folder", "over the file", "above", "a second", "in its place", "a space"],
)
def test_what_a_volume_could_hide_gives_no_gpu(box: Mounted, steps: list[str]) -> None:
    forged, named = box.forged("forged"), box.forged(FOREIGN_ID)
    has_no_gpu(box.inside(*(step.format(forged=forged, named=named) for step in steps), names=FREE))


def test_the_same_folder_may_be_mounted_twice(box: Mounted) -> None:
    is_held(box, box.inside("mkdir /run/x", "mount --rbind /run/hami /run/x", names=FREE))


def test_a_removed_folder_gives_no_gpu_to_new_processes(box: Mounted) -> None:
    """The agent removes the files of a pod that is gone from the API server."""
    has_no_gpu(box.inside(f"rm -r {box.tokens}", names=FREE))


def test_a_user_without_rights_on_a_read_only_root_has_its_share(box: Mounted) -> None:
    box.state_path.chmod(0o666)  # as the agent makes it
    box.node.folder.chmod(0o777)  # the stand-in driver's device
    for parent in box.node.folder.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    user = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    if os.geteuid() == 0:  # else the program has the rights of whoever runs this test
        user += [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    steps = [f"mount --bind {box.node.folder} {box.node.folder}", "mount -o remount,bind,ro /"]
    steps += ["! touch /read-only 2>/dev/null", "mount -o remount,ro /run"]
    probe = box.inside(*steps, user=user, names=FREE)
    is_held(box, probe)
    status = Path(f"/proc/{probe.pid}/status").read_text()
    assert f"Uid:\t{USER if os.geteuid() == 0 else os.geteuid()}\t" in status
    assert "CapBnd:\t0000000000000000" in status
