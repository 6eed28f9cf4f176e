"""Without namespaces, words that name mounted paths name the links instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.runtime import bundles, programs
from hami_sandbox.runtime.bundles import Paths

ROOT = "/sandbox/c/root"
MOUNTS = [("/gpus", "/run/fakegpu", 0), ("/x/libcuda.so.1", "/usr/lib/x/libcuda.so.1", 1)]


@pytest.mark.parametrize(
    ("word", "mapped"),
    [
        ("/run/fakegpu", f"{ROOT}/run/fakegpu"),
        ("/run/fakegpu/", f"{ROOT}/run/fakegpu"),
        ("/run//fakegpu/state", f"{ROOT}/run/fakegpu/state"),
        ("/run/../run/fakegpu/a", f"{ROOT}/run/fakegpu/a"),
        ("/run/fakegpus", "/run/fakegpus"),
        ("/run", "/run"),
        ("/", "/"),
        ("run/fakegpu", "run/fakegpu"),
        ("--dir=/run/fakegpu", "--dir=/run/fakegpu"),
        ("", ""),
    ],
)
def test_a_word_is_mapped_if_it_is_a_mounted_path(word: str, mapped: str) -> None:
    assert Paths(ROOT, MOUNTS).argv([word]) == [mapped]


def test_variables_are_mapped_part_by_part_and_the_linker_is_told() -> None:
    env = Paths(ROOT, MOUNTS).env(
        {"FAKEGPU_DIR": "/run/fakegpu", "LIST": "/bin:/run/fakegpu:x", "LD_LIBRARY_PATH": "/own"}
    )
    assert env == {
        "FAKEGPU_DIR": f"{ROOT}/run/fakegpu",
        "LIST": f"/bin:{ROOT}/run/fakegpu:x",
        "LD_LIBRARY_PATH": f"{ROOT}/usr/lib/x:/own",
    }


def test_what_is_to_be_preloaded_is_preloaded_by_name(tmp_path: Path) -> None:
    (tmp_path / "preload").write_text("/hook/one.so\n/lib/other.so\n")
    mounts = [
        (str(tmp_path / "preload"), "/etc/ld.so.preload", 1),
        ("/lib/one.so", "/hook/one.so", 1),
    ]
    env = Paths(ROOT, mounts).env({"LD_PRELOAD": "mine.so"})
    assert env["LD_PRELOAD"] == f"{ROOT}/hook/one.so:/lib/other.so:mine.so"


def test_libvgpu_is_the_build_that_finds_the_agents_files_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "preload").write_text("/hook/vgpu/libvgpu.so\n")
    mounts = [
        (str(tmp_path / "preload"), "/etc/ld.so.preload", 1),
        ("/lib/aa/libvgpu.so", "/hook/vgpu/libvgpu.so", 1),
        ("/tokens/x", "/run/hami/share/policy", 1),
    ]
    own, moved = bundles.with_own_library(mounts)
    assert own == [
        mounts[0],
        (str(programs.library_beside()), "/run/hami/share/libvgpu.so", 1),
        mounts[2],
    ]
    env = Paths(ROOT, own, moved).env({})
    assert env["LD_PRELOAD"] == f"{ROOT}/run/hami/share/libvgpu.so"
    assert programs.library_beside().name == "libvgpu-beside.so"


def test_without_mounts_nothing_changes() -> None:
    env = {"PATH": "/bin:/usr/bin", "EMPTY": ""}
    assert Paths(ROOT, []).env(env) == env


@given(st.text())
def test_only_mounted_paths_are_touched(word: str) -> None:
    mapped = Paths(ROOT, MOUNTS).mapped(word)
    assert mapped == word or mapped.startswith((f"{ROOT}/run/fakegpu", f"{ROOT}/usr/lib/x/"))


def test_a_folder_to_start_in_is_the_machines_if_it_has_one(tmp_path: Path) -> None:
    paths = Paths(ROOT, MOUNTS)
    assert paths.folder("") == ROOT
    assert paths.folder(str(tmp_path)) == str(tmp_path)
    assert paths.folder("/run/fakegpu") == f"{ROOT}/run/fakegpu"
    assert paths.folder(f"{tmp_path}/none") == f"{ROOT}{tmp_path}/none"
