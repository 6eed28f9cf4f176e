"""The mutants of a run: those that a change concerns, limited by a seed."""

from __future__ import annotations

import re

import pytest

from tests.mutants import choosing
from tests.mutants.running import NATIVE, PRODUCT, ROOT, Mutant, read_mutants
from tests.selection.base import Base, Repository


def mutant(number: int) -> Mutant:
    return Mutant(
        name=f"mutant {number}",
        file=f"src/m{number}.py",
        find="a",
        replace="b",
        tests=[f"tests/test_m{number}.py::test_it"],
    )


LISTED = [mutant(number) for number in range(20)]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    paths: set[str] = set()
    monkeypatch.setenv(choosing.MOST, "3")
    monkeypatch.delenv(choosing.SEED, raising=False)
    monkeypatch.setattr(Repository, "base", lambda _: Base("0123456789abcdef", "test"))
    monkeypatch.setattr(Repository, "changed", lambda *_: paths)
    monkeypatch.setattr(Repository, "head", lambda _: "fedcba")
    return paths


def test_a_changed_file_or_test_chooses_its_mutants(changed: set[str]) -> None:
    changed |= {"src/m1.py", "tests/test_m4.py", "README.md"}
    chosen, line = choosing.of_this_run(LISTED, ".")
    assert [each.name for each in chosen] == ["mutant 1", "mutant 4"]
    assert "2 of 2 concerned (since 0123456789ab), 20 in all" in line


def test_files_are_relative_to_their_source(changed: set[str]) -> None:
    changed |= {"native/libvgpu/src/m1.py", "src/m2.py"}
    chosen, _ = choosing.of_this_run(LISTED, "native/libvgpu")
    assert [each.name for each in chosen] == ["mutant 1"]


def test_no_more_than_the_number_are_chosen_by_the_seed_that_is_named(
    changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed |= {each.file for each in LISTED}
    chosen, line = choosing.of_this_run(LISTED, ".")
    assert len(chosen) == 3
    assert "HAMI_MUTANTS_SEED=fedcba" in line
    assert choosing.of_this_run(LISTED, ".")[0] == chosen
    monkeypatch.setenv(choosing.SEED, "another")
    assert choosing.of_this_run(LISTED, ".")[0] != chosen


def test_without_a_base_all_are_candidates(
    changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Repository, "base", lambda _: Base(None, "nothing to compare with"))
    chosen, line = choosing.of_this_run(LISTED, ".")
    assert len(chosen) == 3
    assert "3 of 20 concerned (no base: nothing to compare with)" in line


def test_without_a_number_all_are_run(changed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choosing.MOST)
    assert choosing.of_this_run(LISTED, ".")[0] == LISTED


@pytest.mark.parametrize(("name", "source"), [("mutants.toml", PRODUCT), ("native.toml", NATIVE)])
def test_every_mutant_fits_chosen_or_not(name: str, source: str) -> None:
    """One that the code has left behind would fail only the run whose seed chooses it."""
    for listed in read_mutants(name):
        found = (ROOT / source / listed.file).read_text().count(listed.find)
        assert found == 1, f"{listed.name}: find stands {found} times in {listed.file}"
        for test in listed.tests:
            file, *names = test.split("::")
            text = (ROOT / file).read_text()
            for part in names:
                assert re.search(rf"(def|class) {part.partition('[')[0]}\b", text), test
