"""The judge: a process without preload that keeps NVML's highest values.

Questions on stdin: `reset` forgets, and leaves out the processes that are there now; `read` answers
with the peaks since then; `rest` does the same and then waits for the next `reset`.

NVML may ask process after process: memory that one gives back and another takes meanwhile is then
in the sum twice. `lasting` is the highest sum of what each had in two samples in a row. Whether
this happens on a machine is measured (sections/processes.py) before `lasting` is believed.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import Any

from tests.gpu.driver import Nvml
from tests.gpu.workers import ROOT, module_command


class Peaks:
    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.before = set(nvml.processes())
        self.base = nvml.memory()[2]
        self.sum = self.lasting = self.device = self.last = self.samples = 0
        self.listed: dict[int, int] = {}
        self.at_peak: list[int] = []
        self.began = time.perf_counter()

    def look(self) -> None:
        listed = {
            pid: used for pid, used in self.nvml.processes().items() if pid not in self.before
        }
        self.last = sum(listed.values())
        if self.last > self.sum:
            self.sum = self.last
            self.at_peak = sorted(listed.values())
        both = sum(min(used, self.listed.get(pid, 0)) for pid, used in listed.items())
        self.lasting = max(self.lasting, both)
        self.listed = listed
        self.samples += 1
        if self.samples % 8 == 0:
            self.device = max(self.device, self.nvml.memory()[2] - self.base)

    def as_json(self) -> str:
        self.look()
        self.device = max(self.device, self.nvml.memory()[2] - self.base)
        rate = self.samples / (time.perf_counter() - self.began)
        found = {
            "sum": self.sum,
            "lasting": self.lasting,
            "at_peak": self.at_peak,
            "device": self.device,
            "last": self.last,
            "rate": rate,
        }
        return json.dumps(found) + "\n"


def serve() -> None:
    nvml = Nvml()
    peaks: Peaks | None = None
    while True:
        if peaks is not None:
            peaks.look()
        if not select.select([sys.stdin], [], [], 0.001 if peaks else None)[0]:
            continue
        question = sys.stdin.readline().strip()
        if question == "reset":
            peaks = Peaks(nvml)
            sys.stdout.write("{}\n")
        elif question and peaks is not None:
            sys.stdout.write(peaks.as_json())
            peaks = None if question == "rest" else peaks
        else:
            return
        sys.stdout.flush()


class Sampler:
    """The runner's end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            module_command(sys.executable, "tests.gpu.sampler", site=False),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def _ask(self, question: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def reset(self) -> None:
        self._ask("reset")

    def read(self) -> dict[str, Any]:
        return self._ask("read")

    def rest(self) -> dict[str, Any]:
        return self._ask("rest")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


if __name__ == "__main__":
    serve()
