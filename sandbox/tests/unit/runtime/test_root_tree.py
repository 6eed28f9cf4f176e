"""The tree of a container's root: what is opened, followed, refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.runtime.root_tree import Bound, Folder, Link, Machine, Node, Shadow, Tree


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "lib/inner").mkdir(parents=True)
    (tmp_path / "lib/file").touch()
    (tmp_path / "lib/link").symlink_to("file")
    return tmp_path


def found(tree: Tree, path: str) -> Node | None:
    node: Node | None = tree.root
    for name in path.strip("/").split("/"):
        assert isinstance(node, Folder)
        node = node.entries.get(name)
    return node


def test_only_the_folders_on_the_way_are_opened(machine: Path) -> None:
    tree = Tree()
    tree.lay("/usr", Machine(str(machine)))
    wanted = Bound(str(machine))
    tree.lay("/usr/lib/new/deep", wanted)
    assert found(tree, "/usr/lib/new/deep") is wanted
    opened = found(tree, "/usr/lib")
    assert isinstance(opened, Folder)
    assert sorted(opened.entries) == ["file", "inner", "link", "new"]
    inner, file, link = (opened.entries[name] for name in ("inner", "file", "link"))
    assert isinstance(inner, Machine)
    assert (inner.path, inner.base) == (str(machine / "lib/inner"), str(machine))
    assert isinstance(file, Shadow)
    assert file.path == str(machine / "lib/file")
    assert isinstance(link, Link)
    assert link.text == "file"
    assert tree.opened == {str(machine)}


def test_links_are_followed_in_the_containers_root(machine: Path) -> None:
    tree = Tree()
    tree.lay("/usr", Machine(str(machine)))
    tree.lay("/lib", Link("usr/lib"))
    tree.lay("/var/run", Link("/run"))
    one, two, three = (Bound(str(machine)) for _ in range(3))
    tree.lay("/lib/here", one)
    tree.lay("/var/run/x", two)
    tree.lay("/lib/link", three)  # what a link names is what is mounted at
    assert found(tree, "/usr/lib/here") is one
    assert found(tree, "/run/x") is two
    assert found(tree, "/usr/lib/file") is three


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("usr", "not absolute"),
        ("/", "root itself"),
        ("/a/..", "root itself"),
        ("/loop/x", "[Tt]oo many levels"),
        ("/usr/lib/file/x", "[Nn]ot a directory"),
    ],
)
def test_what_cannot_be_is_refused(machine: Path, path: str, why: str) -> None:
    tree = Tree()
    tree.lay("/usr", Machine(str(machine)))
    tree.lay("/loop", Link("/loop2"))
    tree.lay("/loop2", Link("/loop"))
    with pytest.raises(OSError, match=why):
        tree.lay(path, Bound(str(machine)))


def test_what_was_asked_for_is_opened_only_where_nothing_can_be_mounted(machine: Path) -> None:
    outer, inner = Bound(str(machine)), Bound(str(machine / "lib"))
    mounted, linked = Tree(), Tree(mounting=False)
    for tree in (mounted, linked):
        tree.lay("/data", outer)
        tree.lay("/data/lib/new", inner)
    assert found(mounted, "/data") is outer
    assert mounted.nested == [("/data/lib/new", inner)]
    assert found(linked, "/data/lib/new") is inner
    assert isinstance(found(linked, "/data/lib/inner"), Machine)


def test_it_is_known_what_of_the_machine_is_seen(machine: Path) -> None:
    tree = Tree()
    tree.lay("/usr", Machine(str(machine)))
    tree.lay("/lib", Link("usr/lib"))
    tree.lay("/usr/lib/mine", Bound(str(machine)))
    tree.lay("/own/here", Folder())
    for path in ("/usr/lib/file", "/lib/inner/deep", "/lib/link"):
        assert tree.shows(path), path
    for path in ("/usr/lib/mine", "/own/here/x", "/none", "/lib/none"):
        assert not tree.shows(path), path


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=12))
def test_whatever_is_laid_last_is_what_is_found(paths: list[list[str]]) -> None:
    tree = Tree()
    for names in paths:
        path = "/" + "/".join(names)
        wanted = Folder()
        tree.lay(path, wanted)
        assert found(tree, path) is wanted
