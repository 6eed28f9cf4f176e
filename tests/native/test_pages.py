"""The pages about native/ are true: the example, the map of the files."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from pathlib import Path

import pytest

from native import build
from tests.native.test_old_drivers import OLD_DRIVERS


def blocks(language: str) -> list[str]:
    text = (build.ROOT / "docs/testing.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def test_the_example_with_stand_in_gpus_prints_what_stands_below_it(tmp_path: Path) -> None:
    (example,) = blocks("bash")
    (printed,) = blocks("text")

    done = subprocess.run(
        ["/bin/bash", "-e", "-c", example],
        cwd=build.ROOT,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout == printed


def test_the_table_of_versions_has_what_was_tested() -> None:
    page = (build.ROOT / "docs/isolation.md").read_text("utf-8")
    section = page.split("\n### Versions\n", 1)[1].split("\n## ", 1)[0]
    rows = dict(re.findall(r"^\| (\S+) \| (\d+\.\d+) \|", section, re.MULTILINE))
    results = (build.ROOT / "docs/gpu-results.md").read_text("utf-8")
    [driver] = re.findall(r"^\| driver \| (\d+)\.", results, re.MULTILINE)
    [cuda] = re.findall(r"^\| CUDA of the driver \| (\S+) \|", results, re.MULTILINE)
    older = {name: f"{cuda // 1000}.{cuda % 1000 // 10}" for name, cuda in OLD_DRIVERS.items()}
    assert rows == {driver: cuda, **older}


@pytest.mark.parametrize("folder", ["libvgpu", "fakegpu"])
def test_the_map_names_every_file_and_no_other(folder: str) -> None:
    text = (build.SOURCES / "README.md").read_text("utf-8")
    section = text.split(f"\n## Files of `{folder}/`", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    files = [path.name for path in (build.SOURCES / folder).iterdir() if path.is_file()]

    unnamed = [file for file in files if not any(fnmatch.fnmatch(file, name) for name in named)]
    assert unnamed == []
    assert [name for name in named if not fnmatch.filter(files, name)] == []
