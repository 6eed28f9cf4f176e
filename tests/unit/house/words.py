"""Find words and references that the writing rules forbid, in a tree.

As a program it prints a work list: `python words.py TREE [PATH ...]`, one `file:line: found -> use`
per line. Paths are below the tree, and every rule is checked there; without paths each folder is
checked by the rules that `FOLDERS` has for it. The words are in `replaced_words.toml` beside this
file.
"""

from __future__ import annotations

import ast
import enum
import fnmatch
import inspect
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIST = Path(__file__).with_name("replaced_words.toml")
#: The first line of a module's docstring says what the module is, on one line of the map.
FIRST_LINE = 80
_QUESTION = re.compile(
    r"(what(ever)?|who(se|m|ever)?|whether|how(ever)?|why|when(ever)?|where(ver)?|which(ever)?)\b",
    re.IGNORECASE,
)
#: A first line as a word of an exception.
_FIRST = "first line"
_TEXT, _NAMES = "text", "names"

#: Documents that are not part of the repository, by the marks under which they used to be cited.
_ELSEWHERE = re.compile(
    r"\bD\d{1,2}\b(?!\.)|\b[A-C]\.\d{1,2}(?:\.\d+)*\b"
    r"|(?<!\d-)\bhami-protocol\b|(?<![/\w])spec/\w|\bissue 1\d\b"
)
_PAGE = re.compile(r"(?<![\w:/.])[\w.-]+(?:/[\w.-]+)*\.(?:md|rst)\b")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Rules(enum.IntEnum):
    """How much is checked in a folder, each more than the one before."""

    #: First lines of modules.
    FIRST_LINES = 1
    #: First lines, and the glossary in names and texts.
    WORDS = 2
    #: All, and references. Tests cite pages that they make up.
    ALL = 3


#: The longest path that holds a module decides. Tests of tools and of C have words of their own.
FOLDERS = {
    "src": Rules.ALL,
    "sandbox/src": Rules.ALL,
    "benchmarks": Rules.WORDS,
    "tests/chart": Rules.WORDS,
    "tests/integration": Rules.WORDS,
    "tests/oracle": Rules.WORDS,
    "tests/scripted_api": Rules.WORDS,
    "tests/selection": Rules.WORDS,
    "tests/unit": Rules.WORDS,
    "tests/unit/e2e_tools": Rules.FIRST_LINES,
    "tests/unit/house": Rules.FIRST_LINES,
    "tests": Rules.FIRST_LINES,
    "sandbox/tests": Rules.FIRST_LINES,
    "scripts": Rules.FIRST_LINES,
    "native": Rules.FIRST_LINES,
    "hatch_build.py": Rules.FIRST_LINES,
}


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    line: int
    found: str
    use: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found} -> {self.use}"


@dataclass(frozen=True)
class Piece:
    """A name or a text of a module."""

    line: int
    kind: str
    text: str


@dataclass(frozen=True)
class Replaced:
    """Words with one replacement, where they are looked for, and phrases in which they may stay."""

    pattern: re.Pattern[str]
    use: str
    kinds: frozenset[str]
    paths: tuple[str, ...]
    allow: re.Pattern[str] | None

    def find(self, piece: Piece, path: str) -> Iterator[tuple[int, str]]:
        """Yield line and word for each match that no phrase allows."""
        if piece.kind not in self.kinds or not matches(path, self.paths):
            return
        for offset, line in enumerate(piece.text.splitlines()):
            plain = _plain(line)
            free = [found.span() for found in self.allow.finditer(plain)] if self.allow else []
            for found in self.pattern.finditer(plain):
                if not any(start <= found.start() and found.end() <= end for start, end in free):
                    yield piece.line + offset, found.group()


@dataclass
class Exempt:
    """Words that some files may use, for a reason."""

    words: frozenset[str]
    paths: tuple[str, ...]
    reason: str
    used: bool = field(default=False, compare=False)

    def covers(self, word: str, path: str) -> bool:
        if word not in self.words or not matches(path, self.paths):
            return False
        self.used = True
        return True


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path matches one of the patterns; no pattern matches every path."""
    return not patterns or any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def _plain(text: str) -> str:
    """Return lower-case words with single spaces: `WakeUps`, `wake_ups`, `wake-ups` alike."""
    parted = _HUMP.sub(" ", text).replace("'", "").replace("\u2019", "")
    return re.sub(r"[^a-z0-9]+", " ", parted.lower())


def _alternatives(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(word.replace(' ', ' ?') for word in words)})\b")


def _any(replaced: Sequence[Replaced]) -> re.Pattern[str]:
    return re.compile("|".join(each.pattern.pattern for each in replaced))


def read_list(path: Path = LIST) -> tuple[list[Replaced], list[Exempt]]:
    """Read the replaced words and the exceptions."""
    found = tomllib.loads(path.read_text("utf-8"))
    replaced = [
        Replaced(
            pattern=_alternatives(each["words"]),
            use=each["use"],
            kinds=frozenset(each.get("in", (_TEXT, _NAMES))),
            paths=tuple(each.get("paths", ())),
            allow=_alternatives(each["allow"]) if "allow" in each else None,
        )
        for each in found["replaced"]
    ]
    exempt = [
        Exempt(frozenset(each["words"]), tuple(each["paths"]), each["reason"])
        for each in found.get("exception", ())
    ]
    return replaced, exempt


def _names(nodes: Sequence[ast.AST]) -> Iterator[Piece]:
    """Yield the names that a module defines; names of others are not ours to change."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Piece(node.lineno, _NAMES, node.name)
            case ast.arg():
                yield Piece(node.lineno, _NAMES, node.arg)
            case ast.Name(ctx=ast.Store()):
                yield Piece(node.lineno, _NAMES, node.id)
            case ast.Attribute(ctx=ast.Store()):
                yield Piece(node.lineno, _NAMES, node.attr)
            case ast.alias(asname=str(name)):
                yield Piece(node.lineno, _NAMES, name)
            case ast.ExceptHandler(name=str(name)):
                yield Piece(node.lineno, _NAMES, name)


def _texts(nodes: Sequence[ast.AST]) -> Iterator[Piece]:
    """Yield strings of more than one word: docstrings, messages, help. Others are values."""
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"\w\W*\s\W*\w|^\s.*\w|\w.*\s$", node.value)
        ):
            # The parts of a joined string have the line of its first; that is near enough.
            yield Piece(node.lineno, _TEXT, node.value)


def _comments(source: str) -> Iterator[Piece]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Piece(token.start[0], _TEXT, token.string.lstrip("#: "))


def _docstring(source: str) -> str:
    """Return a module's docstring, or nothing; a tenth of the time that parsing it all takes."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            return inspect.cleandoc(ast.literal_eval(token.string))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            break
    return ""


def _first_line(source: str, path: str) -> Iterator[Finding]:
    line = _docstring(source).partition("\n")[0]
    if len(line) > FIRST_LINE:
        yield Finding(path, 1, f"first line of {len(line)} characters", f"at most {FIRST_LINE}")
    if asked := _QUESTION.match(line):
        yield Finding(
            path,
            1,
            f"first line begins with {asked.group()}",
            "a noun phrase or an imperative verb",
        )


def _references(piece: Piece, path: str, root: Path) -> Iterator[Finding]:
    """Find citations of documents that a reader of the repository cannot open."""
    for offset, line in enumerate(piece.text.splitlines()):
        where = piece.line + offset
        for found in _ELSEWHERE.finditer(line):
            yield Finding(path, where, f"reference {found.group()}", "a page of docs/")
        for found in _PAGE.finditer(line):
            name = found.group()
            if not any((folder / name).exists() for folder in (root, (root / path).parent)):
                yield Finding(path, where, f"reference {name}", "a file of the repository")


def check_module(
    file: Path, root: Path, replaced: Sequence[Replaced], exempt: Sequence[Exempt], rules: Rules
) -> Iterator[Finding]:
    """Find everything in one module that breaks the rules of its folder."""
    path = file.relative_to(root).as_posix()
    source = file.read_text("utf-8")
    for finding in _first_line(source, path):
        if not any(exception.covers(_FIRST, path) for exception in exempt):
            yield finding
    if rules < Rules.WORDS:
        return
    name = file.parent.name if file.stem == "__init__" else file.stem
    suspect = _any(replaced)
    if not (
        suspect.search(_plain(f"{source} {name}"))
        or _ELSEWHERE.search(source)
        or _PAGE.search(source)
    ):
        return  # the rest takes ten times as long
    nodes = list(ast.walk(ast.parse(source)))
    texts = [*_texts(nodes)]
    ends = "\n".join(line.partition("#")[2] for line in source.splitlines() if "#" in line)
    if suspect.search(_plain(ends)) or _ELSEWHERE.search(ends) or _PAGE.search(ends):
        texts += _comments(source)
    pieces = [Piece(1, _NAMES, name), *_names(nodes), *texts]
    yield from _words(pieces, path, replaced, exempt)
    for piece in texts if rules >= Rules.ALL else ():
        yield from _references(piece, path, root)


def _words(
    pieces: Sequence[Piece], path: str, replaced: Sequence[Replaced], exempt: Sequence[Exempt]
) -> Iterator[Finding]:
    """Find words that the glossary replaces."""
    suspect = _any(replaced)
    clean: set[str] = set()
    for piece in pieces:
        if piece.text in clean:
            continue
        if not suspect.search(_plain(piece.text)):
            clean.add(piece.text)
            continue
        for each in replaced:
            for line, word in each.find(piece, path):
                if not any(exception.covers(word, path) for exception in exempt):
                    shown = f"{word} (in {piece.text})" if piece.kind == _NAMES else word
                    yield Finding(path, line, shown, each.use)


def _modules(root: Path, folders: Mapping[str, Rules]) -> dict[Path, Rules]:
    """Return every module below these paths with its rules."""
    found: dict[Path, Rules] = {}
    for start in sorted(folders, key=len):
        top = root / start
        files = [top] if top.is_file() else sorted(filter(Path.is_file, top.rglob("*.py")))
        found.update(dict.fromkeys(files, folders[start]))
    return found


def check(
    root: Path, folders: Mapping[str, Rules] = FOLDERS, words: Path = LIST
) -> tuple[list[Finding], list[Exempt]]:
    """Check every module below these folders; return findings and unused exceptions."""
    replaced, exempt = read_list(words)
    findings: set[Finding] = set()
    for file, rules in _modules(root, folders).items():
        findings.update(check_module(file, root, replaced, exempt, rules))
    ordered = sorted(findings, key=lambda each: (each.path, each.line, each.found))
    return ordered, [each for each in exempt if not each.used]


def main(arguments: Sequence[str]) -> int:
    """Print the findings of a tree, and how many there are of each kind."""
    if not arguments:
        sys.stderr.write("usage: words.py TREE [PATH ...]\n")
        return 2
    folders = dict.fromkeys(arguments[1:], Rules.ALL) or FOLDERS
    findings, _ = check(Path(arguments[0]).resolve(), folders)
    counts: dict[str, int] = {}
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
        kind = finding.found.partition(" (")[0]
        counts[kind] = counts.get(kind, 0) + 1
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        sys.stdout.write(f"{count:6} {kind}\n")
    sys.stdout.write(f"{len(findings):6} in all\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
