"""Keeps one program of a replica alive, as kubelet keeps a container alive.

    python -m tests.e2e.install.supervisor FOLDER NAME PROBE_URL COMMAND ...

A program that ends is started again, later each time. While the file FOLDER/NAME.probed exists the
program's liveness is asked for too, and one that does not answer is killed. What happens is written
to FOLDER/NAME.history, a JSON object a line. The numbers stand in timing.py.

The program is our only child, so that whoever looks for it finds it by us. It shares our standard
output, and the process 1 of our namespace ends us both.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.e2e.install import timing


class Supervisor:
    def __init__(self, folder: Path, name: str, probe_url: str) -> None:
        self._history = folder / f"{name}.history"
        self._probed = folder / f"{name}.probed"
        self._url = probe_url
        # Programs make their own certificates; a probe asks whether they answer, not who they are.
        self._tls = ssl._create_unverified_context()  # noqa: S323 - it answers, whoever it is

    def run_forever(self, command: list[str]) -> None:
        delay = timing.FIRST_RESTART_S
        while True:
            started = time.monotonic()
            code = self._run_once(command)
            if time.monotonic() - started >= timing.STEADY_S:
                delay = timing.FIRST_RESTART_S
            self._note("ended", code=code, restart_in=delay)
            time.sleep(delay)
            delay = min(2 * delay, timing.LONGEST_RESTART_S)

    def _run_once(self, command: list[str]) -> int:
        # Noted first: whoever sees the program finds its start in the history.
        self._note("started")
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        failures = 0
        answered = False
        while True:
            try:
                return program.wait(timing.PROBE_PERIOD_S)
            except subprocess.TimeoutExpired:
                pass
            if not self._probed.exists():
                failures = 0
                continue
            if self._answers():
                failures, answered = 0, True
                continue
            # Before its first answer a program is starting: kubelet's startup probe would wait.
            failures += answered
            if failures >= timing.PROBE_FAILURES:
                self._note("does not answer", failures=failures)
                program.kill()
                return program.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(  # noqa: S310 (the address is the harness's own)
                self._url, timeout=timing.PROBE_TIMEOUT_S, context=self._tls
            ):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def _note(self, event: str, **facts: object) -> None:
        with self._history.open("a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **facts}) + "\n")


def main() -> None:
    folder, name, probe_url, *command = sys.argv[1:]
    Supervisor(Path(folder), name, probe_url).run_forever(command)


if __name__ == "__main__":
    main()
