"""The library lies on the node under the name of its content, and is never written over."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from hami.agent.containers import cdi_spec, library
from hami.agent.containers.library import Library, LibraryInstallError
from hami.agent.containers.prepare import Preparer
from hami.node import files
from tests.unit.agent.preparing import ALLOCATION_ID, Desk, layout


def source(folder: Path, content: bytes = b"the library") -> Path:
    path = folder / "source.so"
    path.write_bytes(content)
    return path


def test_it_is_installed_once_with_the_preload_file(tmp_path: Path) -> None:
    node = layout(tmp_path)
    ours = Library(node, source(tmp_path))
    path = ours.install()
    digest = hashlib.sha256(b"the library").hexdigest()
    assert path == node.libraries / digest / "libvgpu.so" == ours.path
    assert path.read_bytes() == b"the library"
    assert path.stat().st_mode & 0o777 == 0o755
    assert node.preload.read_text() == f"{node.inside}/libvgpu.so\n"
    before = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in (path, node.preload)]
    assert Library(node, source(tmp_path)).install() == path
    after = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in (path, node.preload)]
    assert after == before


def test_a_new_one_leaves_the_old_one_alone(tmp_path: Path) -> None:
    node = layout(tmp_path)
    old = Library(node, source(tmp_path)).install()
    new = Library(node, source(tmp_path, b"another")).install()
    assert (old.read_bytes(), new.read_bytes()) == (b"the library", b"another")


def test_a_damaged_one_is_set_aside_for_those_who_mount_it(tmp_path: Path) -> None:
    node = layout(tmp_path)
    path = Library(node, source(tmp_path)).install()
    path.write_bytes(b"half")
    with path.open("rb") as mounted:
        assert Library(node, source(tmp_path)).install() == path
        assert path.read_bytes() == b"the library"
        assert mounted.read() == b"half"
    aside = path.parent.with_name(f"{path.parent.name}.damaged-1")
    assert (aside / "libvgpu.so").read_bytes() == b"half"


def test_what_an_interrupted_installation_left_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = layout(tmp_path)

    def full(path: Path, content: bytes, **how: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(LibraryInstallError, match=r"No space left.*--hook-path"):
        Library(node, source(tmp_path)).install()
    monkeypatch.undo()
    assert Library(node, source(tmp_path)).install().read_bytes() == b"the library"
    assert [path.name for path in node.libraries.iterdir()] == list(library.installed(node))


def test_a_preload_file_that_says_something_else_is_made_good(tmp_path: Path) -> None:
    node = layout(tmp_path)
    Library(node, source(tmp_path)).install()
    node.preload.write_text("")
    Library(node, source(tmp_path)).install()
    assert node.preload.read_text() == f"{node.inside}/libvgpu.so\n"


def test_a_disk_that_does_not_keep_what_is_written_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_atomic

    def lossy(path: Path, content: bytes, **how: Any) -> None:
        write(path, content[:-1], **how)

    monkeypatch.setattr(files, "write_atomic", lossy)
    with pytest.raises(LibraryInstallError, match="not what was written"):
        Library(layout(tmp_path), source(tmp_path)).install()


def test_without_a_source_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LibraryInstallError, match=r"none\.so.*make native"):
        Library(layout(tmp_path), tmp_path / "none.so").install()


def test_pruning_spares_ours_and_those_in_use(tmp_path: Path) -> None:
    node = layout(tmp_path)
    installed = []
    for content in (b"unused", b"mounted", b"ours"):
        installed.append(Library(node, source(tmp_path, content)))
        installed[-1].install()
    unused, mounted, ours = installed
    (node.libraries / "notes").mkdir()
    assert ours.prune({mounted.digest}) == (unused.digest,)
    assert set(library.installed(node)) == {mounted.digest, ours.digest}
    assert (node.libraries / "notes").is_dir()


def test_specs_tell_which_libraries_are_mounted(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert cdi_spec.libraries_in_use(desk.layout) == frozenset()
    desk.preparer.prepare(desk.share(), cdi=True)
    exempt = "f" * 32
    desk.preparer.prepare(desk.share(allocation_id=exempt, exempt=True), cdi=True)
    assert cdi_spec.libraries_in_use(desk.layout) == frozenset({"ab" * 32})
    desk.layout.spec(ALLOCATION_ID).write_text("{")
    assert cdi_spec.libraries_in_use(desk.layout) is None  # nobody knows: nothing may go


def test_a_preparer_takes_the_library_that_was_installed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    ours = Library(desk.layout, source(tmp_path))
    preparer = Preparer(
        desk.layout,
        library=ours,
        states=desk.states,
        nvidia=desk.preparer._nvidia,
        devices=desk.devices.get,
        config=desk.preparer._config,
    )
    path = ours.install()
    hosts = [mount.host for mount in preparer.prepare(desk.share(), cdi=False).mounts]
    assert str(path) in hosts
    assert library.digest_of(desk.layout, str(path)) == ours.digest


@pytest.mark.parametrize("path", ["/etc/passwd", "libvgpu.so", "lib/short/libvgpu.so"])
def test_other_mounts_are_no_library(tmp_path: Path, path: str) -> None:
    node = layout(tmp_path)
    assert library.digest_of(node, str(node.inside / path)) == ""
