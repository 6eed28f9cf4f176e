"""Processes and errors of a card, on the stand-in driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hami_sandbox import gpus
from tests.unit.node import stand_in

MIB = 1 << 20

HOLD = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, int(sys.argv[2])) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[3]))) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    gpus.write_node(tmp_path, [("A10", 2)], name="node-u")
    return tmp_path


@pytest.fixture
def run(node: Path, root: Path) -> Callable[[str], Any]:
    return lambda code: stand_in.run(code, node=node, root=root)


@contextmanager
def holding(node: Path, device: int, size: int) -> Iterator[int]:
    """Keep a process that has memory on a card; give its pid."""
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(gpus.driver_folder() / "libcuda.so.1"),
            str(device),
            str(size),
        ],
        env={**os.environ, "FAKEGPU_DIR": str(node)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == "ready\n"
        yield popen.pid
        popen.kill()


def test_processes_and_memory_are_those_of_the_card(run: Callable[[str], Any], node: Path) -> None:
    with holding(node, 1, 512 * MIB) as pid:
        lists, used, idle = run(
            """
nvml = Nvml.open(root)
lists = [[(each.pid, each.memory) for each in nvml.processes(card(i))] for i in (0, 1)]
used = [nvml.memory_used(card(i)) for i in (0, 1)]
result = [lists, used, nvml.utilization(card(1))]
"""
        )
    assert lists[0] == []
    ((found, memory),) = lists[1]
    assert found == pid
    assert memory >= 512 * MIB
    assert used == [0, memory]
    assert idle == [0, 0]


def test_an_older_driver_lists_processes_too(run: Callable[[str], Any], node: Path) -> None:
    gpus.set_faults(
        node,
        [
            f"missing nvmlDeviceGet{kind}RunningProcesses_v3"
            for kind in ("Compute", "Graphics", "MPSCompute")
        ]
        + [
            "missing nvmlDeviceGetMPSComputeRunningProcesses_v2",
            "missing nvmlDeviceGetMemoryInfo_v2",
        ],
    )
    with holding(node, 0, MIB) as pid:
        found, used = run(
            """
nvml = Nvml.open(root)
result = [[each.pid for each in nvml.processes(card(0))], nvml.memory_used(card(0))]
"""
        )
    assert found == [pid]
    assert used >= MIB


def test_samples_of_processes_come_after_the_time_asked_for(
    run: Callable[[str], Any], node: Path
) -> None:
    with holding(node, 0, MIB) as pid:
        samples, later, future, none = run(
            """
nvml = Nvml.open(root)
now = int(time.time() * 1e6)
found = nvml.process_utilization(card(0), 0, now)
samples = [(each.pid, each.compute, each.memory) for each in found]
later = nvml.process_utilization(card(0), now + 10**9, now + 10**9)
future = nvml.process_utilization(card(0), 0, now - 10**9)
result = [samples, later, future, nvml.process_utilization(card(1), 0, now)]
"""
        )
    assert samples == [[pid, 0, 0]]
    assert later == []
    assert future == []  # taken before the clock was set back
    assert none == []


def test_a_driver_that_takes_no_samples_says_so(run: Callable[[str], Any], node: Path) -> None:
    gpus.set_faults(node, ["missing nvmlDeviceGetProcessUtilization"])
    assert run("result = [Nvml.open(root).process_utilization(card(0), 0, 0)]") == [None]


def test_an_xid_names_its_card(run: Callable[[str], Any], node: Path) -> None:
    card = gpus.read_node(node)[1].uuid
    found, silence = run(
        """
watch = Nvml.open(root).watch_xids([card(0), card(1)])
gpus.inject_xid(folder, card(1), 79)
found = watch.wait(10000)
result = [[found.uuid, found.code], watch.wait(1)]
"""
    )
    assert found == [card, 79]
    assert silence is None


def test_a_card_without_xids_is_named_and_the_others_are_heard(
    run: Callable[[str], Any], node: Path
) -> None:
    first, second = (card.uuid for card in gpus.read_node(node))
    gpus.set_faults(node, ["nvmlDeviceRegisterEvents 1 3"])
    unsupported, heard, found = run(
        """
watch = Nvml.open(root).watch_xids([card(0), card(1)])
gpus.inject_xid(folder, card(0), 79)
gpus.inject_xid(folder, card(1), 48)
result = [list(watch.unsupported), sorted(watch.uuids), watch.wait(10000).code]
"""
    )
    assert unsupported == [first]
    assert heard == [second]
    assert found == 48


def test_a_lost_card_ends_the_wait_with_an_error(run: Callable[[str], Any]) -> None:
    error, unsupported, found = run(
        """
nvml = Nvml.open(root)
nvml.cards()
watch = nvml.watch_xids([card(0), card(1)])
gpus.set_faults(folder, [f"card {card(0)} lost"])
try:
    watch.wait(10000)
except NvmlError as caught:
    error = str(caught)
again = nvml.watch_xids([card(0), card(1)])
gpus.inject_xid(folder, card(1), 62)
result = [error, list(again.unsupported) == [card(0)], again.wait(10000).code]
"""
    )
    assert "lost" in error
    assert unsupported
    assert found == 62


def test_closing_waits_for_the_waiter_and_is_final(run: Callable[[str], Any]) -> None:
    assert run(
        """
nvml = Nvml.open(root)
watch = nvml.watch_xids([card(0)])
answers = []
def wait():
    while not closed.is_set():
        answers.append(watch.wait(50))
closed = threading.Event()
thread = threading.Thread(target=wait)
thread.start()
while not answers:
    time.sleep(0.01)
watch.close()
closed.set()
thread.join()
watch.close()
nvml.close()
result = [watch.wait(10000), set(answers) == {None}]
"""
    ) == [None, True]
