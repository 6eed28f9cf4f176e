"""Closure of tests: imports of every form, programs started or loaded by name."""

from __future__ import annotations

import pathlib

import pytest

from tests.selection.closure import Modules

FILES = {
    "src/hami/__init__.py": "",
    "src/hami/__main__.py": "from hami.cli import main",
    "src/hami/cli/__init__.py": "",
    "src/hami/cli/main.py": "COMMANDS = {'agent': ('hami.cli.agent', 'words about it')}",
    "src/hami/cli/agent.py": "",
    "src/hami/wire/__init__.py": "from hami.wire import early",
    "src/hami/wire/codec.py": "def run():\n    import hami.wire.late\n",
    "src/hami/wire/late.py": "from . import beside\nfrom .. import above\n",
    "src/hami/wire/early.py": "",
    "src/hami/wire/beside.py": "",
    "src/hami/above.py": "",
    "src/hami/server/__init__.py": "",
    "src/hami/server/__main__.py": "import hami.server.inner",
    "src/hami/server/inner.py": "",
    "src/hami/unrelated.py": "",
    "tests/alone.py": "import json",
    "tests/imports.py": "from hami.wire.codec import Codec\nimport tests.helper as helper",
    "tests/helper.py": "",
    "tests/starts.py": "run([sys.executable, '-m', 'hami', 'agent'])",
    "tests/starts_package.py": "command = (sys.executable, *('-m', 'hami.server'))",
}
WIRE = {f"src/hami/wire/{name}.py" for name in ("__init__", "early", "codec", "late", "beside")}


@pytest.fixture
def modules(tmp_path: pathlib.Path) -> Modules:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Modules(tmp_path)


@pytest.mark.parametrize(
    ("start", "reached"),
    [
        ("tests/alone.py", set()),
        ("tests/imports.py", {*WIRE, "tests/helper.py", "src/hami/above.py"}),
        (
            "tests/starts.py",
            {f"src/hami/{name}.py" for name in ("__main__", "cli/__init__", "cli/main")}
            | {"src/hami/cli/agent.py"},
        ),
        (
            "tests/starts_package.py",
            {f"src/hami/server/{name}.py" for name in ("__init__", "__main__", "inner")},
        ),
    ],
)
def test_the_closure_has_all_that_can_be_reached(
    modules: Modules, start: str, reached: set[str]
) -> None:
    package = {"src/hami/__init__.py"} if reached else set()
    assert modules.closure([start]) == {start} | reached | package
