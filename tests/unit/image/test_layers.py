"""The same folder gives the same layer, and a finished layer is used again."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
import time
from pathlib import Path

import pytest

from hami.image import layers
from hami.image.errors import ImageError
from hami.image.layers import Layer, Store
from tests.unit.image import handmade as made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").write_text("run")
    (root / "usr/bin/tool").chmod(0o4755)
    (root / "bin").symlink_to("usr/bin")
    (root / "zz").write_text("last")
    os.link(root / "usr/bin/tool", root / "usr/bin/same")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def members(layer: Layer) -> list[tarfile.TarInfo]:
    with tarfile.open(layer.path) as tar:
        return tar.getmembers()


def test_members_are_sorted_owned_by_root_and_carry_one_time(folder: Path) -> None:
    layer = layers.pack(folder, folder.with_name("out"), made_by="x", time=7)
    found = members(layer)
    names = [member.name for member in found]
    assert names == ["bin", "tmp", "usr", "usr/bin", "usr/bin/same", "usr/bin/tool", "zz"]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found} == {(0, 0, "", "", 7)}


def test_modes_and_links_are_kept(folder: Path) -> None:
    layer = layers.pack(folder, folder.with_name("out"), made_by="x")
    by_name = {member.name: member for member in members(layer)}
    assert by_name["usr/bin/same"].mode == 0o4755
    assert by_name["tmp"].mode == 0o1777
    assert (by_name["bin"].issym(), by_name["bin"].linkname) == (True, "usr/bin")
    assert (by_name["usr/bin/tool"].islnk(), by_name["usr/bin/tool"].linkname) == (
        True,
        "usr/bin/same",
    )


def test_neither_times_nor_order_of_creation_nor_place_change_a_byte(
    folder: Path, tmp_path: Path
) -> None:
    first = layers.pack(folder, tmp_path / "first", made_by="x")
    other = tmp_path / "elsewhere/folder"
    other.mkdir(parents=True)
    (other / "zz").write_text("last")
    (other / "tmp").mkdir()
    (other / "tmp").chmod(0o1777)
    (other / "usr/bin").mkdir(parents=True)
    (other / "usr/bin/same").write_text("run")
    (other / "usr/bin/same").chmod(0o4755)
    os.link(other / "usr/bin/same", other / "usr/bin/tool")
    (other / "bin").symlink_to("usr/bin")
    os.utime(other / "zz", (1, 1))
    second = layers.pack(other, tmp_path / "second", made_by="x")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert (first.digest, first.diff_id) == (second.digest, second.diff_id)


def test_digests_and_size_are_those_of_the_bytes(folder: Path, tmp_path: Path) -> None:
    layer = layers.pack(folder, tmp_path / "out", made_by="x")
    packed = layer.path.read_bytes()
    assert layer.size == len(packed)
    assert layer.digest == made.digest(packed)
    assert layer.diff_id == made.digest(gzip.decompress(packed))
    assert packed[4:8] == bytes(4), "the gzip carries no time"


def test_the_time_is_source_date_epoch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    layer = layers.pack(folder, tmp_path / "out", made_by="x")
    assert {member.mtime for member in members(layer)} == {1700000000}


@pytest.mark.parametrize("value", ["", "now", "-1", "1.5", "9" * 20, "²"])
def test_an_unusable_source_date_epoch_is_an_error(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(ImageError, match=r"SOURCE_DATE_EPOCH=.* is no number of seconds"):
        layers.epoch()


def test_a_name_that_would_delete_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / ".wh.tmp").write_text("")
    with pytest.raises(ImageError, match=r"'\.wh\.tmp': begins with '\.wh\.'"):
        layers.pack(folder, tmp_path / "out", made_by="x")


def test_pipes_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("a/s")
        with pytest.raises(ImageError, match="'s': is a device, pipe or socket"):
            layers.pack(tmp_path / "a", tmp_path / "out", made_by="x")


def test_long_and_foreign_names_survive(tmp_path: Path) -> None:
    deep = tmp_path / "a" / ("long" * 40) / ("längst" * 20)
    deep.mkdir(parents=True)
    (deep / ("n" * 200)).write_text("x")
    layer = layers.pack(tmp_path / "a", tmp_path / "out", made_by="x")
    layers.unpack(layer, tmp_path / "b")
    assert made.whole(tmp_path / "b") == made.whole(tmp_path / "a")


def test_a_layer_unpacks_to_what_was_packed(folder: Path, tmp_path: Path) -> None:
    layer = layers.pack(folder, tmp_path / "out", made_by="x")
    layers.unpack(layer, tmp_path / "back")
    assert made.whole(tmp_path / "back") == made.whole(folder)


class Counted:
    """Fills a folder, and counts how often it was asked."""

    def __init__(self, text: str = "x") -> None:
        self.times = 0
        self._text = text

    def __call__(self, root: Path) -> None:
        self.times += 1
        (root / "file").write_text(self._text)


def test_a_layer_of_the_same_inputs_is_made_once(tmp_path: Path) -> None:
    write = Counted()
    first = Store(tmp_path).layer("a", {"inputs": [1, 2]}, write)
    assert Store(tmp_path).layer("a", {"inputs": [1, 2]}, write) == first
    assert write.times == 1
    Store(tmp_path).layer("a", {"inputs": [1, 3]}, write)
    Store(tmp_path).layer("b", {"inputs": [1, 2]}, write)
    assert write.times == 3


def test_another_time_or_another_builder_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Counted()
    Store(tmp_path).layer("a", 1, write)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    Store(tmp_path).layer("a", 1, write)
    monkeypatch.setattr(layers, "_own_code", lambda: "changed")
    Store(tmp_path).layer("a", 1, write)
    assert write.times == 3


@pytest.mark.parametrize(
    "damage", ["cut", "flip", "deleted", "facts", "facts cut", "facts deleted"]
)
def test_a_damaged_layer_is_made_again(tmp_path: Path, damage: str) -> None:
    write = Counted()
    first = Store(tmp_path).layer("a", 1, write)
    good = first.path.read_bytes()
    facts = first.path.with_name(first.path.name.removesuffix(".tar.gz"))
    text = facts.read_text()
    if damage == "cut":
        first.path.write_bytes(good[:-1])
    elif damage == "flip":
        first.path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    elif damage == "deleted":
        first.path.unlink()
    elif damage == "facts":
        facts.write_text(text.replace(first.diff_id, made.digest(b"other")))
    elif damage == "facts cut":
        facts.write_text(text[:30])
    else:
        facts.unlink()
    assert Store(tmp_path).layer("a", 1, write) == first
    assert write.times == 2
    assert first.path.read_bytes() == good


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(root: Path) -> None:
        (root / "half").write_text("")
        raise ImageError("a", "b")

    with pytest.raises(ImageError):
        Store(tmp_path).layer("a", 1, fail)
    assert list(tmp_path.iterdir()) == []


def test_layers_without_use_for_two_weeks_are_deleted_and_used_ones_stay(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, used = store.layer("old", 1, Counted()), store.layer("used", 1, Counted())
    (tmp_path / "making-by-a-killed-process").mkdir()
    long_ago = time.time() - 15 * 24 * 3600
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    store.layer("used", 1, Counted())
    store.layer("new", 1, Counted())
    assert not old.path.exists()
    assert used.path.exists()
    assert len(list(tmp_path.iterdir())) == 4
    again = Counted()
    store.layer("used", 1, again)
    assert again.times == 0


def test_an_empty_folder_is_a_layer(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    layer = layers.pack(tmp_path / "empty", tmp_path / "out", made_by="x")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.path.read_bytes()))) as tar:
        assert tar.getmembers() == []
