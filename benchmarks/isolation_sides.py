"""Two sides of a measurement: a process without libvgpu, and in a container.

The driver behind both is the stand-in (native/fakegpu) or the hollow one (isolation_hollow.c).
Every figure is measured in the order native, ours, ours, native, so a drift falls on both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from native import build
from tests.gpu import timing
from tests.native.container import Card, Container, Node
from tests.native.probing import GIB

ORDER = (False, True, True, False)
MEMORY = 1024 * GIB
#: Far from the limit, even with 100,000 allocations of 2 MiB.
LIMIT = 1000 * GIB
_HOLLOW = Path(__file__).with_name("isolation_hollow.c")
_CARD = Card("GPU-00000000-0000-0000-0000-000000000000", MEMORY)


class Both(msgspec.Struct):
    """What was measured on each side, the median of all rounds."""

    native: float
    ours: float

    @property
    def added(self) -> float:
        return self.ours - self.native

    @property
    def ratio(self) -> float:
        return self.ours / self.native

    def text(self, scale: float, digits: int, unit: str) -> str:
        native, ours, added = (value / scale for value in (self.native, self.ours, self.added))
        return (
            f"{native:9.{digits}f} {ours:9.{digits}f} {added:+9.{digits}f} {unit:5} "
            f"{self.ratio:6.2f}"
        )


class Side(msgspec.Struct):
    """How a process is started: with what in its environment."""

    environment: dict[str, str]
    ours: bool


class Sides:
    """A driver, and a container with a limit on its one card."""

    def __init__(
        self,
        folder: Path,
        driver: Path | None = None,
        limit: int = LIMIT,
        names: Mapping[str, str] | None = None,
    ) -> None:
        node = Node(folder / "node", [_CARD])
        self.container = Container(folder, (limit,), node=node, names=names)
        self._driver = driver

    def side(self, *, ours: bool) -> Side:
        environment = self.container.environment(preload=ours)
        if self._driver is not None:
            environment["LD_LIBRARY_PATH"] = str(self._driver)
        return Side(environment, ours)

    def empty_container(self) -> None:
        """Forget all processes that ever were in the container; none may live."""
        self.container.state_path.unlink()
        self.container.state_path.touch()


def compare(sides: Sides, measure: Callable[[Side], Sequence[float]], rounds: int = 1) -> Both:
    """Measure in turns; `measure` gives one or more values of the same thing."""
    (both,) = compare_all(sides, lambda side: {"": measure(side)}, rounds).values()
    return both


def compare_all(
    sides: Sides, measure: Callable[[Side], Mapping[str, Sequence[float]]], rounds: int = 1
) -> dict[str, Both]:
    """Measure several things in turns, each by its name."""
    values: dict[str, tuple[list[float], list[float]]] = {}
    for ours in ORDER * rounds:
        for name, more in measure(sides.side(ours=ours)).items():
            values.setdefault(name, ([], []))[ours].extend(more)
    return {name: Both(*map(statistics.median, found)) for name, found in values.items()}


# Compiling.


def hollow_driver(folder: Path) -> Path:
    """Compile the driver that does nothing; give the folder that it is in."""
    folder.mkdir()
    library = folder / "libcuda.so.1"
    _compile(_HOLLOW, library, f"-Wl,-soname,{library.name}")
    # The same file, so the loader gives both names one library, whose NVML counts its memory.
    (folder / "libnvidia-ml.so.1").symlink_to(library)
    return folder


def loops(folder: Path) -> Path:
    """Compile the timed loops, which `make gpu` uses on a real card."""
    library = folder / "loops.so"
    _compile(timing.SOURCE, library)
    return library


def _compile(source: Path, library: Path, *more: str) -> None:
    compiler = build.zig(build.own_arch())
    include = f"-I{build.SOURCES / 'include'}"
    options = ["-std=c11", "-O2", "-shared", "-fPIC", include, *more]
    compiler.run(source.name, [*compiler.command, *options, "-o", str(library), str(source)])
