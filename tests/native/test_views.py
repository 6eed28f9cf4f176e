"""A card's memory and processes as programs in a container see them.

CUDA and NVML must say the same, whoever asks and in whatever shape: the limit is the card, what the
container's processes have is what is used, and nobody else exists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami.wire.file_layout import PROCESS_ENTRY, STATE
from tests.native import container as containers
from tests.native.container import CONTEXT, Container, Node, cards
from tests.native.probing import GIB, MIB, Probe

LIMIT = 4 * GIB
NOT_INITIALIZED = 3
NO_DEVICE = 100
NVML_DRIVER_NOT_LOADED = 9
NVML_INSUFFICIENT_SIZE = 7
NVML_VERSION_MISMATCH = 25

# A program that asks as C programs do, with arguments that the probe never has. It prints what
# `answers` is at its end.
PRELUDE = """
import ctypes, json
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
nvml = ctypes.CDLL("libnvidia-ml.so.1")
answers = {}
def start():
    context = c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
def card():
    device = c_void_p()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)) == 0
    return device
class Old(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong)]
class New(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gpu", c_uint), ("compute", c_uint)]
class Memory(ctypes.Structure):
    _fields_ = [(n, c_ulonglong) for n in ("version", "total", "reserved", "free", "used")]
LISTS = {
    "": Old, "_v2": New, "_v3": New,
}
def processes(device, suffix, room):
    count = c_uint(room)
    list_ = (LISTS[suffix] * room)() if room else None
    code = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses" + suffix)(
        device, byref(count), list_)
    told = list_[: count.value] if code == 0 and room else []
    return [code, count.value, {one.pid: one.used for one in told}]
"""


@contextmanager
def two_processes(folder: Path) -> Iterator[tuple[Container, Probe, Probe]]:
    """Start two processes with 700 and 300 MiB under one limit."""
    with Container(folder, (LIMIT,)) as container:
        first = container.started()
        first.do("take alloc a 700m")
        second = container.started()
        second.do("take alloc b 300m")
        yield container, first, second


def run_script(container: Container, script: str) -> dict[str, object]:
    if containers.SANITIZER:
        pytest.skip("Python itself is not clean under the sanitizers")
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{PRELUDE}\n{script}\nprint(json.dumps(answers))"],
        env=container.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, object] = json.loads(done.stdout)
    return told


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds; the deadline is only for what never will."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_cuda_and_nvml_tell_the_same(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, second):
        assert first.number("total 0") == LIMIT
        free, total = first.info()
        assert total == LIMIT
        assert second.info() == (free, total)
        memory = second.memory()
        assert memory == first.memory()
        assert (memory.total, memory.free, memory.used) == (total, free, total - free)
        assert (memory.total_v2, memory.free_v2, memory.used_v2) == (total, free, total - free)
        assert memory.reserved_v2 == 0
        assert memory.used == container.used()
        assert memory.used >= container.physical() >= 2 * CONTEXT + 1000 * MIB


def test_the_processes_are_the_containers_own_with_their_sums(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, second):
        with container.outsider().start() as stranger:
            stranger.do("take alloc c 64m")
            assert stranger.pid in stranger.memory().processes
            memory = first.memory()
        assert set(memory.processes) == {first.pid, second.pid}
        assert memory.used == sum(memory.processes.values())
        difference = memory.processes[first.pid] - memory.processes[second.pid]
        assert difference == 400 * MIB


def test_a_reader_without_cuda_is_told_the_same_and_takes_no_slot(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, second):
        reader = container.probe()
        assert reader.memory() == first.memory()
        assert {entry.pid for entry in container.state().processes if entry.pid} == {
            first.pid,
            second.pid,
        }


def test_a_reader_is_told_of_the_limit_before_anybody_used_cuda(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        memory = container.probe().memory()
        assert (memory.total, memory.free, memory.used) == (LIMIT, LIMIT, 0)
        assert memory.processes == {}


def test_what_a_killed_process_had_is_free_again(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, second):
        reader = container.probe()
        before = reader.memory()
        second.kill()
        left = before.used - before.processes[second.pid]
        eventually(lambda: reader.memory().used == left)
        assert set(reader.memory().processes) == {first.pid}
        assert first.info() == (LIMIT - left, LIMIT)


def test_a_limit_above_the_card_shows_the_card(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", cards(1, memory=2 * GIB))
    with Container(tmp_path, (LIMIT,), node=node) as container:
        probe = container.started()
        outside = container.outsider()
        with outside.start():
            real_free, real_total = outside.info()
            assert probe.number("total 0") == real_total
            free, total = probe.info()
        assert (free <= real_free + CONTEXT, total) == (True, real_total)
        assert probe.memory().total <= 2 * GIB


def test_a_card_without_a_limit_shows_the_drivers_numbers(tmp_path: Path) -> None:
    with Container(tmp_path, (0,)) as container:
        probe = container.started()
        probe.do("take alloc a 64m")
        with container.outsider().start() as outside:
            assert probe.number("total 0") == outside.number("total 0")
            assert probe.info() == outside.info()
            ours, theirs = probe.memory(), outside.memory()
            assert (ours.total, ours.used) == (theirs.total, theirs.used)


def test_a_lowered_limit_leaves_nothing_free(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, _):
        container.resize(GIB)
        eventually(lambda: first.info() == (0, GIB))
        memory = first.memory()
        assert (memory.total, memory.free, memory.used) == (GIB, 0, GIB)
        # A reader that took the old policy is told what the others enforce now.
        assert first.number("total 0") == GIB


def test_a_long_living_reader_follows_a_raised_limit(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, _):
        reader = container.probe()
        assert reader.memory().total == LIMIT
        container.resize(2 * LIMIT)
        eventually(lambda: first.info()[1] == 2 * LIMIT)
        assert reader.memory().total == 2 * LIMIT


def test_free_is_never_more_than_the_card_has_left(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        probe = container.started()
        card = container.node.cards[0]
        assert probe.info()[0] > 3 * GIB
        container.node.faults(f"card {card.uuid} hide {card.memory - CONTEXT - GIB}")
        with container.outsider() as outside:
            eventually(lambda: outside.memory().free <= GIB)
        free, total = probe.info()
        assert (free <= GIB, total) == (True, LIMIT)


def test_a_card_that_was_not_granted_has_no_memory(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", cards(2))
    with Container(tmp_path, (LIMIT,), node=node) as container:
        probe = container.started()
        assert probe.number("total 0") == LIMIT
        assert probe.number("total 1") == 0
        with container.outsider().start(1):
            memory = probe.memory(1)
        assert (memory.total, memory.free, memory.used, memory.processes) == (0, 0, 0, {})
        assert (memory.total_v2, memory.free_v2, memory.used_v2) == (0, 0, 0)


def test_cards_have_their_own_numbers_in_whatever_order_cuda_counts(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT, 2 * LIMIT)) as container:
        turned = container.probe(names={"CUDA_VISIBLE_DEVICES": "1,0"})
        turned.start(0)
        turned.do("take alloc a 512m")
        assert (turned.number("total 0"), turned.number("total 1")) == (2 * LIMIT, LIMIT)
        free, total = turned.info()
        assert total == 2 * LIMIT
        assert turned.memory(1).free == free
        assert turned.memory(0).used == 0


def test_a_container_without_policy_is_told_that_there_is_no_driver(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        container.policy_path.unlink()
        probe = container.probe()
        assert probe.ask("init").code == NO_DEVICE
        assert probe.ask("total 0").code == NOT_INITIALIZED
        assert probe.ask("nvml-init").code == NVML_DRIVER_NOT_LOADED


def test_hamis_names_limit_the_views_too(tmp_path: Path) -> None:
    names = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region"),
    }
    with Container(tmp_path, None, state="none", names=names) as container:
        probe = container.started()
        free, total = probe.info()
        memory = probe.memory()
        assert (total, memory.total, memory.free) == (2 * GIB, 2 * GIB, free)
        assert container.probe().memory() == memory


def test_an_error_of_the_driver_stays_its_error(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        probe, outside = container.probe(), container.outsider()
        with outside:
            for command in ("info", "total 0", "init", "info", "total 99", "nvml 99"):
                assert probe.ask(command) == outside.ask(command), command
        told = run_script(
            container,
            "device = card()\n"
            "wrong = Memory(version=1)\n"
            "answers['version'] = nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(wrong))\n"
            "answers['total'] = wrong.total\n",
        )
        assert told == {"version": NVML_VERSION_MISMATCH, "total": 0}


def test_null_arguments_are_tolerated(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        told = run_script(
            container,
            "start()\n"
            "free, total = c_size_t(), c_size_t()\n"
            "codes = [cuda.cuMemGetInfo_v2(None, byref(total)),\n"
            "         cuda.cuMemGetInfo_v2(byref(free), None),\n"
            "         cuda.cuMemGetInfo_v2(None, None)]\n"
            "answers.update(codes=codes, total=total.value, some=free.value > 0)\n",
        )
        assert told == {"codes": [0, 0, 0], "total": LIMIT, "some": True}


@pytest.mark.parametrize(("limit", "shown"), [(LIMIT + GIB, 2**32 - 1), (GIB, GIB)])
def test_entry_points_of_32_bits_say_the_most_that_they_can(
    tmp_path: Path, limit: int, shown: int
) -> None:
    with Container(tmp_path, (limit,)) as container:
        told = run_script(
            container,
            "start()\n"
            "whole, free, total = c_uint(), c_uint(), c_uint()\n"
            "codes = [cuda.cuDeviceTotalMem(byref(whole), 0),\n"
            "         cuda.cuMemGetInfo(byref(free), byref(total))]\n"
            "answers.update(codes=codes, whole=whole.value, total=total.value,\n"
            "               less=free.value <= total.value)\n",
        )
        assert told == {"codes": [0, 0], "whole": shown, "total": shown, "less": True}


def test_process_lists_of_every_shape_count_as_nvml_does(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (container, first, second):
        expected = {str(pid): had for pid, had in first.memory().processes.items()}
        told = run_script(
            container,
            "device = card()\n"
            "for suffix in LISTS:\n"
            "    answers[suffix] = [processes(device, suffix, room) for room in (0, 1, 2, 9)]\n",
        )
        too_small = [NVML_INSUFFICIENT_SIZE, 2, {}]
        every = [too_small, too_small, [0, 2, expected], [0, 2, expected]]
        assert told == {"": every, "_v2": every, "_v3": every}
        second.kill()
        first.kill()


def test_an_empty_process_list_needs_no_room(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container, container.outsider().start():
        told = run_script(
            container,
            "device = card()\n"
            "for suffix in LISTS:\n"
            "    answers[suffix] = processes(device, suffix, 0)\n",
        )
        assert told == {"": [0, 0, {}], "_v2": [0, 0, {}], "_v3": [0, 0, {}]}


def test_host_pids_are_translated_to_the_containers(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as container:
        probe = container.started()
        container.node.faults("pids shifted 100000")
        with container.outsider() as outside:
            eventually(lambda: set(outside.memory().processes) == {probe.pid + 100000})
        assert probe.memory().processes == {}
        [number] = [
            number
            for number, entry in enumerate(container.state().processes)
            if entry.pid == probe.pid
        ]
        place = (
            STATE.places["slots"][0]
            + number * PROCESS_ENTRY.size
            + PROCESS_ENTRY.places["host_pid"][0]
        )
        with container.state_path.open("r+b") as state:
            os.pwrite(state.fileno(), (probe.pid + 100000).to_bytes(4, "little"), place)
        memory = probe.memory()
        assert memory.processes == {probe.pid: memory.used}


def test_no_view_contradicts_itself_while_others_allocate(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (_, first, second):
        second.do("churn alloc 1 1m 64m")
        for _number in range(40):
            memory = first.memory()
            assert memory.used + memory.free == memory.total == LIMIT
            free, total = first.info()
            assert (0 <= free <= LIMIT, total) == (True, LIMIT)
        assert second.alive
