"""The files of .github can be read by GitHub, and call what this repository has."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
#: Actions by full commit with the version beside it, or by tag with the reason beside it.
PINNED = re.compile(r"uses: [\w./-]+@(?:[0-9a-f]{40} # v[\d.]+|[\w./-]+ # .+)$")

Job = dict[str, Any]


def jobs(path: Path) -> dict[str, Job]:
    found = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    assert isinstance(found, dict)
    return found


def commands(job: Job) -> Iterator[str]:
    """Yield the commands of a job, once for each entry of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    lists = {key: values for key, values in matrix.items() if key != "include"}
    rows = [dict(zip(lists, row, strict=True)) for row in itertools.product(*lists.values())]
    for row in rows or [{}]:
        for step in job["steps"]:
            text = step.get("run", "")
            for key, value in row.items():
                text = text.replace("${{ matrix." + key + " }}", str(value))
            yield text


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return set(re.findall(r"^([a-z0-9-]+):(?!=)", makefile, re.MULTILINE))


def test_there_are_workflows_for_pushes_nights_and_releases() -> None:
    assert {"ci.yml", "nightly.yml", "release.yml"} <= {path.name for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
class TestWorkflows:
    def test_have_no_rights_but_those_they_name(self, path: Path) -> None:
        document = yaml.safe_load(path.read_text("utf-8"))
        assert document["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in jobs(path).values())

    def test_call_make_targets_and_files_that_exist(self, path: Path) -> None:
        called = [text for job in jobs(path).values() for text in commands(job)]
        wanted = set(re.findall(r"^\s*make ([a-z0-9-]+)", "\n".join(called), re.MULTILINE))
        assert wanted
        assert wanted - targets() == set()
        files = re.findall(r"^(\.ci/\S+|scripts/\S+)", "\n".join(called), re.MULTILINE)
        assert [name for name in files if not (ROOT / name).exists()] == []

    def test_pin_every_action(self, path: Path) -> None:
        lines = [line.strip(" -") for line in path.read_text("utf-8").splitlines()]
        uses = [line for line in lines if line.startswith("uses: ")]
        assert [line for line in uses if not PINNED.match(line)] == []

    def test_jobs_wait_for_jobs_that_exist(self, path: Path) -> None:
        found = jobs(path)
        for job in found.values():
            needs = job.get("needs", [])
            assert set([needs] if isinstance(needs, str) else needs) <= set(found)


def test_ci_runs_on_every_python_that_the_package_names() -> None:
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _pyproject())
    assert matrix == named


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_have_what_github_wants(path: Path) -> None:
    document = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert document["blank_issues_enabled"] in (True, False)
        return
    assert {"name", "description", "body"} <= set(document)
    fields = [each for each in document["body"] if each["type"] != "markdown"]
    assert fields
    assert all(each["attributes"]["label"] for each in fields)
    ids = [each["id"] for each in fields]
    assert len(ids) == len(set(ids))


def test_hooks_before_a_commit_run_from_the_environment_only() -> None:
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repository["repo"] for repository in document["repos"]] == ["local"]
    hooks = document["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
    assert {"ruff-check", "ruff-format", "mypy", "import-linter", "reference"} == {
        hook["id"] for hook in hooks
    }
