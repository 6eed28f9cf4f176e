"""One replica: a kube-scheduler and a `hami scheduler`, as in one pod.

It is a machine of the cluster (own host name, network, processes) in which both programs, the
supervisors that keep them alive and, where a test wants it, a proxy run. So the pair's 127.0.0.1 is
its own, its leases carry its host name, and whatever it asks the API server comes from its address.
The programs see this machine's files: the product runs from the checkout, in the tests' Python.

Everything ends with the machine: with `end`, with the cluster, and with the test runner however
that dies (the machine watches a pipe of it).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cluster import kernel, layout, network, processes
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machines import Machine, MachineError, start_machine
from tests.e2e.cluster.processes import Process
from tests.e2e.parts import catalogue
from tests.kubeapi.client import wait_for

KUBE_SCHEDULER = "kube-scheduler"
HAMI = "hami"
PAIR = (KUBE_SCHEDULER, HAMI)
STARTED_S = 60
REQUEST_S = 30.0
FIRST_ADDRESS = 100


class Place(layout.Node):
    """Where a replica is on the cluster's network; real nodes have the addresses below."""

    @property
    def name(self) -> str:
        return f"sched-{self.number}"

    @property
    def address(self) -> str:
        return f"10.240.0.{FIRST_ADDRESS + self.number}"


class Answer(NamedTuple):
    status: int
    body: str


class Replica:
    """A machine for a pair of programs. `start` makes it, `run` starts the programs in it."""

    def __init__(self, cluster: Cluster, place: Place, machine: Machine) -> None:
        self.cluster = cluster
        self.place = place
        self.machine = machine
        self._entered: dict[str, Process] = {}

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def address(self) -> str:
        return self.place.address

    @property
    def folder(self) -> Path:
        """Its files: configurations, histories of its programs."""
        return self.machine.folder / "files"

    @classmethod
    def start(cls, cluster: Cluster, number: int, *, lifeline: int) -> Replica:
        place = Place(number, layout.Runtime.CONTAINERD_2)
        folder = cluster.layout.machine_folder(place.name)
        shutil.rmtree(folder, ignore_errors=True)
        root = folder / "root"
        root.mkdir(parents=True)
        (folder / "files").mkdir()
        for link in ("bin", "sbin", "lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        debian = catalogue.folder(catalogue.debian_root())
        machine = start_machine(
            cluster.layout, place.name, [f"{debian}/usr:/usr:ro"], lifeline=lifeline
        )
        network.connect(cluster.control_plane, machine, place, cluster.layout.nodes)
        return cls(cluster, place, machine)

    def run(
        self, program: str, command: Sequence[str], env: Mapping[str, str], *, probe_url: str = ""
    ) -> None:
        """Start a program under a supervisor; without an address to probe it is never probed."""
        environment = {"PATH": os.environ["PATH"], "HOME": "/root", **env}
        self.probe(program, on=bool(probe_url))
        entered = self.machine.start_beside(
            program,
            [
                *("nsenter", "--target", str(self.machine.init.pid), "--uts", "--ipc", "--pid"),
                *("--", "env", "-i", *(f"{key}={value}" for key, value in environment.items())),
                *(sys.executable, "-m", "tests.e2e.install.supervisor"),
                *(str(self.folder), program, probe_url, *command),
            ],
        )
        self._entered[program] = entered.process
        self.await_alive(program)

    def end(self) -> None:
        """End the machine and all in it; its logs stay until the cluster goes down."""
        self.machine.init.signal(signal.SIGKILL)
        with contextlib.suppress(MachineError):
            self.cluster.control_plane.run("ip", "link", "del", self.name)
        for process in (self.machine.init, *self._entered.values()):
            wait_for(f"process {process.pid} of {self.name} to end", _ended(process), STARTED_S)

    # What it does.

    def pid(self, program: str) -> int | None:
        """Give the program's process as this machine numbers it; None between two starts."""
        # nsenter waits outside for the supervisor, whose only child is the program.
        for supervisor in processes.children_of(self._entered[program].pid):
            for child in processes.children_of(supervisor):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if Process.of(child).alive():
                        return child
        return None

    def pids(self) -> dict[str, int | None]:
        return {program: self.pid(program) for program in self._entered}

    def alive(self, program: str) -> bool:
        return self.pid(program) is not None

    def await_alive(self, program: str, *, other_than: int | None = None) -> int:
        """Wait for the program, or for its next start; give its process."""

        def started() -> int | None:
            found = self.pid(program)
            return None if found == other_than else found

        return wait_for(f"{program} of {self.name} to start", started, STARTED_S, 0.05)

    def kill(self, program: str, number: int = signal.SIGKILL) -> int | None:
        """Send a signal; give the process that it went to."""
        pid = self.pid(program)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def restart(self, program: str) -> int:
        """End the program in order and wait for its next start."""
        before = self.kill(program, signal.SIGTERM)
        return self.await_alive(program, other_than=before)

    @contextlib.contextmanager
    def stopped(self, *programs: str) -> Iterator[None]:
        """Hold programs still, as a machine that swaps does; afterwards they know of nothing."""
        held = [(program, self.kill(program, signal.SIGSTOP)) for program in programs]
        try:
            yield
        finally:
            for program, pid in held:
                if pid is not None and self.pid(program) == pid:
                    os.kill(pid, signal.SIGCONT)

    def probe(self, program: str, *, on: bool) -> None:
        """Switch the liveness probe; a program that does not answer is killed only while it is on.

        A program that has no address to probe must stay off.
        """
        switch = self.folder / f"{program}.probed"
        if on:
            switch.touch()
        else:
            switch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def unprobed(self, *programs: str) -> Iterator[None]:
        for program in programs:
            self.probe(program, on=False)
        try:
            yield
        finally:
            for program in programs:
                self.probe(program, on=True)

    # What it says.

    def http(
        self,
        path: str,
        port: int,
        *,
        method: str = "GET",
        body: bytes | None = None,
        timeout: float = REQUEST_S,
    ) -> Answer:
        """Ask one of its programs on its own loopback."""
        with kernel.network_of(self.machine.init.pid):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
            try:
                connection.request(method, path, body=body)
                answer = connection.getresponse()
                return Answer(answer.status, answer.read().decode())
            finally:
                connection.close()

    def log_size(self, program: str) -> int:
        """Mark a place in a log, for `logs`."""
        return self.machine.log(program).stat().st_size

    def logs(self, program: str, since: int = 0) -> list[str]:
        with self.machine.log(program).open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace").splitlines()

    def history(self, program: str) -> list[dict[str, Any]]:
        """Tell what the supervisor did: started, ended, does not answer, each with its time."""
        lines = (self.folder / f"{program}.history").read_text().splitlines()
        return [json.loads(line) for line in lines]


def _ended(process: Process) -> Any:
    return lambda: not process.alive()


def now() -> float:
    """Give the time as the audit log and the histories write it."""
    return time.time()
