"""Common parts of all sections: card, judge, containers, workers, rows."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gpu.container import Container
from tests.gpu.driver import MIB, Nvml
from tests.gpu.sampler import Sampler
from tests.gpu.workers import Worker

LIMIT = 4096 * MIB
# Where a process stops by itself if nobody refuses it: the card is shared, and must not be filled.
BEYOND = LIMIT + 1024 * MIB
MARGIN = 32 * MIB  # what may stay unused below the limit
Sides = tuple[str, str]  # what native did, what ours did
NOTHING = ("", "")


@dataclasses.dataclass
class Row:
    section: str
    case: str
    native: str
    ours: str
    limit: str
    verdict: str

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAILED")


def mib(size: float) -> str:
    return f"{size / MIB:.0f}"


class Bench:
    def __init__(self, folder: Path, torch_python: str | None, loops: Path | None) -> None:
        self.folder = folder
        self.torch_python = torch_python
        self.loops = loops
        self.nvml = Nvml()
        self.sampler = Sampler()
        self.uuid = self.nvml.uuid()
        self.rows: list[Row] = []
        self.context = 0  # bytes of a context without preload, measured first
        self.began = time.monotonic()

    def add(self, section: str, case: str, sides: Sides, limit: str, bad: str) -> None:
        """Add a row; `bad` says what is wrong, and is empty where nothing is."""
        verdict = f"FAILED: {bad}" if bad else "ok"
        self._row(Row(section, case, *sides, limit, verdict))

    def note(self, section: str, case: str, sides: Sides, limit: str, why: str) -> None:
        """Add a row that judges nothing, and say why."""
        self._row(Row(section, case, *sides, limit, why))

    def _row(self, row: Row) -> None:
        self.rows.append(row)
        seconds = time.monotonic() - self.began
        sys.stdout.write(
            f"[{seconds:6.1f}s] {row.section} / {row.case}: native {row.native} | ours {row.ours}"
            f" | limit {row.limit} | {row.verdict}\n"
        )
        sys.stdout.flush()

    def guard(self, section: str, case: str, action: Callable[[], None]) -> None:
        """Run one case; what it raises is a row, and the run goes on."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  a broken case must not cost the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(f"{type(error).__name__}: {error}".split())[-300:]
            why = f"{text} ({Path(where.filename).name}:{where.lineno})"
            self.add(section, case, NOTHING, "", why)

    @contextmanager
    def container(self, limit: int = LIMIT) -> Iterator[Container]:
        container = Container(self.uuid, limit, self.context)
        try:
            yield container
        finally:
            container.remove()

    def quiet(self) -> None:
        """Wait until no process of an earlier case is left on the card."""
        end = time.monotonic() + 3
        while self.nvml.processes() and time.monotonic() < end:
            time.sleep(0.01)

    @contextmanager
    def side(
        self,
        *,
        ours: bool,
        workers: int = 1,
        torch_python: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Iterator[list[Worker]]:
        """Give fresh workers, all native or all in one container, with the judge reset."""
        self.quiet()
        with self.container() as container:
            extra = {**(env or {}), **(container.env if ours else {})}
            crew = [Worker(extra, torch_python) for _ in range(workers)]
            self.sampler.reset()
            try:
                yield crew
            finally:
                for worker in crew:
                    worker.kill()


def find_torch_python() -> str | None:
    """Return GPU_PYTHON, or a python3 that has torch."""
    given = os.environ.get("GPU_PYTHON")
    for python in [given] if given else ["python3", sys.executable]:
        found = shutil.which(python)
        look = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
        if found and subprocess.run([found, "-c", look], check=False, timeout=60).returncode == 0:
            return found
    return None
