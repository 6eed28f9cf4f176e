"""State files: each on a small file system of its own, made again after a reboot, gone at last."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.agent.containers import state_files
from hami.agent.containers.state_files import StateFiles
from hami.node.layout import NodeLayout
from hami.wire import file_layout, state_file
from tests.unit.agent.preparing import ALLOCATION_ID, PlainStates, layout

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeLayout]:
    """Give a node whose /run is a file system of its own, and take all mounts away again."""
    made = layout(tmp_path)
    made.run_dir.mkdir()
    state_files.mount(made.run_dir, size=16 << 20, inodes=1000)
    try:
        yield made
    finally:
        for folder in (*made.states.glob("*"), made.run_dir):
            with contextlib.suppress(OSError):
                while folder.is_mount():
                    state_files.unmount(folder)


@needs_root
def test_a_state_file_has_a_file_system_of_its_own_size(node: NodeLayout) -> None:
    states = StateFiles(node)
    path = states.ensure(ALLOCATION_ID)
    assert path == node.state(ALLOCATION_ID)
    assert path.parent.is_mount()
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.parent.stat().st_mode & 0o777 == 0o755
    with path.open("r+b") as file:
        file.write(bytes(state_file.SIZE))  # all that the library needs
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(bytes(3 << 20))
    flags = os.statvfs(path).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV


@needs_root
def test_ensuring_again_changes_nothing(node: NodeLayout) -> None:
    states = StateFiles(node)
    path = states.ensure(ALLOCATION_ID)
    path.write_bytes(b"accounts")
    before = path.stat()
    StateFiles(node).ensure(ALLOCATION_ID)
    after = path.stat()
    assert (after.st_dev, after.st_ino, path.read_bytes()) == (
        before.st_dev,
        before.st_ino,
        b"accounts",
    )


@needs_root
def test_it_is_there_again_after_a_reboot(node: NodeLayout) -> None:
    states = StateFiles(node)
    states.ensure(ALLOCATION_ID)
    state_files.unmount(node.state_folder(ALLOCATION_ID))
    node.state_folder(ALLOCATION_ID).rmdir()
    node.states.rmdir()
    assert states.ensure(ALLOCATION_ID).is_file()
    assert node.state_folder(ALLOCATION_ID).is_mount()


@needs_root
@pytest.mark.parametrize("mounted", [False, True])
def test_a_crash_on_the_way_is_made_good(node: NodeLayout, mounted: bool) -> None:
    folder = node.state_folder(ALLOCATION_ID)
    folder.mkdir(parents=True)
    if mounted:
        state_files.mount(folder, size=2 << 20, inodes=8)
    StateFiles(node).ensure(ALLOCATION_ID)
    state_files.unmount(folder)
    assert not folder.is_mount()  # it was mounted once, not once more
    StateFiles(node).ensure(ALLOCATION_ID)
    StateFiles(node).remove(ALLOCATION_ID)
    assert not folder.exists()


@needs_root
def test_removing_takes_it_from_the_tree_but_not_from_those_who_have_it_open(
    node: NodeLayout,
) -> None:
    states = StateFiles(node)
    path = states.ensure(ALLOCATION_ID)
    with path.open("r+b") as file:
        states.remove(ALLOCATION_ID)
        assert not path.parent.exists()
        assert states.allocation_ids() == []
        file.write(b"still")
        file.flush()
        assert os.pread(file.fileno(), 5, 0) == b"still"
    states.remove(ALLOCATION_ID)


@needs_root
def test_mounts_that_lie_on_each_other_are_all_removed(node: NodeLayout) -> None:
    states = StateFiles(node)
    states.ensure(ALLOCATION_ID)
    state_files.mount(node.state_folder(ALLOCATION_ID), size=2 << 20, inodes=8)
    states.remove(ALLOCATION_ID)
    assert not node.state_folder(ALLOCATION_ID).exists()


def test_where_mounting_is_not_permitted_a_plain_folder_does_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(folder: Path, **how: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(folder))

    monkeypatch.setattr(state_files, "mount", refused)
    monkeypatch.setattr(state_files, "is_shown", lambda _folder: True)
    node = layout(tmp_path)
    states = StateFiles(node)
    for allocation_id in (ALLOCATION_ID, "f" * 32):
        assert states.ensure(allocation_id).stat().st_mode & 0o777 == 0o666
    assert len(caplog.records) == 1
    assert "CAP_SYS_ADMIN" in str(vars(caplog.records[0]))
    states.remove(ALLOCATION_ID)
    assert states.allocation_ids() == ["f" * 32]


def test_where_the_node_would_not_see_the_mount_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_files, "is_shown", lambda _folder: False)
    path = StateFiles(layout(tmp_path)).ensure(ALLOCATION_ID)
    assert path.is_file()
    assert not path.parent.is_mount()
    assert "Bidirectional" in str(vars(caplog.records[0]))


def test_a_failure_that_is_no_lack_of_permission_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, **how: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory", str(folder))

    monkeypatch.setattr(state_files, "mount", full)
    monkeypatch.setattr(state_files, "is_shown", lambda _folder: True)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        StateFiles(layout(tmp_path)).ensure(ALLOCATION_ID)


HOST = "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n21 20 0:20 / /run rw - tmpfs tmpfs rw\n"
POD = "30 1 0:90 / / rw,relatime - overlay overlay rw\n"


@pytest.mark.parametrize(
    ("mounts", "shown"),
    [
        (HOST, True),
        (HOST.replace(" - tmpfs", " shared:5 - tmpfs"), True),
        (POD + "31 30 0:20 /hami /run/hami rw - tmpfs tmpfs rw\n", False),
        (POD + "31 30 0:20 /hami /run/hami rw master:5 - tmpfs tmpfs rw\n", False),
        (POD + "31 30 0:20 /hami /run/hami rw shared:5 - tmpfs tmpfs rw\n", True),
        (POD + "31 30 0:20 /hami /run/ha\\040mi rw - tmpfs tmpfs rw\n", True),
    ],
)
def test_whether_the_node_sees_what_we_mount(mounts: str, shown: bool) -> None:
    assert state_files.is_shown(Path("/run/hami/state/x"), mounts) is shown


def test_of_mounts_on_one_place_the_upper_one_counts() -> None:
    lower = "31 30 0:20 /hami /run/hami rw shared:5 - tmpfs tmpfs rw\n"
    upper = "32 31 0:21 /other /run/hami rw - tmpfs tmpfs rw\n"
    assert state_files.is_shown(Path("/run/hami"), POD + lower)
    assert not state_files.is_shown(Path("/run/hami"), POD + lower + upper)


@pytest.mark.parametrize("slot", [0, 17, file_layout.MAX_PROCESSES - 1])
def test_a_living_process_keeps_its_container_busy(tmp_path: Path, slot: int) -> None:
    states = PlainStates(layout(tmp_path))
    path = states.ensure(ALLOCATION_ID)
    assert not states.busy(ALLOCATION_ID)
    with _holding(path, file_layout.LOCK_BASE + slot):
        assert states.busy(ALLOCATION_ID)
    assert not states.busy(ALLOCATION_ID)


@pytest.mark.parametrize(
    "byte", [0, file_layout.LOCK_BASE - 1, file_layout.LOCK_BASE + file_layout.MAX_PROCESSES]
)
def test_locks_elsewhere_say_nothing(tmp_path: Path, byte: int) -> None:
    states = PlainStates(layout(tmp_path))
    with _holding(states.ensure(ALLOCATION_ID), byte):
        assert not states.busy(ALLOCATION_ID)


def test_what_is_no_state_file_is_not_busy(tmp_path: Path) -> None:
    node = layout(tmp_path)
    states = PlainStates(node)
    assert not states.busy(ALLOCATION_ID)
    node.state_folder(ALLOCATION_ID).mkdir(parents=True)
    os.mkfifo(node.state(ALLOCATION_ID))
    assert not states.busy(ALLOCATION_ID)  # and it does not wait


_HOLD = """
import fcntl, os, struct, sys
handle = os.open(sys.argv[1], os.O_RDWR)
range = struct.pack("@hhqqi0q", fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
fcntl.fcntl(handle, fcntl.F_OFD_SETLK, range)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _holding(path: Path, byte: int) -> Iterator[None]:
    """Hold a lock as libvgpu does, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), str(byte)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.kill()  # the kernel drops the lock, however it ends


def test_the_lock_of_this_very_process_would_show_as_well(tmp_path: Path) -> None:
    """An OFD lock belongs to the open file, not to the process."""
    states = PlainStates(layout(tmp_path))
    with states.ensure(ALLOCATION_ID).open("r+b") as file:
        range_ = struct.pack("@hhqqi0q", fcntl.F_WRLCK, 0, file_layout.LOCK_BASE, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, range_)
        assert states.busy(ALLOCATION_ID)
