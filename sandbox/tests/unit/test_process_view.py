"""The stand-in /proc of a node: who is in it, and what hami's monitor reads there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami.monitor.processes import Processes
from hami.node.proc import CgroupPod
from hami_sandbox.process_view import ProcessViews

_UID = "118db744-f847-4d10-b090-e24103f58853"
_ID = "ab" * 32


class Machine:
    """A /proc and a runtime's folder, made of files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.runtime = folder / "runtime"
        self.view = folder / "view"
        place = self.runtime / "containers" / _ID
        place.mkdir(parents=True)
        (place / "spec.json").write_text(json.dumps({"id": _ID, "pod_uid": _UID, "argv": ["x"]}))
        self.views = ProcessViews({self.runtime: self.view}, folder=self.proc)

    def start(self, pid: int, *, env: str = "", parent: int = 1, start: int = 5) -> None:
        place = self.proc / str(pid)
        place.mkdir(parents=True, exist_ok=True)
        between = " ".join("0" * 17)
        (place / "stat").write_text(f"{pid} (a b) S {parent} {between} {start} 0\n")
        (place / "status").write_text(f"Name:\tx\nVmSize:\t10 kB\nNSpid:\t{pid}\n")
        (place / "mountinfo").write_text("1 2 3:4 / / rw - ext4 /dev/x rw\n")
        (place / "environ").write_bytes(b"A=1\0" + env.encode() + b"\0")

    def end(self, pid: int) -> None:
        for file in (self.proc / str(pid)).iterdir():
            file.unlink()
        (self.proc / str(pid)).rmdir()

    def shown(self) -> list[int]:
        self.views.update()
        return sorted(int(each.name) for each in self.view.iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.start(10)
    made.start(20, env=f"HAMI_SANDBOX_CONTAINER={_ID}")
    return made


def test_only_processes_of_containers_are_shown(machine: Machine) -> None:
    assert machine.shown() == [20]


def test_the_monitor_finds_pod_and_container(machine: Machine) -> None:
    machine.views.update()
    trace = Processes(machine.view).trace(20)
    assert trace is not None
    assert trace.pods == (CgroupPod(_UID, _ID),)
    assert Processes(machine.view).trace(10) is None


def test_a_child_with_an_empty_environment_belongs_to_its_parent(machine: Machine) -> None:
    machine.start(30, parent=20)
    machine.start(40, parent=30)
    assert machine.shown() == [20, 30, 40]


def test_a_process_that_has_ended_is_gone(machine: Machine) -> None:
    machine.views.update()
    machine.end(20)
    assert machine.shown() == []
    machine.start(20, start=9)  # the same number, and nobody's
    assert machine.shown() == []


def test_a_process_becomes_a_containers_by_exec(machine: Machine) -> None:
    machine.views.update()
    machine.start(10, env=f"HAMI_SANDBOX_CONTAINER={_ID}")
    assert machine.shown() == [10, 20]


def test_a_container_of_another_node_is_not_shown(machine: Machine) -> None:
    machine.start(50, env="HAMI_SANDBOX_CONTAINER=elsewhere")
    assert machine.shown() == [20]
