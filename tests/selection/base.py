"""The commit that a run is compared with, and the files that differ from it.

A run that knows no base must not leave anything out: `Base.commit` is None then, and `why` says so.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess

VARIABLE = "HAMI_CI_BASE"
BRANCHES = ("origin/main", "main")


@dataclasses.dataclass(frozen=True)
class Base:
    """A commit, or None where there is none to compare with."""

    commit: str | None
    why: str


@dataclasses.dataclass(frozen=True)
class Repository:
    root: pathlib.Path

    def base(self) -> Base:
        """Find the base: HAMI_CI_BASE, else where this branch left main.

        In a clone of main itself HEAD is origin/main. What was merged since the last run is then
        unknown, so there is no base.
        """
        if named := os.environ.get(VARIABLE, "").strip():
            commit = self._merge_base(named)
            if commit is None:
                return Base(None, f"{VARIABLE}={named} is no commit that HEAD descends from")
            return Base(commit, f"{VARIABLE}={named}")
        head = self._ask("rev-parse", "HEAD")
        for branch in BRANCHES:
            commit = self._merge_base(branch)
            if commit is not None and commit != head:
                return Base(commit, f"HEAD left {branch} there")
        return Base(None, f"HEAD is on main and {VARIABLE} is not set")

    def changed(self, base: str) -> set[str]:
        """Return the paths that differ from the base, in commits and in the working tree.

        A renamed file counts with both names.
        """
        differing = self._ask("diff", "--name-only", "--no-renames", "-z", base, "--") or ""
        untracked = self._ask("ls-files", "--others", "--exclude-standard", "-z") or ""
        return {path for path in (differing + "\0" + untracked).split("\0") if path}

    def head(self) -> str | None:
        return self._ask("rev-parse", "HEAD")

    def _merge_base(self, name: str) -> str | None:
        return self._ask("merge-base", "HEAD", f"{name}^{{commit}}")

    def _ask(self, *arguments: str) -> str | None:
        """Ask git; None where it refuses, or where there is no git."""
        try:
            done = subprocess.run(
                ["git", *arguments],  # noqa: S607 - git is looked up on the PATH
                cwd=self.root,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip("\n") or None if done.returncode == 0 else None
