"""The stand-in driver counts memory as a real H200 does, row by row.

A program runs on the stand-in alone, without libvgpu; the judge is NVML's list of processes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native import building
from tests.native.container import CONTEXT, SANITIZER, Build, Node, build_in_use, cards
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

KIB = 1 << 10
PAGE = 2 * MIB
CHUNK = 32 * MIB
SIZE = 512 * MIB
NOT_INITIALIZED = 3
UNKNOWN = 999
RESERVED, USED = 5, 7
DEFERRED = 0x80


class Machine:
    """A node with one card, and programs on it that no container holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node(folder / "node", cards(1))
        self.build: Build = build_in_use()
        self.programs: list[Probe] = []

    @property
    def environment(self) -> dict[str, str]:
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.build.folder / "fakegpu"),
            "FAKEGPU_DIR": str(self.node.folder),
        }
        if self.build.sanitized is not None:
            env |= self.build.sanitized.environment(self.folder / "sanitizer")
        return env

    def program(self) -> Probe:
        wrapper = () if self.build.sanitized is None else self.build.sanitized.wrapper
        command = [*wrapper, str(self.build.folder / "probe")]
        noise = self.folder / f"stderr-{len(self.programs)}"
        self.programs.append(Probe(command, self.environment, noise))
        return self.programs[-1].start()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    noises = [program.noise for program in made.programs]
    for program in made.programs:
        program.kill()
    assert not any(noises)
    assert not building.reports(tmp_path / "sanitizer")


@pytest.fixture
def program(machine: Machine) -> Probe:
    return machine.program()


def has(program: Probe) -> int:
    """Give what the driver counts for a process beyond its context."""
    return program.memory().processes[program.pid] - CONTEXT


def test_context_costs_the_same_each_time_and_is_given_back(program: Probe) -> None:
    assert has(program) == 0
    program.do("take context second 0")
    assert has(program) == CONTEXT
    program.do("give second")
    assert has(program) == 0
    program.do("release 0")
    assert program.memory().used == 0


@pytest.mark.parametrize(
    ("sizes", "pages"),
    [
        ([1], 1),
        ([MIB, MIB], 1),
        ([MIB, MIB, 512], 2),
        ([MIB + 1], 1),
        ([MIB + 1, MIB + 1], 2),
        ([3 * MIB], 2),
        ([64 * KIB] * 32, 1),
        ([64 * KIB] * 33, 2),
        ([513] * 2048, 1),
        ([513] * 2049, 2),
        ([700 * KIB, 700 * KIB, 600 * KIB], 1),
    ],
)
def test_linear_memory_is_counted_in_pages(program: Probe, sizes: list[int], pages: int) -> None:
    for number, size in enumerate(sizes):
        program.do(f"take alloc {number} {size}")
    assert has(program) == pages * PAGE
    for number in range(len(sizes)):
        program.do(f"give {number}")
    assert has(program) == 0


def test_survivor_keeps_its_page(program: Probe) -> None:
    for number in range(32):
        program.do(f"take alloc {number} {64 * KIB}")
    for number in range(31):
        program.do(f"give {number}")
    assert has(program) == PAGE
    program.do("give 31")
    assert has(program) == 0


@pytest.mark.parametrize("seed", range(3))
def test_linear_memory_is_the_pages_under_living_pointers(program: Probe, seed: int) -> None:
    dice = random.Random(seed)
    living: dict[int, tuple[int, int]] = {}
    for step in range(300):
        if living and dice.random() < 0.45:
            name = dice.choice(list(living))
            program.do(f"give {name}")
            del living[name]
        else:
            size = int(2 ** dice.uniform(8, 25))
            living[step] = (program.number(f"take alloc {step} {size}"), size)
        if step % 50 == 49:
            pages = {
                page
                for start, size in living.values()
                for page in range(start // PAGE, (start + size - 1) // PAGE + 1)
            }
            assert has(program) == len(pages) * PAGE
    ends = sorted((start, start + size) for start, size in living.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


@pytest.mark.parametrize(("width", "rows", "size"), [(100, 4096, 2), (513, 4096, 4), (512, 2, 2)])
def test_pitch_is_rows_of_512_bytes(program: Probe, width: int, rows: int, size: int) -> None:
    program.do(f"pitch rows {width} {rows} 4")
    assert has(program) == size * MIB


def test_managed_memory_is_on_the_card_but_in_no_account(program: Probe) -> None:
    program.do(f"take managed buffer {100 * MIB}")
    assert has(program) == 0
    assert program.memory().used == CONTEXT + 100 * MIB
    program.do("give buffer")
    assert program.memory().used == CONTEXT


def test_pool_grows_by_chunks_and_shrinks_when_somebody_waits(program: Probe) -> None:
    program.do(f"take async small {MIB}")
    assert has(program) == CHUNK
    program.do(f"take async large {40 * MIB}")
    assert has(program) == 2 * CHUNK == program.number(f"pool attribute default {RESERVED}")
    assert program.number(f"pool attribute default {USED}") == 41 * MIB
    program.do("give large")
    program.do("give small")
    assert has(program) == 2 * CHUNK
    program.do("ctx sync")
    assert has(program) == 0 == program.number(f"pool attribute default {RESERVED}")


def test_pieces_of_a_pool_lie_across_chunks(program: Probe) -> None:
    for number in range(64):
        program.do(f"take async {number} {3 * MIB}")
    assert has(program) == 6 * CHUNK == 64 * 3 * MIB


def test_freed_block_is_reused_by_its_own_stream_only_until_somebody_waits(program: Probe) -> None:
    program.do("stream create one")
    program.do("stream create other")
    streams = has(program)
    program.do(f"pool threshold default {GIB}")
    program.do(f"take async:one first {CHUNK}")
    program.do("freeasync first one")
    program.do(f"take async:one again {CHUNK}")
    assert has(program) - streams == CHUNK
    program.do("freeasync again one")
    program.do(f"take async:other elsewhere {CHUNK}")
    assert has(program) - streams == 2 * CHUNK
    program.do("stream sync one")
    program.do(f"take async:other more {CHUNK}")
    assert has(program) - streams == 2 * CHUNK


def test_threshold_and_trim_keep_whole_chunks(program: Probe) -> None:
    program.do(f"pool threshold default {GIB}")
    program.do(f"take async buffer {4 * CHUNK}")
    program.do("give buffer")
    program.do("ctx sync")
    assert has(program) == 4 * CHUNK
    program.do(f"pool trim default {CHUNK + 1}")
    assert has(program) == 2 * CHUNK
    program.do("pool trim default 0")
    assert has(program) == 0


def test_pool_with_a_largest_size_refuses_more(program: Probe) -> None:
    program.do(f"pool create small {2 * CHUNK}")
    program.do(f"take pool:small one {2 * CHUNK}")
    assert program.ask("take pool:small two 1").code == OUT_OF_MEMORY
    program.do("give one")
    program.do("pool destroy small")
    assert has(program) == 0


def test_created_memory_counts_until_released_and_unmapped(program: Probe) -> None:
    program.do(f"vmm create handle {3 * PAGE}")
    assert has(program) == 3 * PAGE
    program.do("vmm map range handle")
    program.do("vmm release handle")
    assert has(program) == 3 * PAGE
    program.do("vmm retain again range")
    program.do("vmm unmap range")
    assert has(program) == 3 * PAGE
    program.do("vmm release again")
    assert has(program) == 0


def test_arrays_are_larger_than_their_elements(program: Probe) -> None:
    program.do("array2d large 1000 1000 4")  # rows of 16,000 bytes are kept as 16,384
    assert has(program) == 16 * MIB
    program.do(f"array3d twin 1000 1000 0 4 {DEFERRED}")
    assert has(program) == 16 * MIB
    program.do("give large")
    for number in range(4):  # 512 KiB each: four to a page
        program.do(f"array2d {number} 128 256 4")
    assert has(program) == PAGE
    program.do("array2d another 128 256 4")
    assert has(program) == 2 * PAGE
    program.do("mipmap levels 1024 1024 3")
    assert has(program) == 2 * PAGE + 6 * MIB


@pytest.mark.parametrize(("count", "side", "size"), [(10, 665, 12), (10, 496, 6), (20, 120, 0.4)])
def test_mipmaps_cost_what_was_measured(program: Probe, count: int, side: int, size: float) -> None:
    for number in range(count):
        program.do(f"mipmap {number} {4 * side} {side} {side.bit_length()}")  # of 4 bytes
    assert has(program) == count * size * MIB


def test_stack_limit_is_taken_for_all_threads_and_given_back(program: Probe) -> None:
    program.do(f"limit stack {16 * KIB}")
    assert has(program) == 15 * KIB * 132 * 2048
    program.do("limit stack 1024")
    assert has(program) == 0


def test_context_takes_all_its_memory_with_it(program: Probe) -> None:
    program.do("ctx create second 0")
    for kind in ("alloc", "managed", "array2d", "mipmap", "stream", "async"):
        program.do(f"take {kind} {kind} {8 * MIB}")
    program.do("ctx destroy second")
    assert program.memory().used == CONTEXT + CHUNK  # pools belong to the card
    program.do("release 0")
    assert program.memory().used == 0


def test_full_card_refuses_and_takes_again_after_a_free(program: Probe) -> None:
    filled = program.fill("alloc", GIB)
    assert (filled.code, filled.function) == (OUT_OF_MEMORY, "cuMemAlloc_v2")
    assert filled.bytes == 139 * GIB
    program.do("drop")
    assert has(program) == 0


def test_threads_do_not_lose_count(program: Probe) -> None:
    kinds = "alloc,async,vmmkept,vmmlost,array2d,mipmap,managed,host"
    assert program.do(f"threads 4 {kinds} 100 {KIB} {4 * MIB}") == ["0"]
    program.do("ctx sync")
    assert has(program) == 0


def test_bytes_come_back(program: Probe) -> None:
    program.do(f"take alloc buffer {GIB}")
    program.do("set buffer 171 16")
    assert program.do("get buffer 4") == ["abababab"]
    program.do(f"set buffer 205 {GIB}")
    assert program.do("get buffer 4") == ["cdcdcdcd"]


def test_child_of_an_initialised_process_has_no_cuda(program: Probe) -> None:
    program.do(f"take alloc buffer {SIZE}")
    for way in ("fork", "clone"):
        assert f"error {NOT_INITIALIZED}" in program.ask(f"{way} init").text
    assert has(program) == SIZE


def send(maker: Probe, taker: Probe, folder: Path) -> None:
    maker.tell(f"vmm-send shared {folder}/socket")
    taker.do(f"vmm-receive shared {folder}/socket {SIZE}")
    assert maker.hear("vmm-send").ok


def test_shared_memory_is_counted_for_its_maker(machine: Machine) -> None:
    maker, taker = machine.program(), machine.program()
    maker.do(f"vmm create shared {SIZE}")
    maker.do("vmm map here shared")
    maker.do("set here 205 16")
    send(maker, taker, machine.folder)
    taker.do("vmm map there shared")
    assert taker.do("get there 2") == ["cdcd"]
    assert (has(maker), has(taker)) == (SIZE, 0)
    maker.do("vmm unmap here")
    maker.do("vmm release shared")
    assert (has(maker), has(taker)) == (SIZE, 0)
    taker.do("vmm unmap there")
    taker.do("vmm release shared")
    maker.info()
    assert (has(maker), has(taker)) == (0, 0)


def test_shared_memory_outlives_its_maker(machine: Machine) -> None:
    maker, taker = machine.program(), machine.program()
    maker.do(f"vmm create shared {SIZE}")
    send(maker, taker, machine.folder)
    maker.kill()
    bystander = machine.program()
    judged = bystander.memory()
    assert judged.processes == {taker.pid: CONTEXT + SIZE, bystander.pid: CONTEXT}
    assert judged.used == 2 * CONTEXT + SIZE
    bystander.kill()
    taker.info()
    assert has(taker) == SIZE
    assert taker.memory().used == CONTEXT + SIZE
    taker.kill()
    assert machine.program().memory().used == CONTEXT


def test_ipc_handle_shows_another_process_memory(machine: Machine) -> None:
    maker, taker = machine.program(), machine.program()
    maker.do(f"take alloc before {64 * KIB}")
    maker.do(f"take alloc buffer {64 * KIB}")
    maker.do("set buffer 171 16")
    [handle] = maker.do("ipc get buffer")
    taker.do(f"ipc open window {handle}")
    assert taker.do("get window 4") == ["abababab"]
    assert (has(maker), has(taker)) == (PAGE, 0)
    taker.do("ipc close window")
    maker.do("give buffer")
    maker.do("give before")
    assert has(maker) == 0


def test_lost_card_fails_every_call(machine: Machine) -> None:
    program = machine.program()
    machine.node.faults(f"card {machine.node.cards[0].uuid} lost")
    assert program.ask("take alloc buffer 1").code == UNKNOWN
    assert program.ask("info").code == UNKNOWN


def test_hidden_memory_is_not_free(machine: Machine) -> None:
    program = machine.program()
    machine.node.faults(f"card {machine.node.cards[0].uuid} hide {100 * GIB}")
    free, total = program.info()
    assert (free, total) == (40 * GIB - CONTEXT, 140 * GIB)
    assert program.fill("alloc", GIB).bytes == 39 * GIB


LOOKUP = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
answers = []
for name, version, flags in json.loads(sys.argv[1]):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    code = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    exported = [
        name + kind + mode
        for kind in ("", "_v2", "_v3", "_v4")
        for mode in ("", "_ptsz", "_ptds")
        if hasattr(cuda, name + kind + mode)
        and ctypes.cast(getattr(cuda, name + kind + mode), ctypes.c_void_p).value == found.value
    ]
    answers.append([code, status.value, *exported])
print(json.dumps(answers))
"""


def looked_up(machine: Machine, wanted: list[tuple[str, int, int]]) -> object:
    command = [sys.executable, "-c", LOOKUP, json.dumps(wanted)]
    answer = subprocess.run(
        command, env=machine.environment, check=True, capture_output=True, text=True
    )
    return json.loads(answer.stdout)


@pytest.mark.skipif(bool(SANITIZER), reason="Python itself is not instrumented")
def test_functions_are_found_by_name_version_and_stream_mode(machine: Machine) -> None:
    expected: dict[tuple[str, int, int], list[object]] = {
        ("cuMemAlloc", 3010, 0): [0, 0, "cuMemAlloc"],
        ("cuMemAlloc", 3020, 0): [0, 0, "cuMemAlloc_v2"],
        ("cuMemAlloc", 13000, 2): [0, 0, "cuMemAlloc_v2"],
        ("cuCtxCreate", 13000, 0): [0, 0, "cuCtxCreate_v4"],
        ("cuCtxSynchronize", 12090, 0): [0, 0, "cuCtxSynchronize"],
        ("cuCtxSynchronize", 13000, 0): [0, 0, "cuCtxSynchronize_v2"],
        ("cuMemAllocAsync", 13000, 2): [0, 0, "cuMemAllocAsync_ptsz"],
        ("cuMemcpyHtoD", 13000, 2): [0, 0, "cuMemcpyHtoD_v2_ptds"],
        ("cuMemAllocAsync", 10000, 0): [0, 2],
        ("cuNothing", 13000, 0): [0, 1],
        ("cuMemAlloc", 13010, 0): [1, 0],
    }
    assert looked_up(machine, list(expected)) == list(expected.values())


@pytest.mark.skipif(bool(SANITIZER), reason="Python itself is not instrumented")
def test_old_driver_lacks_functions(machine: Machine) -> None:
    machine.node.faults("missing cuMemAllocAsync_ptsz", "missing cuMemAlloc_v2")
    wanted = [("cuMemAllocAsync", 13000, 2), ("cuMemAlloc", 13000, 0), ("cuMemFree", 13000, 0)]
    assert looked_up(machine, wanted) == [
        [0, 0, "cuMemAllocAsync"],
        [0, 0, "cuMemAlloc"],
        [0, 0, "cuMemFree_v2"],
    ]
    machine.node.faults("missing cuMemAllocAsync", "missing cuMemAllocAsync_ptsz")
    assert looked_up(machine, [("cuMemAllocAsync", 13000, 2)]) == [[0, 1]]
