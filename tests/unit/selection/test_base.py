"""The base of a run in real repositories: clones, branches, working trees."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.selection import base
from tests.selection.base import Repository


def git(folder: pathlib.Path, *arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    done = subprocess.run(
        ["git", *who, *arguments],  # noqa: S607 - git is looked up on the PATH
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: pathlib.Path, **files: str) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def upstream(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.delenv(base.VARIABLE, raising=False)
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, a="1")
    commit(folder, b="1")
    return folder


@pytest.fixture
def clone(upstream: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    git(tmp_path, "clone", "-q", str(upstream), "clone")
    return tmp_path / "clone"


def test_a_clone_of_main_has_no_base(clone: pathlib.Path) -> None:
    found = Repository(clone).base()
    assert found.commit is None
    assert base.VARIABLE in found.why


def test_a_branch_has_the_commit_where_it_left_main(
    clone: pathlib.Path, upstream: pathlib.Path
) -> None:
    left = git(clone, "rev-parse", "HEAD")
    git(clone, "checkout", "-q", "-b", "work")
    commit(clone, c="1")
    commit(upstream, d="1")
    git(clone, "fetch", "-q")
    assert Repository(clone).base().commit == left


def test_commits_on_main_that_origin_lacks_are_compared_with_origin(clone: pathlib.Path) -> None:
    left = git(clone, "rev-parse", "HEAD")
    commit(clone, c="1")
    assert Repository(clone).base().commit == left


def test_a_branch_without_a_remote_is_compared_with_main(upstream: pathlib.Path) -> None:
    left = git(upstream, "rev-parse", "HEAD")
    git(upstream, "checkout", "-q", "-b", "work")
    commit(upstream, c="1")
    assert Repository(upstream).base().commit == left


def test_the_variable_wins(clone: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = git(clone, "rev-parse", "HEAD~1")
    monkeypatch.setenv(base.VARIABLE, "HEAD~1")
    assert Repository(clone).base().commit == first


@pytest.mark.parametrize("named", ["0" * 40, "no-such-branch", "--help"])
def test_a_variable_that_names_no_commit_gives_no_base(
    clone: pathlib.Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    git(clone, "checkout", "-q", "-b", "work")
    commit(clone, c="1")
    monkeypatch.setenv(base.VARIABLE, named)
    found = Repository(clone).base()
    assert found.commit is None
    assert named in found.why


def test_a_folder_that_is_no_repository_has_no_base(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(base.VARIABLE, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert Repository(tmp_path).base().commit is None


def test_changes_are_those_of_commits_and_of_the_working_tree(clone: pathlib.Path) -> None:
    left = git(clone, "rev-parse", "HEAD")
    git(clone, "mv", "a", "renamed")
    commit(clone, committed="1")
    (clone / "b").write_text("2")
    (clone / "name with blanks").write_text("1")
    found = Repository(clone).changed(left)
    assert found == {"a", "renamed", "committed", "b", "name with blanks"}
