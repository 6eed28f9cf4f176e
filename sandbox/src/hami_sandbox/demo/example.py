"""Examples in their folders: text, manifests, steps, checks.

A folder has ordinary YAML and an example.toml. All of it is read and checked before the first pod
is created: a mistake is reported with its file and place, not as an example that fails.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

import hami_sandbox
from hami_sandbox.demo import checks, manifests
from hami_sandbox.demo.manifests import Manifest
from hami_sandbox.errors import SandboxError
from hami_sandbox.gpu_models import MODELS
from hami_sandbox.plan import OTHERS, Plan

FILE = "example.toml"
_FOLDER = re.compile(r"\d\d-[a-z0-9-]+")
_NO_FILE = "write one: title, text, promise, and one [[step]] or more"


class Needs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fleet that an example needs."""

    #: Cards on one node.
    cards: checks.Number = 1
    #: Cards on all nodes.
    all_cards: checks.Number = 1
    #: A model of `hami_sandbox.gpu_models`, or of another vendor; empty: any of NVIDIA.
    model: str = ""
    #: MiB of each of them.
    memory: checks.Number = 0

    def unmet(self, plan: Plan) -> str:
        """Return what the fleet lacks; empty: nothing."""
        numbers = [self._number((*node.cards, *node.others)) for node in plan.nodes]
        kind = f"{self.model} cards" if self.model else "cards"
        size = f" of {self.memory} MiB" if self.memory else ""
        if max(numbers, default=0) < self.cards:
            return f"it needs a node with {self.cards} {kind}{size}"
        if sum(numbers) < self.all_cards:
            return f"it needs {self.all_cards} {kind}{size}"
        return ""

    def _number(self, cards: Iterable[tuple[str, int]]) -> int:
        return sum(
            number
            for model, number in cards
            if (model == self.model or (not self.model and model in MODELS))
            and _memory(model) >= self.memory
        )


def _memory(model: str) -> int:
    return MODELS[model].memory_mib if model in MODELS else OTHERS[model].memory


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: The action, for people.
    text: checks.Words
    #: Files of the folder to apply.
    apply: tuple[checks.Words, ...] = ()
    #: Objects to delete, as kubectl names them: pod/name. A step before applied them.
    delete: tuple[checks.Words, ...] = ()
    expect: Annotated[tuple[checks.Check, ...], msgspec.Meta(min_length=1)]


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An example.toml."""

    title: checks.Words
    #: The expected result, in plain words.
    text: checks.Words
    #: The same in a few words, for the summary.
    promise: checks.Words
    needs: Needs = Needs()
    #: Whether its objects stay until the end, so that the view has content.
    keep: bool = False
    step: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]


_OF_CONTAINERS = (checks.Log, checks.Metric)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    folder: Path
    title: str
    text: str
    promise: str
    needs: Needs
    keep: bool
    steps: tuple[Step, ...]
    #: What each file holds.
    files: dict[str, list[Manifest]]

    @property
    def asks_containers(self) -> bool:
        """Whether it checks logs or usage of containers, not only the placement of pods."""
        return any(
            isinstance(check, _OF_CONTAINERS) for step in self.steps for check in step.expect
        )


def default_folder() -> Path:
    """Return the folder of the examples: beside the sources, or in the installed package."""
    package = Path(hami_sandbox.__path__[0]).resolve()
    beside = package.parents[2] / "examples"
    return beside if beside.is_dir() else package / "examples"


def load(folder: Path, only: Sequence[str] = ()) -> list[Example]:
    """Read the examples of a folder in the order of their names; `only` takes some of them."""
    try:
        names = sorted(each.name for each in folder.iterdir() if _FOLDER.fullmatch(each.name))
    except OSError as error:
        raise SandboxError(
            str(folder), f"cannot be read ({error.strerror})", "name the folder of the examples"
        ) from error
    if not names:
        raise SandboxError(str(folder), "has no example", "examples are folders like 01-name")
    wanted = [_find(each, names, folder) for each in only] or names
    return [_load(folder / name) for name in dict.fromkeys(wanted)]


def _find(asked: str, names: Sequence[str], folder: Path) -> str:
    """Return the folder that is meant: 03-whole-card, whole-card and 3 are the same."""
    for name in names:
        number, _, words = name.partition("-")
        if asked in (name, words, number, number.lstrip("0")):
            return name
    raise SandboxError(f"example {asked!r}", f"is not in {folder}", f"take {', '.join(names)}")


def _load(folder: Path) -> Example:
    path = folder / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SandboxError(str(path), f"cannot be read ({error.strerror})", _NO_FILE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SandboxError(str(path), f"is no TOML: {error}", "correct that place") from error
    try:
        written = msgspec.convert(data, _Written)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$.") or "the file"
        raise SandboxError(
            f"{path}, {where}",
            rule,
            "the fields are those of hami_sandbox.demo.example and .checks",
        ) from error
    if written.needs.model and written.needs.model not in MODELS | OTHERS:
        raise SandboxError(
            f"{path}, needs.model {written.needs.model!r}",
            "is no model of the stand-in cards",
            f"take {', '.join((*MODELS, *OTHERS))}",
        )
    files = {
        file: manifests.read(_within(folder, file, path))
        for step in written.step
        for file in step.apply
    }
    _check_steps(path, written.step, files)
    return Example(
        name=folder.name,
        folder=folder,
        title=written.title,
        text=" ".join(written.text.split()),
        promise=written.promise,
        needs=written.needs,
        keep=written.keep,
        steps=written.step,
        files=files,
    )


def _within(folder: Path, file: str, path: Path) -> Path:
    if Path(file).name != file:
        raise SandboxError(
            f"{path}, apply {file!r}", "is no file of this folder", "put the file beside it"
        )
    return folder / file


def _check_steps(path: Path, steps: Sequence[Step], files: dict[str, list[Manifest]]) -> None:
    """Check that steps delete, and expect refused, only objects that steps apply."""
    made: set[str] = set()
    for number, step in enumerate(steps):
        place = f"{path}, step[{number}]"
        if not step.apply and not step.delete:
            raise SandboxError(place, "does nothing", "name files to apply or objects to delete")
        now = {each.short for file in step.apply for each in files[file]}
        if again := sorted(now & made):
            raise SandboxError(
                place, f"makes {', '.join(again)} a second time", "name every object once"
            )
        made |= now
        if unknown := sorted(set(step.delete) - made):
            raise SandboxError(
                f"{place}.delete {', '.join(unknown)}", "was made by no step", "apply it before"
            )
        for check in step.expect:
            if isinstance(check, checks.Refused) and check.object not in now:
                raise SandboxError(
                    f"{place}.expect, refused {check.object}",
                    "is not applied in this step",
                    f"take {', '.join(sorted(now)) or 'a file to apply'}",
                )
