"""The architecture map: packages, modules, the first lines of docstrings."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.reference import markdown

INTRO = """\
Every package and module, with the first line of its docstring.
[architecture.md](../architecture.md) has the picture, the reasons for the layers, and the way of a
pod through them."""

#: Folders that hold the packages of a distribution.
SOURCES = ("src", "sandbox/src")


def render(root: Path) -> str:
    """Return the page."""
    parts = [*_layers(root)]
    for source in SOURCES:
        for package in sorted(root.glob(f"{source}/*/__init__.py")):
            parts += _distribution(package.parent, root)
    return markdown.page("Map of packages and modules", INTRO, parts)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring; of a data file its first comment."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    line = text.partition("\n")[0]
    return line.lstrip("# ") if line.startswith("#") else ""


def _layers(root: Path) -> Iterator[str]:
    settings: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    yield "## Layers"
    yield "A layer may import those below it. import-linter checks this and the rules that follow."
    layered = next(each for each in contracts if each["type"] == "layers")
    yield "\n".join(["```text", *layered["layers"], "```"])
    yield "\n".join(
        f"- {each['name']}: {_contract(each)}" for each in contracts if each["type"] == "forbidden"
    )


def _contract(contract: dict[str, Any]) -> str:
    def names(key: str) -> str:
        return ", ".join(markdown.code(name) for name in contract[key])

    return f"{names('source_modules')} may not import {names('forbidden_modules')}."


def _distribution(top: Path, root: Path) -> Iterator[str]:
    where = top.relative_to(root).as_posix()
    yield f"## {markdown.code(top.name)}\n\n{first_line(top / '__init__.py')}"
    folders = sorted({path.parent for path in top.rglob("*.py")})
    for folder in folders:
        rows = [
            (f"[{path.name}](../../{path.relative_to(root).as_posix()})", first_line(path))
            for path in sorted(folder.iterdir())
            if path.suffix in {".py", ".toml"} and path.name != "__init__.py"
        ]
        if not rows:
            continue
        if folder != top:
            name = folder.relative_to(top).as_posix()
            yield f"### {markdown.code(name)}\n\n{first_line(folder / '__init__.py')}".rstrip()
        yield markdown.table(("module", "purpose"), rows)
    if not folders:
        yield f"No modules below {where}."
