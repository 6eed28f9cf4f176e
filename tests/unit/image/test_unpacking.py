"""Files of a package land in the root as inside it, and never outside."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hami.image import deb, debian, tree
from hami.image.errors import ImageError
from tests.unit.image import handmade as made


def unpacked(root: Path, *entries: tuple[made.Entry, bytes]) -> dict[str, str]:
    archive = root.with_name("x_1_all.deb")
    archive.write_bytes(made.deb(*entries))
    root.mkdir(exist_ok=True)
    deb.extract(archive, root, skip=lambda _: False)
    return made.whole(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_files_folders_and_links_are_written_with_their_modes(root: Path) -> None:
    seen = unpacked(
        root,
        made.folder("./"),
        made.folder("./opt/", 0o750),
        made.file("./opt/tool", b"run", 0o755),
        made.hard_link("./opt/same", "./opt/tool"),
        made.link("./opt/there", "/etc/elsewhere"),
        made.file("./deep/without/folder", b"x"),
    )
    assert seen == {
        "deep": "755 folder",
        "deep/without": "755 folder",
        "deep/without/folder": "644 x",
        "opt": "750 folder",
        "opt/same": "755 run",
        "opt/there": "-> /etc/elsewhere",
        "opt/tool": "755 run",
    }
    assert (root / "opt/same").samefile(root / "opt/tool")


@pytest.mark.parametrize(
    ("name", "pack"),
    [("data.tar", bytes), ("data.tar.gz", gzip.compress), ("data.tar.bz2", bz2.compress)],
)
def test_older_ways_to_pack_are_read_too(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    archive = tmp_path / "x.deb"
    archive.write_bytes(made.deb(made.file("./a", b"1"), data=name, pack=pack))
    deb.extract(archive, tmp_path / "root", skip=lambda _: False)
    assert (tmp_path / "root/a").read_text() == "1"


def test_a_zstd_package_is_read_by_dpkg_deb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files.tar").write_bytes(made.tar(made.file("./a", b"1")))
    tool = tmp_path / "bin/dpkg-deb"
    tool.parent.mkdir()
    tool.write_bytes(made.script(f"exec cat {made.quoted(str(tmp_path / 'files.tar'))}"))
    tool.chmod(0o755)
    archive = tmp_path / "x.deb"
    archive.write_bytes(made.ar(("debian-binary", b"2.0\n"), ("data.tar.zst", b"(zstd)")))
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    deb.extract(archive, tmp_path / "root", skip=lambda _: False)
    assert (tmp_path / "root/a").read_text() == "1"

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match=r"packed with zstd.*install dpkg"):
        deb.extract(archive, tmp_path / "root", skip=lambda _: False)


@pytest.mark.parametrize("name", ["/etc/passwd", "../out", "./a/../../out", "a/.."])
def test_a_name_that_leaves_the_root_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ImageError, match="absolute or climbs out"):
        unpacked(root, made.file(name, b"evil"))
    assert made.whole(root) == {}


@pytest.mark.parametrize("target", ["/", "..", "../..", "/../..", "../../../../../.."])
def test_a_link_cannot_lead_a_later_file_out_of_the_root(root: Path, target: str) -> None:
    unpacked(root, made.link("./way", target), made.file("./way/caught", b"x"))
    assert (root / "caught").read_text() == "x"
    assert not (root.parent / "caught").exists()


def test_a_link_to_an_absolute_path_is_the_roots_own(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    unpacked(root, made.link("./way", str(outside)), made.file("./way/file", b"x"))
    assert list(outside.iterdir()) == []
    assert (root / str(outside).lstrip("/") / "file").read_text() == "x"


def test_a_file_replaces_a_link_instead_of_writing_through_it(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    unpacked(root, made.link("./a", str(victim)), made.file("./a", b"theirs"))
    assert victim.read_text() == "mine"
    assert (root / "a").read_text() == "theirs"


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside"])
def test_a_hard_link_reaches_nothing_outside_the_root(root: Path, target: str) -> None:
    with pytest.raises(ImageError, match="absolute or climbs out"):
        unpacked(root, made.hard_link("./a", target))


def test_a_hard_link_through_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    way = made.link("./way", str(tmp_path / "secret"))
    with pytest.raises(ImageError, match="is no file extracted before"):
        unpacked(root, way, made.hard_link("./a", "./way"))


def test_links_that_go_in_a_circle_are_refused(root: Path) -> None:
    circle = made.link("./a", "b"), made.link("./b", "a")
    with pytest.raises(ImageError, match="more than 40 links"):
        unpacked(root, *circle, made.file("./a/file"))


def test_a_device_is_refused(root: Path) -> None:
    with pytest.raises(ImageError, match="mem': is a device"):
        unpacked(root, made.device("./dev/mem"))


def test_a_folder_is_not_replaced_by_a_file(root: Path) -> None:
    with pytest.raises(ImageError, match="would replace a folder"):
        unpacked(root, made.folder("./a"), made.file("./a"))


def test_a_folder_that_is_a_link_to_a_folder_stays_a_link(root: Path) -> None:
    root.mkdir()
    debian.merge_usr(root)
    unpacked(root, made.folder("./bin"), made.file("./bin/sh", b"sh", 0o755))
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "usr/bin/sh").read_text() == "sh"


def test_a_set_id_bit_stays_only_for_root(root: Path) -> None:
    seen = unpacked(
        root,
        made.file("./su", b"", 0o4755),
        made.file("./mail", b"", 0o2755, gid=8),
        made.file("./man", b"", 0o6755, uid=6, gid=12),
    )
    assert seen == {"su": "4755 ", "mail": "755 ", "man": "755 "}


def test_a_read_only_folder_is_filled_first(root: Path) -> None:
    seen = unpacked(root, made.folder("./a", 0o555), made.file("./a/b", b"x"))
    assert seen == {"a": "555 folder", "a/b": "644 x"}
    (root / "a").chmod(0o755)


def test_the_umask_changes_nothing(root: Path) -> None:
    before = os.umask(0o077)
    try:
        seen = unpacked(root, made.folder("./a"), made.file("./a/b"), made.file("./c/d"))
    finally:
        os.umask(before)
    assert set(seen.values()) == {"755 folder", "644 "}


def test_what_is_skipped_is_not_written(root: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.deb"
    archive.write_bytes(made.deb(made.file("./a/keep"), made.file("./b/skip")))
    deb.extract(archive, root, skip=lambda name: name.startswith("b/"))
    assert set(made.whole(root)) == {"a", "a/keep"}


GOOD = made.deb(made.file("./a", b"x" * 5000))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        GOOD[:100],
        GOOD[:-200],
        GOOD[:8] + b"\0" * 60 + GOOD[68:],
        GOOD.replace(b"`\n", b"??"),
        GOOD[:-40] + bytes(40),
        made.ar(("data.tar.xz", b"not xz")),
        made.ar(("data.tar.xz", b"")),
    ],
)
def test_a_damaged_package_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "x_1_all.deb"
    archive.write_bytes(content)
    with pytest.raises(ImageError, match=r"x_1_all\.deb.*(delete it from the cache|has no data)"):
        deb.extract(archive, tmp_path / "root", skip=lambda _: False)


def test_a_member_of_odd_length_is_followed_by_a_filling_byte(tmp_path: Path) -> None:
    archive = tmp_path / "x.deb"
    archive.write_bytes(
        made.ar(("debian-binary", b"2.0"), ("data.tar", made.tar(made.file("./a", b"1"))))
    )
    deb.extract(archive, tmp_path / "root", skip=lambda _: False)
    assert (tmp_path / "root/a").read_text() == "1"


def test_a_package_without_files_names_what_it_has(tmp_path: Path) -> None:
    archive = tmp_path / "x.deb"
    archive.write_bytes(made.ar(("debian-binary", b"2.0\n"), ("other", b"")))
    with pytest.raises(ImageError, match="only debian-binary, other"):
        deb.extract(archive, tmp_path / "root", skip=lambda _: False)


def test_a_path_is_found_as_a_process_inside_would(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("/usr/bin")
    (tmp_path / "usr/bin/sh").symlink_to("../../usr/bin/dash")
    assert tree.inside(tmp_path, "bin/sh") == tmp_path / "usr/bin/sh"
    assert tree.inside(tmp_path, "/bin/sh", follow=True) == tmp_path / "usr/bin/dash"
    assert tree.inside(tmp_path, "bin/..", follow=True) == tmp_path / "usr"
