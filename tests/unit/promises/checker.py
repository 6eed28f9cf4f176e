"""Check tests/promises.toml against the tests and pages it names.

Tests are looked up by reading their files, not by importing them: that takes milliseconds and works
for suites that need root or a GPU. A test counts as skipped when a skip, xfail or importorskip
is in it, in its class, or anywhere in its module outside the other tests (fixtures and helpers
included).
"""

from __future__ import annotations

import ast
import collections
import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROWS = range(1, 83)

_KEYS = {"row", "title", "tests", "doc", "open"}
_WAYS_OUT = {
    *("skip", "skipif", "xfail", "importorskip", "exit"),
    *("SkipTest", "skipTest", "skipIf", "skipUnless", "expectedFailure"),
}
_LIBRARIES = {"pytest", "unittest"}

_Test = ast.FunctionDef | ast.AsyncFunctionDef


def problems(text: str, root: Path) -> list[str]:
    """Return what is wrong with the promises in `text`; `root` is the repository."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [f"not TOML: {error}"]
    rows = document.pop("promise", [])
    found = [f"unknown table {name!r}" for name in document]
    times = collections.Counter(row.get("row") for row in rows)
    found += [f"row {row} is missing" for row in ROWS if not times[row]]
    found += [f"row {row} is there {n} times" for row, n in times.items() if n > 1]
    known = f"{ROWS[0]} to {ROWS[-1]}"
    found += [f"row {row!r} is not one of {known}" for row in times if row not in ROWS]
    for row in rows:
        found += [f"row {row.get('row')}: {problem}" for problem in _of_row(row, root)]
    return found


def _of_row(row: dict[str, object], root: Path) -> Iterator[str]:
    for key in row.keys() - _KEYS:
        yield f"unknown key {key!r}"
    for key in ("title", "doc", "open"):
        value = row.get(key, "" if key == "title" else "-")
        if not isinstance(value, str) or not value.strip():
            yield f"{key} must be a text that is not empty"
    kept = row.keys() & {"tests", "doc"}
    if kept and "open" in row:
        yield f"is open and has {' and '.join(sorted(kept))}; keep one"
    if not kept and "open" not in row:
        yield "needs tests, doc or open"
    if "doc" in row:
        yield from _of_page(str(row["doc"]), root)
    if "tests" in row:
        tests = row["tests"]
        if not isinstance(tests, list) or not tests or len({*map(str, tests)}) < len(tests):
            yield "tests must be a list of at least one test id, each once"
        else:
            for test in tests:
                yield from _of_test(str(test), root)


def _of_page(page: str, root: Path) -> Iterator[str]:
    path = root / page
    if not page.endswith(".md") or not _inside(path, root) or not path.is_file():
        yield f"there is no page {page!r}"
    elif not path.read_text("utf-8").strip():
        yield f"the page {page!r} is empty"


def _of_test(test: str, root: Path) -> Iterator[str]:
    file, *names = test.split("::")
    path = root / file
    known = any(_inside(path, root / folder) for folder in ("tests", "sandbox/tests"))
    if not known or not path.is_file() or not path.match("test_*.py"):
        yield f"there is no test file {file!r}"
        return
    module = _read(path)
    around: list[ast.AST] = [node for node in module.body if not _is_test(node)]
    scope: list[ast.stmt] = module.body
    node: ast.stmt | None = None
    for name in names:
        matching = [n for n in scope if _is_test(n) and getattr(n, "name", "") == name]
        if not matching:
            yield f"there is no test {test!r}"
            return
        node = matching[-1]
        if isinstance(node, ast.ClassDef):
            around += [*node.decorator_list, *(n for n in node.body if not _is_test(n))]
            scope = node.body
        else:
            around.append(node)
            scope = []
    if not isinstance(node, _Test):
        yield f"{test!r} is not a single test"
        return
    for way_out in _ways_out(module, around):
        yield f"{test!r} may not run: {way_out} in its file"


def _is_test(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test")
    return isinstance(node, _Test) and node.name.startswith("test")


def _ways_out(module: ast.Module, nodes: list[ast.AST]) -> Iterator[str]:
    """Yield `name (line n)` for every skip or xfail of pytest or unittest within the nodes."""
    libraries = {"self"}
    own = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            libraries |= {n.asname or n.name for n in node.names if n.name in _LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and node.module in _LIBRARIES:
            libraries |= {n.asname or n.name for n in node.names if n.name == "mark"}
            own |= {n.asname or n.name for n in node.names if n.name in _WAYS_OUT}
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Attribute) and node.attr in _WAYS_OUT:
            if _root(node) in libraries:
                yield f"{node.attr} (line {node.lineno})"
        elif isinstance(node, ast.Name) and node.id in own:
            yield f"{node.id} (line {node.lineno})"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@functools.cache
def _read(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))
