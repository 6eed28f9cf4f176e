"""Machines of the test cluster, and the programs that run in them.

A machine is a holder process (see holder.py) with namespaces of its own and a folder that is its
root file system. Programs enter it with nsenter and belong to the cluster's control group from
their first instruction, so ending the cluster needs no list of what was started.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.e2e.cluster import cgroups, layout, processes, programs
from tests.e2e.cluster.processes import Process

STOP_S = 15
# A shell joins the control group and becomes nsenter, so there is no moment outside of the group.
JOIN = 'echo 0 > "$1" && shift && exec "$@"'


class MachineError(Exception):
    """A machine or a program in it did not do what it was started for; the log is named."""


@dataclass(frozen=True)
class Machine:
    cluster: layout.Layout
    name: str
    init: Process

    @property
    def folder(self) -> Path:
        return self.cluster.machine_folder(self.name)

    @property
    def root(self) -> Path:
        """Its root as seen from here, mounts included. Short enough for paths of sockets."""
        return Path(f"/proc/{self.init.pid}/root")

    def log(self, program: str) -> Path:
        return self.folder / "logs" / f"{program}.log"

    def entering(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """Give the command line that runs a command in this machine."""
        environment = {"PATH": programs.search_path(), "HOME": "/root", **(env or {})}
        return [
            *_joining(self.cluster, self.name),
            *("nsenter", "--target", str(self.init.pid)),
            *("--mount", "--net", "--pid", "--uts", "--ipc", "--"),
            *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *command,
        ]

    def run(self, *command: str, stdin: str | None = None, pass_fds: Sequence[int] = ()) -> str:
        """Run a command in the machine to its end; a failure names command and output."""
        done = subprocess.run(
            self.entering(command),
            input=(stdin or "").encode(),
            capture_output=True,
            check=False,
            pass_fds=pass_fds,
        )
        return self._output_of(command, done)

    def run_with(self, stdin: BinaryIO, *command: str) -> str:
        """Run a command that reads a file of ours, which the machine does not see."""
        done = subprocess.run(self.entering(command), stdin=stdin, capture_output=True, check=False)
        return self._output_of(command, done)

    def _output_of(self, command: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> str:
        if done.returncode:
            raise MachineError(
                f"{self.name}: `{' '.join(command)}` failed with exit {done.returncode}: "
                f"{(done.stderr or done.stdout).decode(errors='replace').strip()}"
            )
        return done.stdout.decode(errors="replace")

    def start(
        self, program: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Daemon:
        """Start a program that stays; its output goes to the machine's log of that name."""
        entering = self._spawn(program, self.entering(command, env))
        pid = _only_child(entering, self.log(program))
        return self._noted(program, pid, command=list(command), env=dict(env or {}))

    def start_beside(self, program: str, command: Sequence[str]) -> Daemon:
        """Start a program of ours in the machine's network only: it sees this machine's files."""
        enter = ("nsenter", "--target", str(self.init.pid), "--net", "--")
        return self._noted(
            program,
            self._spawn(program, [*_joining(self.cluster, self.name), *enter, *command]).pid,
        )

    def _spawn(self, program: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        self.log(program).parent.mkdir(parents=True, exist_ok=True)
        with self.log(program).open("ab") as log:
            spawned = subprocess.Popen(
                command,
                cwd=layout.CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _spawned.append(spawned)
        return spawned

    def _noted(self, program: str, pid: int, **how: object) -> Daemon:
        process = Process.of(pid)
        self._note(program).write_text(json.dumps(dataclasses.asdict(process) | how))
        return Daemon(self, program, process)

    def daemon(self, program: str) -> Daemon:
        """Find a program that an earlier process started here."""
        try:
            note = json.loads(self._note(program).read_text())
        except FileNotFoundError:
            known = ", ".join(sorted(p.stem for p in (self.folder / "programs").glob("*.json")))
            raise MachineError(f"{self.name} runs no {program}; it runs: {known}") from None
        return Daemon(self, program, Process(note["pid"], note["started"]))

    def end(self, program: str) -> None:
        """Stop a program for good: nobody expects it to be alive any more."""
        self.daemon(program).stop()
        self._note(program).unlink()

    def daemons(self) -> list[Daemon]:
        return [self.daemon(p.stem) for p in sorted((self.folder / "programs").glob("*.json"))]

    def restart(self, program: str) -> Daemon:
        """Stop a program and start it as it was started before."""
        self.daemon(program).stop()
        return self.start_again(program)

    def start_again(self, program: str) -> Daemon:
        """Start a program that was stopped as it was started before."""
        note = json.loads(self._note(program).read_text())
        return self.start(program, note["command"], note["env"])

    def _note(self, program: str) -> Path:
        folder = self.folder / "programs"
        folder.mkdir(exist_ok=True)
        return folder / f"{program}.json"


@dataclass(frozen=True)
class Daemon:
    machine: Machine
    program: str
    process: Process

    def alive(self) -> bool:
        return self.process.alive()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait for its end; it is killed where it does not listen."""
        self.process.signal(number)
        deadline = time.monotonic() + STOP_S
        while self.alive():
            if time.monotonic() > deadline:
                self.process.signal(signal.SIGKILL)
            time.sleep(0.02)

    def last_lines(self, count: int = 15) -> str:
        lines = self.machine.log(self.program).read_text(errors="replace").splitlines()
        return "\n  ".join(lines[-count:])


def start_machine(
    cluster: layout.Layout, name: str, binds: Sequence[str], *, lifeline: int | None
) -> Machine:
    """Start a machine on its prepared root; with a lifeline it ends when that pipe closes."""
    cgroups.create(cluster.group, name)
    folder = cluster.machine_folder(name)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    command = [
        *_joining(cluster, name),
        *(sys.executable, "-m", "tests.e2e.cluster.holder", str(folder / "root"), name),
        *("none" if lifeline is None else "stdin", *binds),
    ]
    with (folder / "logs/machine.log").open("ab") as log:
        holder = subprocess.Popen(
            command,
            cwd=layout.CHECKOUT,
            stdin=subprocess.DEVNULL if lifeline is None else lifeline,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert holder.stdout is not None
    answer = holder.stdout.readline()
    holder.stdout.close()
    if not answer:
        raise MachineError(
            f"machine {name} did not start: {(folder / 'logs/machine.log').read_text().strip()}"
        )
    _spawned.append(holder)
    init = Process.of(json.loads(answer)["pid"])
    (folder / "init.json").write_text(json.dumps(dataclasses.asdict(init)))
    return Machine(cluster, name, init)


def find_machine(cluster: layout.Layout, name: str) -> Machine | None:
    """Find a machine that runs; None where it never started or is gone."""
    try:
        note = json.loads((cluster.machine_folder(name) / "init.json").read_text())
    except FileNotFoundError:
        return None
    init = Process(note["pid"], note["started"])
    return Machine(cluster, name, init) if init.alive() else None


# What we started stays known until we end: an unknown child that ended would be a warning.
_spawned: list[subprocess.Popen[bytes]] = []


def _joining(cluster: layout.Layout, machine: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", JOIN, "sh", cgroups.joining(cluster.group, machine))


def _only_child(parent: subprocess.Popen[bytes], log: Path) -> int:
    """Find the program behind nsenter, which waits for it outside of the machine."""
    while True:
        if parent.poll() is not None:
            raise MachineError(
                f"a program ended at once with exit {parent.returncode}; {log.name} says:\n  "
                + "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
            )
        if children := processes.children_of(parent.pid):
            return children[0]
        time.sleep(0.01)
