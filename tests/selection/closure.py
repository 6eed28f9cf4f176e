"""The files that tests can reach: imported, started or loaded by name.

Files are read, not imported. An import inside a function counts like any other, and so does a text
that is a module's name, so the closure is rather too large than too small.
"""

from __future__ import annotations

import ast
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator

#: Where modules are found: a folder below the root, and the packages in it.
SOURCES = (
    ("src", ("hami",)),
    ("sandbox/src", ("hami_sandbox",)),
    (".", ("tests", "sandbox/tests", "native", "benchmarks")),
)
_DOTTED = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)+")


class Modules:
    """All modules of a checkout, by name and by path."""

    def __init__(
        self, root: pathlib.Path, sources: Iterable[tuple[str, Iterable[str]]] = SOURCES
    ) -> None:
        self._root = root
        self._paths: dict[str, str] = {}
        for folder, packages in sources:
            for package in packages:
                for path in sorted((root / folder / package).rglob("*.py")):
                    name = ".".join(path.relative_to(root / folder).with_suffix("").parts)
                    self._paths[name] = str(path.relative_to(root))
        self._names = {path: name for name, path in self._paths.items()}

    def closure(self, files: Iterable[str]) -> set[str]:
        """Return the paths of `files` and of everything that they can reach."""
        left, found = list(files), set[str]()
        while left:
            path = left.pop()
            if path not in found:
                found.add(path)
                left += self._reached(path)
        return found

    def _reached(self, path: str) -> Iterator[str]:
        name = self._names.get(path, "")
        yield from self._files_of(name)  # the packages around it are run before it
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        for node in ast.walk(ast.parse((self._root / path).read_text("utf-8"))):
            for reached in _named(node, package.removesuffix(".__init__")):
                yield from self._files_of(reached)

    def _files_of(self, name: str) -> Iterator[str]:
        """Yield the file of a module, and those of the packages around it."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            known = ".".join(parts[:length])
            for candidate in (known, f"{known}.__init__"):
                if candidate in self._paths:
                    yield self._paths[candidate]


def _named(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a node imports or starts; some are names within a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if _DOTTED.fullmatch(node.value):  # loaded or started by name
            yield node.value
            yield f"{node.value}.__main__"
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from _started(node.elts)
    elif isinstance(node, ast.Call):
        yield from _started(node.args)


def _started(words: list[ast.expr]) -> Iterator[str]:
    """Yield the __main__ of what follows "-m" in a command, for packages without a dot."""
    texts = [word.value if isinstance(word, ast.Constant) else None for word in words]
    for option, name in itertools.pairwise(texts):
        if option == "-m" and isinstance(name, str):
            yield f"{name}.__main__"
