"""Owners of processes, from the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hami.monitor import processes
from hami.monitor.containers import Container, Containers, Key
from hami.monitor.processes import NO_OWNER, Processes, Trace
from hami.node import proc
from hami.node.proc import CgroupPod
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB

UID = "0d3c1f8e-6c3a-4a62-9d4c-0123456789ab"
UNDERLINED = UID.replace("-", "_")
ID = "5f2c" * 16
HASH = "ab" * 16  # a static pod's


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{ID}\n", CgroupPod(UID, ID)),
        (f"0::/kubepods/pod{UID}/{ID}\n", CgroupPod(UID, ID)),
        (
            f"0::/kubepods.slice/x.slice/kubepods-x-pod{UNDERLINED}.slice/cri-containerd-{ID}.scope",
            CgroupPod(UID, ID),
        ),
        (
            f"0::/kubepods.slice/kubepods-pod{UNDERLINED}.slice/crio-{ID}.scope/container\n",
            CgroupPod(UID, ID),
        ),
        (
            f"0::/../../kubepods-pod{UNDERLINED}.slice/cri-containerd-{ID}.scope\n",
            CgroupPod(UID, ID),
        ),
        (
            f"0::/system.slice/kubepods-pod{UNDERLINED}.slice:cri-containerd:{ID}\n",
            CgroupPod(UID, ID),
        ),
        (
            f"12:devices:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}\n",
            CgroupPod(UID, ID),
        ),
        (f"0::/kubepods/burstable/pod{HASH}/{ID}\n", CgroupPod(HASH, ID)),
        (f"0::/kubepods/burstable/pod{UID}\n", CgroupPod(UID, "")),
    ],
)
def test_the_control_group_names_pod_and_container(cgroup: str, pod: CgroupPod) -> None:
    assert proc.cgroup_pods(cgroup.encode()) == (pod,)


@pytest.mark.parametrize(
    "cgroup", ["", "0::/\n", "0::/user.slice/podman-123.scope\n", "0::/pod1\n"]
)
def test_processes_of_the_host_are_in_no_pod(cgroup: str) -> None:
    assert proc.cgroup_pods(cgroup.encode()) == ()


def test_the_outer_pod_comes_first_where_a_cluster_runs_in_one() -> None:
    inner = nodes.uid_of("inner")
    cgroup = f"0::/kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{inner}/{ID}\n"
    assert [pod.uid for pod in proc.cgroup_pods(cgroup.encode())] == [UID, inner]


def process_folder(folder: Path, *, pid: int = 41, inner: int = 7, ending: bool = False) -> Path:
    """Write the files in /proc of a process in a pid namespace and a container of ours."""
    made = folder / str(pid)
    made.mkdir(parents=True, exist_ok=True)
    fields = " ".join(["S", "1", *"0" * 17, "555", "0"])
    (made / "stat").write_text(f"{pid} (a) b) {fields}\n")
    memory = "" if ending else "VmSize:\t  100 kB\n"
    (made / "status").write_text(f"Name:\ta\nPid:\t{pid}\nNSpid:\t{pid}\t{inner}\n{memory}")
    root = f"/usr/local/vgpu/tokens/{nodes.allocation_of('a')}"
    (made / "mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"36 22 8:1 {root} /run/hami/share/policy ro - ext4 /dev/sda rw\n"
        f"37 22 8:1 /tmp/x /mnt/vgpu/tokens/{'0' * 32} ro - ext4 /dev/sda rw\n"
    )
    (made / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    return folder


def test_a_process_in_a_container(tmp_path: Path) -> None:
    trace = Processes(process_folder(tmp_path)).trace(41)
    assert trace == Trace(
        pid=41,
        start=555,
        inner_pid=7,
        allocation_ids=(
            nodes.allocation_of("a"),
        ),  # the root of a mount counts, not where it is mounted
        pods=(CgroupPod(UID, ID),),
    )


def test_a_process_that_ends_has_no_trace(tmp_path: Path) -> None:
    processes = Processes(process_folder(tmp_path))
    assert processes.trace(41) is not None
    process_folder(tmp_path, ending=True)
    assert processes.trace(41) is None
    assert processes.trace(42) is None


@pytest.mark.parametrize("name", ["stat", "status", "mountinfo", "cgroup"])
def test_what_cannot_be_read_is_no_process(tmp_path: Path, name: str) -> None:
    folder = process_folder(tmp_path)
    (folder / "41" / name).unlink()
    assert Processes(folder).trace(41) is None
    (folder / "41" / "stat").write_text("41 (x) nonsense")
    assert Processes(folder).trace(41) is None


def test_real_processes_are_read() -> None:
    processes = Processes(Path("/proc"))
    own = processes.trace(os.getpid())
    assert own is not None
    assert own.pid == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        trace = processes.trace(child.pid)
        assert trace is not None
        assert trace.start >= own.start
        child.communicate(b"\n")
    assert processes.trace(child.pid) is None


def container(name: str, uid: str, *allocation_ids: str) -> Container:
    return Container(
        key=Key(uid, name),
        namespace="team",
        pod="a",
        shares=(nodes.share(CARD, GIB),),
        allocation_ids=allocation_ids,
        limited=True,
    )


def trace(*pods: CgroupPod, ids: tuple[str, ...] = ()) -> Trace:
    return Trace(pid=1, start=1, inner_pid=1, allocation_ids=ids, pods=pods)


def test_an_allocation_id_names_the_container() -> None:
    ours = container("main", UID, "t1")
    beside = container("side", UID, "t2")
    known = Containers([ours, beside])
    for found in (trace(CgroupPod(UID, ""), ids=("t1",)), trace(ids=("other", "t1"))):
        assert processes.owner_of(found, known, nodes.pods()).container == ours


def test_an_allocation_id_of_another_pod_is_not_believed() -> None:
    """A process may mount what it likes over itself; it cannot leave its control group."""
    theirs, mine = container("main", nodes.uid_of("other"), "t1"), container("main", UID, "t2")
    owner = processes.owner_of(
        trace(CgroupPod(UID, ID), ids=("t1",)), Containers([theirs, mine]), nodes.pods()
    )
    assert owner.container == mine


def test_the_runtimes_id_names_the_container_where_no_allocation_is_mounted() -> None:
    uid = nodes.uid_of("a")
    known = Containers([container("main", uid, "t1"), container("side", uid, "t2")])
    pods = nodes.pods(nodes.pod("a", containers=("main", "side"), ids={"side": ID}))
    owner = processes.owner_of(trace(CgroupPod(uid, ID)), known, pods)
    assert owner.key == Key(uid, "side")
    assert owner.container is not None
    # Without the API server it is not known which of the two it is.
    owner = processes.owner_of(trace(CgroupPod(uid, ID)), known, nodes.pods())
    assert (owner.key, owner.pod, owner.container) == (Key(uid, ""), "a", None)


def test_other_pods_and_the_host() -> None:
    uid = nodes.uid_of("b")
    pods = nodes.pods(nodes.pod("b", containers=("x",), ids={"x": ID}))
    owner = processes.owner_of(trace(CgroupPod(uid, ID)), Containers([]), pods)
    assert (owner.namespace, owner.pod, owner.key.container) == ("team", "b", "x")
    assert owner.container is None
    assert processes.owner_of(trace(), Containers([]), pods) == NO_OWNER


def test_of_nested_clusters_our_own_pod_counts() -> None:
    ours = container("main", UID, "t1")
    found = trace(CgroupPod(nodes.uid_of("outer"), ID), CgroupPod(UID, ID))
    assert processes.owner_of(found, Containers([ours]), nodes.pods()).container == ours
