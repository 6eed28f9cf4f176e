"""Labels of what containers use, on a node whose kernel has SELinux."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hami.agent.containers.library import Library
from hami.node import files
from tests.unit.agent.preparing import ALLOCATION_ID, Desk

LABEL = b"system_u:object_r:container_file_t:s0\0"
_NAME = "security.selinux"


class Kernel:
    """The attribute of files as a kernel with SELinux keeps it: by inode, so a rename keeps it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.labels: dict[int, bytes] = {}
        self.writes = 0
        self.refuses = False
        self.mark = folder / "selinux"
        self.mark.mkdir()
        monkeypatch.setattr(files, "_SELINUX", self.mark)
        files._report_unlabelled.cache_clear()
        monkeypatch.setattr(os, "getxattr", self.get)
        monkeypatch.setattr(os, "setxattr", self.set)

    def get(self, path: Path, name: str, *, follow_symlinks: bool) -> bytes:
        assert (name, follow_symlinks) == (_NAME, False)
        return self.labels.get(path.lstat().st_ino, b"system_u:object_r:var_lib_t:s0\0")

    def set(self, path: Path, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert (name, follow_symlinks) == (_NAME, False)
        if self.refuses:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        self.writes += 1
        self.labels[path.lstat().st_ino] = value

    def of(self, path: Path) -> bytes | None:
        return self.labels.get(path.lstat().st_ino)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def _installed(root: Path) -> tuple[Desk, list[Path]]:
    """Prepare a container; return all that is mounted into it."""
    desk = Desk(root)
    built = root / "built.so"
    built.write_bytes(b"the library")
    library = Library(desk.layout, built).install()
    desk.preparer.prepare(desk.share(), cdi=True)
    policy, state = desk.layout.policy(ALLOCATION_ID), desk.layout.state(ALLOCATION_ID)
    return desk, [library, desk.layout.preload, policy.parent, policy, state]


def test_what_a_container_mounts_has_the_label_of_containers_files(
    kernel: Kernel, tmp_path: Path
) -> None:
    desk, mounted = _installed(tmp_path)
    assert {kernel.of(path) for path in mounted} == {LABEL}
    # Read by the runtime, not by containers.
    assert kernel.of(desk.layout.spec(ALLOCATION_ID)) is None


def test_a_policy_that_is_written_again_has_the_label(kernel: Kernel, tmp_path: Path) -> None:
    desk, _ = _installed(tmp_path)
    desk.preparer.prepare(desk.share(generation=2, priority=0), cdi=True)
    assert kernel.of(desk.layout.policy(ALLOCATION_ID)) == LABEL


def test_labels_that_are_right_are_not_written_again(kernel: Kernel, tmp_path: Path) -> None:
    desk, mounted = _installed(tmp_path)
    # An administrator's own level stays.
    own = b"system_u:object_r:container_file_t:s0:c1,c2\0"
    kernel.labels[mounted[0].lstat().st_ino] = own
    before = kernel.writes
    Library(desk.layout, tmp_path / "built.so").install()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert kernel.writes == before
    assert kernel.of(mounted[0]) == own


def test_a_label_that_cannot_be_set_is_reported_once_and_stops_no_container(
    kernel: Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.refuses = True
    _installed(tmp_path)
    (logged,) = [each for each in caplog.records if "SELinux" in each.message]
    assert "Permission denied" in logged.error  # type: ignore[attr-defined]


def test_without_selinux_nothing_is_labelled_and_nothing_is_logged(
    kernel: Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.mark.rmdir()
    _installed(tmp_path)
    assert not kernel.labels
    assert "SELinux" not in caplog.text
