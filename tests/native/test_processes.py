"""Processes come and go in every way; each keeps its memory while it lives.

The account of a process must not be lost, doubled or inherited: not by fork, vfork, exec, a raw
clone, nor when a restarted container has the same process numbers and the same state file again.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, SLACK, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

LIMIT = 2 * GIB
PIECE = 256 * MIB
NOT_INITIALIZED = 3


def has_the_full_budget(box: Container, probe: Probe, limit: int = LIMIT, less: int = 0) -> None:
    """Check that the only process gets all of the limit (`less` what it has) and no more."""
    filled = probe.fill("alloc", 16 * MIB)
    assert filled.code == OUT_OF_MEMORY
    assert filled.bytes >= limit - less - CONTEXT - SLACK
    assert box.peak() <= limit
    probe.do("drop")


def wait_for(box: Container, physical: int) -> None:
    """Wait until the kernel has buried a process that nobody could wait for."""
    deadline = time.monotonic() + 30
    while box.physical() != physical:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_end(pid: int) -> None:
    """Wait until a process that nobody could wait for has closed all its files.

    A runtime restarts a container after that. Until then the process may hold the library's lock,
    though the driver has its memory back.
    """
    deadline = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(") ")[2][0] not in "ZX":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def children(words: list[str]) -> tuple[int, list[str]]:
    """Take apart the answer of a command that made a process: its number and its answers."""
    pid, *answers = " ".join(words).split(" | ")
    return int(pid), answers


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_child_of_a_cuda_process_leaves_it_alone(tmp_path: Path, way: str) -> None:
    if way == "clone" and SANITIZER:
        pytest.skip("sanitizers do not survive a clone that they do not see")
    with Container(tmp_path, (LIMIT,)) as box:
        parent = box.started()
        parent.do(f"take alloc a {PIECE}")
        for _ in range(3):
            _, answers = children(parent.do(f"{way} take alloc b {PIECE}; info"))
            assert [answer.split()[:2] for answer in answers] == [
                ["error", str(NOT_INITIALIZED)]
            ] * 2
        assert box.used() == box.physical() == CONTEXT + PIECE
        parent.do(f"take alloc b {PIECE}")
        parent.do("free a")
        assert box.used() == box.physical() == CONTEXT + PIECE
        has_the_full_budget(box, parent, less=PIECE)


def test_child_forked_before_cuda_is_a_process_of_its_own(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        parent = box.probe()
        child, answers = children(parent.do(f"background init; device 0; take alloc a {PIECE}"))
        assert [answer.split()[0] for answer in answers] == ["ok"] * 3
        parent.start()
        assert box.used() == box.physical() == 2 * CONTEXT + PIECE
        assert parent.memory().processes == {parent.pid: CONTEXT, child: CONTEXT + PIECE}
        os.kill(child, 9)
        wait_for_end(child)
        wait_for(box, CONTEXT)
        has_the_full_budget(box, parent)


def test_living_child_does_not_keep_what_its_parent_had(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        parent = box.started()
        parent.do(f"take alloc a {PIECE}")
        child, _ = children(parent.do("background pid"))
        parent.kill()
        try:
            has_the_full_budget(box, box.started())
        finally:
            os.kill(child, 9)


@pytest.mark.parametrize("initialised", [False, True])
def test_spawned_program_has_its_own_account(tmp_path: Path, initialised: bool) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        parent = box.probe()
        if initialised:
            parent.start()
            parent.do(f"take alloc a {PIECE}")
        before = box.physical()
        _, answers = children(parent.do(f"spawn init; device 0; take alloc a {PIECE}; info"))
        assert [answer.split()[0] for answer in answers] == ["ok"] * 4
        free = int(answers[3].split()[1])
        assert free == LIMIT - before - CONTEXT - PIECE
        assert box.physical() == before
        if not initialised:
            parent.start()
        assert parent.info()[0] == LIMIT - (before or CONTEXT)


def test_exec_gives_back_and_starts_anew(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"take alloc a {PIECE}")
        pid = probe.number("pid")
        probe.tell("exec")
        assert probe.number("pid") == pid
        assert box.physical() == 0
        probe.start()
        assert probe.info()[0] == LIMIT - CONTEXT
        assert box.used() == box.physical() == CONTEXT
        assert probe.memory().processes == {pid: CONTEXT}
        has_the_full_budget(box, probe)


def test_threads_count_together(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"threads 8 alloc,async,vmmlost,array2d 100 256 {64 * MIB}")
        probe.do("ctx sync")
        assert box.peak() <= LIMIT
        assert box.physical() == CONTEXT
        assert probe.info()[0] == LIMIT - CONTEXT
        has_the_full_budget(box, probe)


def test_threads_of_four_processes_stay_below(tmp_path: Path) -> None:
    limit = 4 * GIB
    with Container(tmp_path, (limit,)) as box:
        probes = [box.started() for _ in range(4)]
        for probe in probes:
            probe.tell(f"threads 4 alloc,async,managed 60 256 {128 * MIB}")
        for probe in probes:
            assert probe.hear("threads").ok
            probe.do("ctx sync")
        assert box.peak() <= limit
        assert box.physical() == 4 * CONTEXT
        assert probes[0].info()[0] == limit - 4 * CONTEXT


def test_threads_do_all_kinds_of_things_at_once(tmp_path: Path) -> None:
    limit = 8 * GIB
    with Container(tmp_path, (limit,)) as box:
        probe = box.started()
        kinds = "stream,graph,pitch,managed,mipmap,array3d,context,vmmkept"
        probe.do(f"threads 6 {kinds} 40 256 {64 * MIB}")
        probe.do("graph trim")
        assert box.physical() <= box.used() <= limit
        assert box.peak() <= limit


def test_forking_between_busy_threads(tmp_path: Path) -> None:
    """As data loaders do: whatever lock a thread held, the child must not wait for it."""
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"forks 3 alloc,async,vmmlost {5 if SANITIZER else 20} 256 {64 * MIB}")
        probe.do("ctx sync")
        assert box.physical() == CONTEXT
        has_the_full_budget(box, probe)


def test_many_first_processes_make_one_state(tmp_path: Path) -> None:
    limit = 12 * GIB
    with Container(tmp_path, (limit,)) as box:
        box.state_path.write_bytes(b"left by something else")
        probes = [box.probe() for _ in range(16)]
        for probe in probes:
            probe.tell("init")
            probe.tell("device 0")
        for probe in probes:
            assert probe.hear("init").ok
            assert probe.hear("device 0").ok
        state = box.state()
        assert len({entry.index for entry in state.processes}) == len(probes)
        assert {entry.pid for entry in state.processes} == {probe.pid for probe in probes}
        assert box.used() == box.physical() == len(probes) * CONTEXT


def test_killed_processes_leave_nothing(tmp_path: Path) -> None:
    limit = 3 * GIB
    with Container(tmp_path, (limit,)) as box:
        survivor = box.started()
        for seed in range(3):
            victims = [box.started() for _ in range(3)]
            for number, victim in enumerate(victims):
                victim.tell(f"churn alloc,async,vmmkept {seed * 3 + number + 1} 256 {64 * MIB}")
                assert victim.hear("churn").words == ["churning"]
            for victim in victims:
                victim.kill()
            has_the_full_budget(box, survivor, limit)
        assert box.peak() <= limit


def test_slots_of_the_dead_are_used_again(tmp_path: Path) -> None:
    """Who comes later must count as much as who was there first (slots never move)."""
    with Container(tmp_path, (4 * GIB,)) as box:
        first, second, third = box.started(), box.started(), box.started()
        first.end()
        fourth = box.started()
        for probe in (second, third, fourth):
            probe.do(f"take alloc a {PIECE}")
        used = 3 * (CONTEXT + PIECE)
        assert third.info()[0] == 4 * GIB - used
        assert box.used() == box.physical() == used
        third.refused(f"take alloc b {4 * GIB - used + 2 * MIB}")
        third.do(f"take alloc b {4 * GIB - used - 2 * MIB}")
        assert box.peak() <= 4 * GIB
        assert len({entry.index for entry in box.state().processes}) <= 3


def test_descriptors_closed_by_a_daemon(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        daemon, other = box.started(), box.started()
        daemon.do(f"take alloc a {PIECE}")
        daemon.do("closefds 3 255")
        other.fill("alloc", 16 * MIB)  # looks for the dead when it is refused
        assert box.physical() <= box.used() <= LIMIT
        daemon.do("free a")
        other.fill("alloc", 16 * MIB)
        assert box.peak() <= LIMIT


def test_restarted_container_has_the_same_pids_again(tmp_path: Path) -> None:
    namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if SANITIZER or os.geteuid() != 0:
        pytest.skip("needs root for a pid namespace, and a process that a sanitizer leaves alone")
    with Container(tmp_path, (LIMIT,)) as box:
        for _ in range(3):
            probe = box.probe(before=namespace).start()
            assert probe.number("pid") == 1
            has_the_full_budget(box, probe)
            probe.do(f"take alloc a {LIMIT - CONTEXT - SLACK}")
            assert probe.memory().processes == {1: LIMIT - SLACK}
            wrapper = probe.pid
            [inside] = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
            probe.kill()
            wait_for_end(int(inside))
            wait_for(box, 0)
        assert box.peak() <= LIMIT


def damaged(content: bytes, how: str) -> bytes:
    return {
        "empty": b"",
        "zeroes": bytes(len(content)),
        "truncated": content[: len(content) // 2],
        "header only": content[:64],
        "grown": content + b"more" * 1000,
        "foreign": b"#!/bin/sh\necho hello\n" * 50,
        "garbage": bytes(range(256)) * (len(content) // 256 + 1),
        "other boot": content[:32] + b"00000000-0000-0000-0000-000000000000" + content[68:],
        "other version": content[:8] + b"\xff\xff\0\0" + content[12:],
        "left by the dead": content,
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "zeroes",
        "truncated",
        "header only",
        "grown",
        "foreign",
        "garbage",
        "other boot",
        "other version",
        "left by the dead",
    ],
)
def test_any_state_file_is_made_good(tmp_path: Path, how: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        earlier = box.started()
        earlier.do(f"take alloc a {PIECE}")
        earlier.kill()
        content = box.state_path.read_bytes()
        box.state_path.write_bytes(damaged(content, how))
        first, second = box.started(), box.started()
        assert first.info()[0] == LIMIT - 2 * CONTEXT
        assert box.used() == box.physical() == 2 * CONTEXT
        first.do(f"take alloc a {PIECE}")
        second.refused(f"take alloc a {LIMIT - 2 * CONTEXT - PIECE + 2 * MIB}")
        second.do(f"take alloc a {LIMIT - 2 * CONTEXT - PIECE - 2 * MIB}")
        assert box.peak() <= LIMIT


@pytest.mark.parametrize("what", ["folder", "fifo", "link"])
def test_without_a_state_there_is_no_memory(tmp_path: Path, what: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        box.state_path.unlink()
        if what == "folder":
            box.state_path.mkdir()
        elif what == "fifo":
            os.mkfifo(box.state_path)
        else:
            target = tmp_path / "elsewhere"
            target.touch()
            box.state_path.symlink_to(target)
        probe = box.probe()
        answers = [probe.ask(line) for line in ("init", "device 0", "take alloc a 1024")]
        assert not answers[-1].ok
        assert box.peak() == 0


def test_threads_that_retain_a_context_at_once_need_room_for_one(tmp_path: Path) -> None:
    with Container(tmp_path, (GIB,)) as box:
        probe = box.probe()
        probe.do("init")
        box.node.faults("cuDevicePrimaryCtxRetain delay 100")
        assert probe.number("retains 4 0") == 0
        assert box.used() == box.physical() == 0
        assert box.peak() <= GIB
