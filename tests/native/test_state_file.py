"""The state file: one entry per living process, totals survive any death."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami.wire import state_file
from hami.wire.file_layout import LOCK_BASE, MAX_PROCESSES, PROCESS_ENTRY, STATE
from native import build
from tests.native import state_driving
from tests.native.state_driving import SOURCES, Container, Process, field_at, policy, usage_at

NOBODY = -1
HANGS_S = 60
LABELS = sorted({
    label
    for source in SOURCES
    if source.name.startswith("state")
    for label in re.findall(r'TEST_POINT\("([^"]+)"\)', source.read_text())
})  # fmt: skip
MAKING = [label for label in LABELS if label.startswith("state.init.")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = build.zig(build.own_arch()).command
    return state_driving.compile_driver(tmp_path_factory.mktemp("state") / "driver", command)


@pytest.fixture
def container(tmp_path: Path, driver: Path) -> Iterator[Container]:
    with Container(tmp_path / "container", driver) as made:
        yield made


def attached(container: Container, bytes_used: int = 0, **environment: str) -> Process:
    process = container.start(**environment)
    assert process.ask("attach") >= 0
    if bytes_used:
        assert process.ask(f"use 0 {bytes_used}") == 1
    return process


@contextlib.contextmanager
def locked_bytes(path: Path, first: int, count: int) -> Iterator[None]:
    """Hold slots as other processes would: with locks of another open file."""
    with path.open("r+b") as file:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCK_BASE + first, count, 0)
        fcntl.fcntl(file, 37, wanted)  # F_OFD_SETLK
        yield


def test_two_processes_have_two_slots_and_one_total(container: Container) -> None:
    first, second = attached(container, 100), attached(container, 20)
    assert (first.ask("attach"), second.ask("attach")) == (0, 1)
    assert first.ask("used 0") == second.ask("used 0") == 120
    slots = state_file.decode(container.state.read_bytes()).processes
    assert [(entry.index, entry.pid, entry.status) for entry in slots] == [
        (0, first.pid, 1),
        (1, second.pid, 1),
    ]
    started = Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[19]
    assert slots[0].start_time == int(started)


def test_all_users_may_share_the_file_whatever_the_umask(container: Container) -> None:
    process = container.start("sh", "-c", 'umask 077; exec "$0"')
    assert process.ask("attach") == 0
    assert container.state.stat().st_mode & 0o777 == 0o666


def test_a_killed_process_gives_everything_back(container: Container) -> None:
    victim, other = attached(container, 100), attached(container, 20)
    victim.kill()
    assert other.ask("used 0") == 120
    assert other.ask("sweep") == 0
    assert other.ask("used 0") == 20
    assert container.slot(0)["pid"] == container.slot(0)["status"] == 0


def test_the_living_are_never_swept(container: Container) -> None:
    processes = [attached(container, 1) for _ in range(6)]
    for dead in (4, 0, 2):
        processes[dead].kill()
    assert processes[3].ask("sweep") == 0
    assert processes[3].ask("used 0") == 3
    pids = [container.slot(index)["pid"] for index in range(6)]
    assert pids == [0, processes[1].pid, 0, processes[3].pid, 0, processes[5].pid]


def test_a_reader_has_no_slot_and_sees_and_sweeps(container: Container) -> None:
    victim, other = attached(container, 100), attached(container, 20)
    reader = container.start()
    assert reader.ask("view") == 1
    assert reader.ask("sweep") == 0
    assert reader.ask("used 0") == 120
    victim.kill()
    assert reader.ask("sweep") == 0
    assert reader.ask("used 0") == 20
    assert len(state_file.decode(container.state.read_bytes()).processes) == 1
    assert reader.ask("attach") == 0
    assert other.ask("used 0") == 20


def test_a_new_process_leaves_the_memory_of_a_dead_one_counted(container: Container) -> None:
    """The driver may not have freed it yet: only a sweep may ask and decide."""
    attached(container, 100).kill()
    process = attached(container)
    assert process.ask("attach") == 1
    assert process.ask("used 0") == 100


def test_a_slot_gets_a_new_epoch_with_each_owner(container: Container) -> None:
    epochs = []
    for _ in range(3):
        process = attached(container)
        epochs.append(container.slot(0)["epoch"])
        process.kill()
    assert epochs == [1, 2, 3]


def test_memory_that_the_driver_still_counts_waits(container: Container) -> None:
    victim, other = attached(container, 100), attached(container, 20)
    victim.kill()
    assert other.ask(f"sweep {victim.pid} 70") == 1
    assert other.ask("used 0") == 90
    assert container.slot(0)["status"] == 3
    assert other.ask(f"sweep {victim.pid} 500") == 1
    assert other.ask("used 0") == 90
    assert other.ask(f"sweep {victim.pid} 0") == 0
    assert other.ask("used 0") == 20
    assert container.slot(0)["status"] == 0


def test_waiting_ends(container: Container) -> None:
    victim, other = attached(container, 100), attached(container, 20)
    victim.kill()
    assert other.ask(f"sweep {victim.pid} 70") == 1
    at = state_driving.slot_at(0) + field_at(PROCESS_ENTRY, "dead_since")
    first_seen = struct.unpack_from("<Q", container.state.read_bytes(), at)[0]
    container.write(at, struct.pack("<Q", first_seen - 2_000_000_000))
    assert other.ask(f"sweep {victim.pid} 70") == 0
    assert other.ask("used 0") == 20


def test_a_reused_pid_is_not_charged_for_its_last_owner(container: Container) -> None:
    attached(container, 100).kill()
    process = container.start()
    container.write(
        state_driving.slot_at(0) + field_at(PROCESS_ENTRY, "pid"), struct.pack("<i", process.pid)
    )
    assert process.ask("attach") == 1
    assert process.ask("use 0 7") == 1
    assert process.ask(f"sweep {process.pid} 1000") == 0
    assert process.ask("used 0") == 7


def test_a_restarted_container_starts_from_nothing(container: Container) -> None:
    for process in [attached(container, 100) for _ in range(5)]:
        process.kill()
    process = attached(container, 7)
    process.ask("sweep")
    assert process.ask("used 0") == 7


def test_a_forked_child_has_its_own_slot(container: Container) -> None:
    parent = attached(container, 100)
    told = parent.tell("fork attach;use 0 5;sweep;used 0")
    assert told == "1 1 0 105 status=0"
    parent.ask("sweep")
    assert parent.ask("used 0") == 100
    assert parent.ask("attach") == 0


def test_a_cloned_child_that_nobody_told_has_its_own_slot(container: Container) -> None:
    parent = attached(container, 100)
    assert parent.tell("clone attach;use 0 5;sweep;used 0") == "1 1 0 105 status=0"
    parent.ask("sweep")
    assert parent.ask("used 0") == 100


def test_a_child_that_touches_nothing_does_not_sweep_its_parent(container: Container) -> None:
    parent = attached(container, 100)
    assert parent.tell("clone sweep;used 0") == "0 100 status=0"
    assert parent.tell("fork sweep;used 0") == "0 100 status=0"


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_a_child_does_not_keep_its_dead_parents_slot(container: Container, way: str) -> None:
    parent, other = attached(container, 100), attached(container, 20)
    parent.send(f"{way} stay")
    assert parent.read() == "staying"
    parent.kill_only_this()
    other.ask("sweep")
    assert other.ask("used 0") == 20


def test_exec_keeps_nothing(container: Container) -> None:
    process, other = attached(container, 100), attached(container, 20)
    assert process.tell("exec") == "ready"
    assert other.ask("sweep") == 0
    assert other.ask("used 0") == 20
    assert process.ask("attach") == 0


def test_no_descriptor_stays_open(container: Container) -> None:
    process, other = attached(container, 100), attached(container)
    assert process.ask("fds") == 0
    assert process.tell("close 3 4095") == "ok"
    other.ask("sweep")
    assert other.ask("used 0") == 100
    assert process.ask("attach") == 0


def test_all_slots_taken(container: Container) -> None:
    attached(container).finish()
    with locked_bytes(container.state, 0, MAX_PROCESSES):
        assert container.start().ask("attach") == NOBODY
    with (
        locked_bytes(container.state, 0, 700),
        locked_bytes(container.state, 701, MAX_PROCESSES - 701),
    ):
        process = attached(container, 5)
        assert process.ask("attach") == 700
        assert container.start().ask("attach") == NOBODY
        process.ask("sweep")
        assert process.ask("used 0") == 5


def test_when_only_slots_of_the_dead_are_left_they_are_taken(container: Container) -> None:
    attached(container, 100).kill()
    with locked_bytes(container.state, 1, MAX_PROCESSES - 1):
        process = attached(container)
        assert process.ask("attach") == 0
        assert process.ask("used 0") == 0


def test_sums_do_not_wrap(container: Container) -> None:
    first, second = attached(container, 100), attached(container, 20)
    container.write(usage_at(0, 0, "linear"), b"\xff" * 8)
    assert first.ask("lock") == 1
    first.kill()
    assert second.ask("used 0") == 2**64 - 1


# ---- the file ------------------------------------------------------------------------------------


def test_the_agents_file_is_used_and_never_made(container: Container) -> None:
    container.grant(policy())
    process = container.start()
    assert process.ask("attach") == NOBODY
    assert sorted(path.name for path in container.folder.iterdir()) == ["driver", "policy"]
    state = container.folder / "state"
    state.touch(mode=0o640)
    before = state.stat()
    assert process.ask("attach") == 0
    after = state.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert state_file.decode(state.read_bytes()).processes[0].pid == process.pid


def old_boot(data: bytearray) -> None:
    at = field_at(STATE, "boot_id")
    data[at : at + 36] = b"00000000-0000-0000-0000-000000000000"


def setter(name: str, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        at, size = STATE.places[name]
        data[at : at + size] = value.to_bytes(size, "little")

    return change


def garbage(data: bytearray) -> None:
    data[:] = bytes(range(256)) * (state_file.SIZE // 256 + 1)


def truncated(data: bytearray) -> None:
    del data[100:]


def emptied(data: bytearray) -> None:
    data.clear()


def zeroed(data: bytearray) -> None:
    data[:] = bytes(len(data))


SPOILERS: dict[str, Callable[[bytearray], None]] = {
    "magic": setter("magic", 1),
    "version": setter("version", 2),
    "size": setter("size", 5),
    "slots_used": setter("slots_used", 1025),
    "device_count": setter("device_count", 17),
    "boot": old_boot,
    "garbage": garbage,
    "truncated": truncated,
    "emptied": emptied,
    "zeroed": zeroed,
}


@pytest.mark.parametrize("how", SPOILERS)
def test_a_spoiled_file_is_made_anew(container: Container, how: str) -> None:
    attached(container, 100).kill()
    data = bytearray(container.state.read_bytes())
    inode = container.state.stat().st_ino
    SPOILERS[how](data)
    container.state.write_bytes(data)
    process = attached(container, 3)
    assert process.ask("attach") == 0
    assert process.ask("used 0") == 3
    state = state_file.decode(container.state.read_bytes())
    assert state.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [entry.epoch for entry in state.processes] == [1]
    assert container.state.stat().st_ino == inode
    assert container.state.stat().st_size == max(len(data), state_file.SIZE)


@pytest.mark.parametrize("how", ["magic", "version", "size", "slots_used", "device_count", "boot"])
def test_a_spoiled_file_is_left_alone_while_someone_lives(container: Container, how: str) -> None:
    living = attached(container, 100)
    data = bytearray(container.state.read_bytes())
    SPOILERS[how](data)
    container.write(0, bytes(data[: field_at(STATE, "lock")]))
    spoiled = container.state.read_bytes()
    newcomer = container.start()
    assert newcomer.ask("attach") == NOBODY
    assert container.state.read_bytes() == spoiled
    living.kill()
    assert newcomer.ask("attach") == 0
    assert newcomer.ask("used 0") == 0


def test_a_truncated_file_grows_back_under_the_living(container: Container) -> None:
    living = attached(container, 100)
    os.truncate(container.state, state_file.SIZE - 100_000)
    newcomer = attached(container, 20)
    assert container.state.stat().st_size == state_file.SIZE
    assert living.ask("used 0") == newcomer.ask("used 0") == 120


def test_a_longer_file_is_fine_and_keeps_its_length(container: Container) -> None:
    container.state.write_bytes(bytes(state_file.SIZE + 4000) + b"end")
    attached(container, 1)
    assert container.state.stat().st_size == state_file.SIZE + 4003
    assert container.state.read_bytes().endswith(b"end")


@pytest.mark.parametrize("size", [0, 1, 88, 4096, state_file.SIZE, 2 * state_file.SIZE])
def test_an_agent_may_make_the_file_in_any_size(container: Container, size: int) -> None:
    container.state.touch()
    os.truncate(container.state, size)
    attached(container, 1)
    found = container.state.stat()
    assert found.st_size == max(size, state_file.SIZE)
    # Every page is there: a write to the map can not fail for want of space.
    assert found.st_blocks * 512 >= state_file.SIZE


def symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.touch()
    path.symlink_to(target)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def no_folder(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [symlink, pipe, folder, no_folder])
def test_what_is_no_file_is_refused(container: Container, make: Callable[[Path], None]) -> None:
    make(container.state)
    assert container.start().ask("attach") == NOBODY
    if (elsewhere := container.folder / "elsewhere").exists():
        assert elsewhere.read_bytes() == b""


def test_a_file_size_limit_ends_no_program(container: Container) -> None:
    process = container.start()
    assert process.ask("fsize 100000") == 0
    assert process.ask("attach") == NOBODY
    assert process.ask(f"fsize {state_file.SIZE}") == 0
    assert process.ask("attach") == 0


def test_a_full_file_system_is_refused(container: Container) -> None:
    space = container.folder / "space"
    space.mkdir()
    mount = f'mount -t tmpfs -o size=1m none "{space}" && exec "$0"'
    through = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount)
    if subprocess.run([*through[:-1], mount, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    process = container.start(*through, CUDA_DEVICE_MEMORY_SHARED_CACHE=str(space / "region"))
    assert process.ask("attach") == NOBODY
    assert process.tell("places").split("|")[1] == f"{space}/region.state"


def test_a_replaced_file_is_not_swept_by_its_name(container: Container) -> None:
    victim, other = attached(container, 100), attached(container, 20)
    container.state.rename(container.folder / "moved")
    victim.kill()
    other.ask("sweep")
    assert other.ask("used 0") == 120
    attached(container, 3)
    assert container.used() == 3
    assert other.tell("fork attach;used 0") == "1 3 status=0"


def test_a_spoiled_mutex_refuses(container: Container) -> None:
    process = attached(container, 5)
    container.write(field_at(STATE, "lock"), b"\xff" * 64)
    assert process.ask("use 0 1") == 0
    assert process.ask("sweep") == -1
    assert container.start().ask("attach") == NOBODY


# ---- dying anywhere ------------------------------------------------------------------------------


def kill_at(container: Container, label: str, turn: int = 1) -> None:
    """Let a process attach, use, sweep and be killed at a labelled point on its way."""
    victim = container.start(VGPU_KILL_AT=f"{label}:{turn}")
    for command in ("attach", "use 0 1000", "use 1 1000", "sweep", "used 0"):
        with contextlib.suppress(BrokenPipeError):
            victim.send(command)
    with contextlib.suppress(BrokenPipeError):
        assert victim.wait() == -signal.SIGKILL, f"never passed {label} for the {turn}. time"


def prepared(container: Container) -> Process:
    """Make a file with a living process, one that died and one that died holding the mutex."""
    living = attached(container, 20)
    attached(container, 300).kill()
    holder = attached(container, 4000)
    assert holder.ask("lock") == 1
    holder.kill()
    return living


def check(container: Container, living: Process | None, expected: int) -> None:
    newcomer = attached(container, 7)
    assert newcomer.ask("sweep") == 0
    assert newcomer.ask("used 0") == expected + 7
    assert newcomer.ask("used 1") == 0
    if living is not None:
        assert living.ask("used 0") == expected + 7
        assert living.ask("use 0 1") == 1
    state = state_file.decode(container.state.read_bytes())
    assert {entry.pid for entry in state.processes} == {
        process.pid for process in (living, newcomer) if process is not None
    }
    at = field_at(STATE, "writing")
    assert container.state.read_bytes()[at : at + 4] == bytes(4)


def test_there_are_labels() -> None:
    assert len(MAKING) >= 3
    assert len(LABELS) - len(MAKING) >= 6


@pytest.mark.parametrize("label", MAKING)
def test_killed_while_making_the_file(container: Container, label: str) -> None:
    kill_at(container, label)
    check(container, None, 0)


@pytest.mark.parametrize(
    ("label", "turn"),
    [(label, 1) for label in LABELS if label not in MAKING]
    + [("state.lock.held", turn) for turn in (2, 3, 4, 5)]
    + [("state.lock.before_unlock", turn) for turn in (2, 3, 4)],
)
def test_killed_in_use(container: Container, label: str, turn: int) -> None:
    living = prepared(container)
    kill_at(container, label, turn)
    check(container, living, 20)


def test_a_dead_lock_holder_is_counted(container: Container) -> None:
    living = prepared(container)
    assert living.ask("used 0") == 4320
    assert state_file.decode(container.state.read_bytes()).recoveries == 1


@pytest.mark.timeout(60)
def test_a_stopped_lock_holder_stops_nobody_for_ever(container: Container) -> None:
    holder, other = attached(container, 1), attached(container, 1)
    assert holder.ask("lock") == 1
    assert other.ask("use 0 1") == 0
    assert holder.tell("unlock") == "ok"
    assert other.ask("use 0 1") == 1


def test_many_at_once(container: Container) -> None:
    """All start together on a file that is not there yet; some die; the sum is right."""
    processes = [container.start() for _ in range(12)]
    for process in processes:
        process.send("attach")
    slots = sorted(int(process.read()) for process in processes)
    assert slots == list(range(12))
    for process in processes:
        process.send("threads 3 50")
    for process in processes[:4]:
        process.kill()
    assert [process.read() for process in processes[4:]] == ["ok"] * 8
    assert processes[5].ask("sweep") == 0
    assert processes[5].ask("used 0") == 8 * 150


def test_a_wake_up_that_was_lost_costs_nothing_but_a_moment(container: Container) -> None:
    """A waiter that is woken and killed before it tries leaves the others asleep, unannounced."""
    holder, waiter = attached(container), attached(container)
    at = field_at(STATE, "lock")
    announced = 0x80000000
    assert holder.ask("lock") == 1
    waiter.send("use 0 7")
    word, deadline = 0, time.monotonic() + HANGS_S
    while not word & announced:
        assert time.monotonic() < deadline, "the waiter does not wait"
        time.sleep(0.005)
        word = struct.unpack_from("<I", container.state.read_bytes(), at)[0]
    container.write(at, struct.pack("<I", word & ~announced))
    holder.send("unlock")
    assert holder.read() == "ok"
    assert waiter.read() == "1"
    assert holder.ask("used 0") == 7


# ---- sanitizers ----------------------------------------------------------------------------------


def instrumented(target: Path, kind: str) -> Path:
    """Build the driver with the host's gcc. Without one that can: skip, but fail in CI."""
    try:
        gcc = shutil.which("gcc") or "gcc"
        flags = (f"-fsanitize={kind}", "-fno-sanitize-recover=all")
        return state_driving.compile_driver(target, (gcc,), *flags)
    except (OSError, build.BuildError) as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_under_a_sanitizer(tmp_path: Path, kind: str) -> None:
    driver = instrumented(tmp_path / "driver", kind)
    wrapper = ("setarch", "-R") if kind == "thread" else ()
    settings = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    with Container(tmp_path / "container", driver, wrapper, settings) as container:
        first, second = attached(container, 100), attached(container, 20)
        for process in (first, second):
            assert process.tell("mirror 2") == "1"
            process.tell(f"mirror_process {process.ask('attach')} {process.pid} 1")
            process.send("threads 4 200")
        assert first.read() == second.read() == "ok"
        assert first.tell("fork attach;use 0 5;sweep").endswith("status=0")
        assert first.ask("lock") == 1
        first.kill()
        assert second.ask(f"sweep {first.pid} 100") == 1
        assert second.ask("used 0") == 920
        second.finish()
        for spoil in SPOILERS.values():
            data = bytearray(container.state.read_bytes())
            spoil(data)
            container.state.write_bytes(data)
            attached(container, 1).finish()
        container.grant(policy(2))
        process = container.start()
        container.grant(policy(3))
        assert process.tell("reread").startswith("1 policy 3 ")
