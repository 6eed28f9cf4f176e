"""Search for the driver's library below another root."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.node import nvml_library
from hami.node.nvml_library import NAME, LibraryNotFoundError


def put(path: Path, content: str = "no library") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "usr/lib",
        "lib64",
        "usr/local/nvidia/lib64",
        "home/kubernetes/bin/nvidia/lib64",
        ".",
    ],
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_usual_folders_are_found(tmp_path: Path, folder: str, machine: str) -> None:
    placed = put(tmp_path / folder / NAME)
    assert list(nvml_library.candidates(str(tmp_path), machine)) == [placed]


def test_the_own_architecture_comes_first(tmp_path: Path) -> None:
    other = put(tmp_path / "usr/lib/x86_64-linux-gnu" / NAME)
    own = put(tmp_path / "usr/lib/aarch64-linux-gnu" / NAME)
    assert list(nvml_library.candidates(str(tmp_path), "aarch64")) == [own, other]


def test_an_absolute_link_is_followed_below_the_root(tmp_path: Path) -> None:
    real = put(tmp_path / "usr/lib/nvidia/current" / f"{NAME}.580")
    alternatives = tmp_path / "etc/alternatives/nvidia-ml"
    alternatives.parent.mkdir(parents=True)
    alternatives.symlink_to(f"/usr/lib/nvidia/current/{NAME}.580")
    (tmp_path / "usr/lib64").mkdir()
    (tmp_path / "usr/lib64" / NAME).symlink_to("/etc/alternatives/nvidia-ml")
    assert list(nvml_library.candidates(str(tmp_path))) == [real]


def test_links_never_lead_out_of_the_root_nor_round_for_ever(tmp_path: Path) -> None:
    put(tmp_path / "outside" / NAME)
    root = tmp_path / "root"
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib").mkdir()
    (root / "usr/lib64" / NAME).symlink_to(f"../../../outside/{NAME}")
    (root / "usr/lib" / NAME).symlink_to(NAME)
    assert list(nvml_library.candidates(str(root))) == []


def test_a_folder_that_is_a_link_is_one_place(tmp_path: Path) -> None:
    placed = put(tmp_path / "usr/lib64" / NAME)
    (tmp_path / "lib64").symlink_to("usr/lib64")
    assert list(nvml_library.candidates(str(tmp_path))) == [placed]


def test_nothing_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LibraryNotFoundError, match=r"usr/lib64") as caught:
        nvml_library.load(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_no_library_is_named_with_the_reason(tmp_path: Path) -> None:
    placed = put(tmp_path / "usr/lib64" / NAME)
    with pytest.raises(LibraryNotFoundError, match="does not load") as caught:
        nvml_library.load(str(tmp_path))
    assert str(placed) in str(caught.value)
