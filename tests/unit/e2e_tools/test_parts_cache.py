"""The cache of built parts: once, whole, and repaired when it is not."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.parts import cache, go_module
from tests.e2e.parts.cache import Part, PartError, Say


@dataclasses.dataclass
class Recipe:
    """A part of two files and a link that counts how often it was made."""

    made: int = 0
    fail: bool = False

    def part(self, **changes: object) -> Part:
        part = Part("thing", "1.0", {"toolchain": "go1"}, self.make, takes="1 min")
        return dataclasses.replace(part, **changes)  # type: ignore[arg-type]

    def make(self, into: Path, say: Say) -> None:
        self.made += 1
        (into / "program").write_bytes(b"\x7fELF first")
        (into / "program").chmod(0o755)
        if self.fail:
            raise PartError("the compiler said no")
        (into / "folder").mkdir()
        (into / "folder/data").write_text("data")
        (into / "link").symlink_to("program")


@pytest.fixture
def recipe() -> Recipe:
    return Recipe()


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_part_is_built_once_and_says_so(tmp_path: Path, recipe: Recipe, said: list[str]) -> None:
    first = cache.provide(recipe.part(), tmp_path, said.append)
    second = cache.provide(recipe.part(), tmp_path, said.append)
    assert first == second
    assert recipe.made == 1
    assert (first / "program").read_bytes() == b"\x7fELF first"
    assert said[0] == "building thing 1.0, about 1 min, once"
    assert len(said) == 2


@pytest.mark.parametrize(
    "change", [{"version": "1.1"}, {"made_from": {"toolchain": "go2"}}, {"name": "other"}]
)
def test_another_version_or_toolchain_is_another_part(
    tmp_path: Path, recipe: Recipe, change: dict[str, object]
) -> None:
    first = cache.provide(recipe.part(), tmp_path, lambda _: None)
    second = cache.provide(recipe.part(**change), tmp_path, lambda _: None)
    assert first != second
    assert recipe.made == 2


def bend(link: Path) -> None:
    link.unlink()
    link.symlink_to("folder")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped byte": lambda f: (f / "program").write_bytes(b"\x7fELF fIrst"),
    "a cut file": lambda f: os.truncate(f / "program", 3),
    "a lost file": lambda f: (f / "folder/data").unlink(),
    "a foreign file": lambda f: (f / "folder/more").write_text("?"),
    "a lost permission": lambda f: (f / "program").chmod(0o644),
    "a bent link": lambda f: bend(f / "link"),
    "a lost manifest": lambda f: (f / cache.MANIFEST).unlink(),
    "a cut manifest": lambda f: os.truncate(f / cache.MANIFEST, 20),
    "an empty manifest": lambda f: (f / cache.MANIFEST).write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_made_anew(
    tmp_path: Path, recipe: Recipe, said: list[str], damage: str
) -> None:
    folder = cache.provide(recipe.part(), tmp_path, said.append)
    DAMAGES[damage](folder)
    assert cache.provide(recipe.part(), tmp_path, said.append) == folder
    assert recipe.made == 2
    assert any("making it anew" in line for line in said)
    assert cache.damage(folder) is None


def test_a_build_that_fails_leaves_no_part_and_the_next_one_succeeds(
    tmp_path: Path, recipe: Recipe
) -> None:
    recipe.fail = True
    with pytest.raises(PartError, match="the compiler said no"):
        cache.provide(recipe.part(), tmp_path, lambda _: None)
    assert not (tmp_path / recipe.part().folder_name).exists()
    recipe.fail = False
    folder = cache.provide(recipe.part(), tmp_path, lambda _: None)
    assert sorted(cache.contents(folder)) == ["folder/data", "link", "program"]


def test_what_a_killed_builder_left_is_not_taken_for_a_part(tmp_path: Path, recipe: Recipe) -> None:
    half = tmp_path / ".making-thing"
    half.mkdir()
    (half / "stale").write_text("from a builder that was killed")
    folder = cache.provide(recipe.part(), tmp_path, lambda _: None)
    assert not (folder / "stale").exists()


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()
    recipe = Recipe()
    said: list[str] = []

    def slowly(into: Path, say: Say) -> None:
        inside.set()
        assert go_on.wait(60)
        recipe.make(into, say)

    part = recipe.part(make=slowly)
    first = threading.Thread(target=cache.provide, args=(part, tmp_path, lambda _: None))
    first.start()
    assert inside.wait(60)
    waiting = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    second = threading.Thread(target=cache.provide, args=(part, tmp_path, say))
    second.start()
    assert waiting.wait(60)
    go_on.set()
    first.join(60)
    second.join(60)
    assert recipe.made == 1
    assert said == ["thing 1.0: another run is at it; waiting"]


def test_prune_removes_only_finished_parts_that_no_recipe_names(
    tmp_path: Path, recipe: Recipe
) -> None:
    old = cache.provide(recipe.part(version="0.9"), tmp_path, lambda _: None)
    new = cache.provide(recipe.part(), tmp_path, lambda _: None)
    (tmp_path / "not-a-part").mkdir()
    cache.prune({new.name}, tmp_path, lambda _: None)
    assert not old.exists()
    assert new.exists()
    assert (tmp_path / "not-a-part").exists()


def test_the_cache_lies_outside_of_the_checkout_and_can_be_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HAMI_PARTS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "hami/parts"
    monkeypatch.setenv("HAMI_PARTS_CACHE", str(tmp_path / "own"))
    assert cache.default_folder() == tmp_path / "own"


def test_a_machine_without_go_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    go_module._go_version.cache_clear()
    with pytest.raises(PartError, match=r"no `go` on the PATH.*Go >= 1\.21: install it"):
        go_module.go_part("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, takes="a moment")


def test_a_part_has_the_version_that_its_go_mod_pins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_go(monkeypatch, tmp_path, "echo go1.99.1")
    folder = go_module.HERE / "kubernetes"
    part = go_module.go_part(
        "k", "kubernetes", {"kubelet": "k8s.io/kubernetes/cmd/kubelet"}, takes="a moment"
    )
    assert f"k8s.io/kubernetes v{part.version}" in (folder / "go.mod").read_text()
    assert part.made_from["go"] == "go1.99.1"


def test_a_go_that_cannot_fetch_toolchains_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_go(monkeypatch, tmp_path, "echo go1.19.8")
    with pytest.raises(PartError, match=r"'go1\.19\.8'; Go >= 1\.21 is needed"):
        go_module.go_part("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, takes="-")


def test_a_failed_build_shows_the_compilers_last_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_go(
        monkeypatch, tmp_path, '[ "$1" = env ] && echo go1.99 || { echo "x.go:1: oops"; exit 1; }'
    )
    part = go_module.go_part("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, takes="-")
    with pytest.raises(PartError, match=r"(?s)exit 1; its last lines:.*x\.go:1: oops"):
        cache.provide(part, tmp_path / "cache", lambda _: None)


def _fake_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    program = tmp_path / "bin/go"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    go_module._go_version.cache_clear()


@pytest.fixture(autouse=True)
def _forget_the_fake_go() -> Iterator[None]:
    yield
    go_module._go_version.cache_clear()


def test_the_manifest_names_every_file(tmp_path: Path, recipe: Recipe) -> None:
    folder = cache.provide(recipe.part(), tmp_path, lambda _: None)
    manifest = json.loads((folder / cache.MANIFEST).read_text())
    assert set(manifest) == {"program", "folder/data", "link"}
