"""The copy of our numbers in HAMi's region format 1.2, read as its monitors do.

The offsets below are those of the format's description, written down here by hand: nothing of
libvgpu's own layout is used.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native import build
from tests.native import state_driving
from tests.native.state_driving import Container, Process, policy

#: Linux has it, Python has no name for it.
CLOCK_REALTIME_COARSE = 5

MAGIC = 19920718
REGION = 2008952
FILE = REGION + 1
#: name -> offset and struct code
HEAD = {
    "magic": (0, "<i"),
    "major": (4, "<I"),
    "minor": (8, "<I"),
    "owner": (16, "<Q"),
    "devices": (56, "<Q"),
    "processes": (2008896, "<i"),
    "switch": (2008900, "<i"),
    "recent": (2008904, "<i"),
    "priority": (2008908, "<i"),
    "kernel_time": (2008912, "<q"),
}
UUIDS, LIMIT, SM_LIMIT, SLOTS, SLOT = 64, 1600, 1728, 1856, 1960
USED_KEYS = ("context", "module", "data", "offset", "total")


class Region:
    """What a monitor reads."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()

    def __getitem__(self, name: str) -> int:
        offset, code = HEAD[name]
        return int(struct.unpack_from(code, self.data, offset)[0])

    def uuid(self, device: int) -> str:
        start = UUIDS + 96 * device
        return self.data[start : start + 96].rstrip(b"\0").decode()

    def limits(self) -> tuple[list[int], list[int]]:
        both = [list(struct.unpack_from("<16Q", self.data, at)) for at in (LIMIT, SM_LIMIT)]
        return both[0], both[1]

    def used(self, slot: int, device: int) -> dict[str, int]:
        values = struct.unpack_from("<5Q", self.data, SLOTS + slot * SLOT + 8 + 64 * device)
        return dict(zip(USED_KEYS, values, strict=True))

    def active(self) -> dict[int, tuple[int, int]]:
        """Give pid and status of the slots that a monitor adds up."""
        rows = {}
        for slot in range(self["processes"]):
            at = SLOTS + slot * SLOT
            status = struct.unpack_from("<i", self.data, at + 1928)[0]
            if status:
                rows[slot] = (struct.unpack_from("<i", self.data, at)[0], status)
        return rows

    def seqlock(self, slot: int) -> int:
        return int(struct.unpack_from("<Q", self.data, SLOTS + slot * SLOT + 1936)[0])


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = build.zig(build.own_arch()).command
    return state_driving.compile_driver(tmp_path_factory.mktemp("mirror") / "driver", command)


@pytest.fixture
def container(tmp_path: Path, driver: Path) -> Iterator[Container]:
    with Container(tmp_path / "container", driver) as made:
        yield made


def mirroring(container: Container, **environment: str) -> Process:
    process = container.start(**environment)
    assert process.tell("mirror 2") == "1"
    return process


def read(container: Container) -> Region:
    return Region(container.mirror)


def test_a_new_region(container: Container) -> None:
    # The clock that lags by a tick, which C's time() may read.
    before = int(time.clock_gettime(CLOCK_REALTIME_COARSE))
    mirroring(
        container,
        CUDA_DEVICE_MEMORY_LIMIT="1g",
        CUDA_DEVICE_MEMORY_LIMIT_1="2g",
        CUDA_DEVICE_SM_LIMIT="30",
        CUDA_TASK_PRIORITY="0",
    )
    assert container.mirror.stat().st_size == FILE
    assert container.mirror.stat().st_mode & 0o777 == 0o666
    region = read(container)
    assert (region["magic"], region["major"], region["minor"]) == (MAGIC, 1, 2)
    assert [region.uuid(0), region.uuid(1), region.uuid(2)] == ["GPU-0", "GPU-1", ""]
    assert (region["devices"], region["processes"], region["owner"]) == (2, 0, 0)
    assert (region["switch"], region["recent"], region["priority"]) == (1, 2, 0)
    assert before <= region["kernel_time"] <= time.time()
    memory, cores = region.limits()
    assert memory == [1 << 30, 2 << 30] + [1 << 30] * 14
    assert cores == [30] * 16


def test_a_policys_limits_and_what_it_says_nothing_about(container: Container) -> None:
    container.grant(policy(1, 5 << 30, cores=40))
    process = mirroring(container)
    memory, cores = read(container).limits()
    assert memory == [5 << 30] + [0] * 15
    assert cores == [40] + [100] * 15
    container.grant(policy(2, 6 << 30))
    assert process.tell("reread").startswith("1 ")
    assert process.tell("mirror_limits") == "ok"
    memory, cores = read(container).limits()
    assert (memory[0], cores[0]) == (6 << 30, 100)


def test_usage_of_two_processes(container: Container) -> None:
    first, second = mirroring(container), mirroring(container)
    first.tell("mirror_process 3 77 1")
    second.tell("mirror_process 1 88 1")
    first.tell("mirror_usage 3 1 1 20 300 4000 50000 600000 7000000 80000000")
    second.tell("mirror_usage 1 0 5 0 0 0 0 0 0 0")
    region = read(container)
    assert region["processes"] == 4
    assert region.active() == {3: (77, 1), 1: (88, 1)}
    assert region.used(3, 1) == {
        "context": 1,
        "module": 0,
        "data": 7654320,
        "offset": 0,
        "total": 87654321,
    }
    assert region.used(1, 0)["total"] == 5
    assert region.used(3, 0)["total"] == region.used(1, 1)["total"] == 0
    assert region.seqlock(3) % 2 == region.seqlock(1) % 2 == 0


def test_the_last_slot_and_none_beyond(container: Container) -> None:
    process = mirroring(container)
    for slot in (1023, 1024, -1):
        process.tell(f"mirror_process {slot} 9 1")
        process.tell(f"mirror_usage {slot} 15 1 0 0 0 0 0 0 0")
        process.tell(f"mirror_usage {slot} 16 1 0 0 0 0 0 0 0")
    region = read(container)
    assert len(region.data) == FILE
    assert region["processes"] == 1024
    assert region.active() == {1023: (9, 1)}
    assert region.used(1023, 15)["total"] == 1
    assert region.limits()[1] == [100] * 16
    assert region["switch"] == 1


def test_a_changed_status_keeps_the_usage_and_a_new_process_does_not(container: Container) -> None:
    process = mirroring(container)
    process.tell("mirror_process 0 77 1")
    process.tell("mirror_usage 0 0 5 0 0 0 0 0 0 0")
    process.tell("mirror_process 0 77 2")
    assert read(container).active() == {0: (77, 2)}
    assert read(container).used(0, 0)["total"] == 5
    mirroring(container).tell("mirror_process 0 78 1")
    assert read(container).active() == {0: (78, 1)}
    assert read(container).used(0, 0)["total"] == 0
    process.tell("mirror_process 0 0 0")
    assert read(container).active() == {}


def test_kernel_time(container: Container) -> None:
    mirroring(container).tell("mirror_kernel 1234567890123")
    assert read(container)["kernel_time"] == 1234567890123


def test_the_swept_leave_the_mirror(container: Container) -> None:
    victim, other = mirroring(container), mirroring(container)
    for slot, process in enumerate((victim, other)):
        assert process.ask("attach") == slot
        process.tell(f"mirror_process {slot} {process.pid} 1")
        process.tell("use 0 1")
    victim.kill()
    assert read(container).active() == {0: (victim.pid, 1), 1: (other.pid, 1)}
    other.ask("sweep")
    assert read(container).active() == {1: (other.pid, 1)}


def test_a_region_that_outlived_its_state_is_cleaned(container: Container) -> None:
    """After a reboot, say: nobody that it shows is alive, and the new state does not know them."""
    before = mirroring(container)
    before.tell("mirror_process 5 77 1")
    before.tell("mirror_process 0 78 1")
    before.finish()
    process, neighbour = mirroring(container), mirroring(container)
    for slot, each in enumerate((process, neighbour)):
        assert each.ask("attach") == slot
        each.tell(f"mirror_process {slot} {each.pid} 1")
    process.ask("sweep")
    assert read(container).active() == {0: (process.pid, 1), 1: (neighbour.pid, 1)}


def test_what_a_monitor_wrote_survives_the_next_process(container: Container) -> None:
    mirroring(container).finish()
    with container.mirror.open("r+b") as file:
        for name, value in (("switch", 0), ("recent", -1), ("kernel_time", 42)):
            file.seek(HEAD[name][0])
            file.write(struct.pack(HEAD[name][1], value))
    inode = container.mirror.stat().st_ino
    mirroring(container, CUDA_TASK_PRIORITY="3").tell("mirror_process 0 9 1")
    region = read(container)
    assert container.mirror.stat().st_ino == inode
    assert (region["switch"], region["recent"], region["kernel_time"]) == (0, -1, 42)
    assert region["priority"] == 3


def test_a_region_of_an_older_minor_version_is_taken_over(container: Container) -> None:
    start = struct.pack("<iII", MAGIC, 1, 1)
    container.mirror.write_bytes(start.ljust(REGION, b"\0"))
    mirroring(container).tell("mirror_process 0 9 1")
    assert read(container)["minor"] == 2
    assert read(container).active() == {0: (9, 1)}


def test_a_nonsensical_process_count_is_corrected(container: Container) -> None:
    mirroring(container).finish()
    for nonsense in (-5, 5000):
        with container.mirror.open("r+b") as file:
            file.seek(HEAD["processes"][0])
            file.write(struct.pack("<i", nonsense))
        mirroring(container).tell("mirror_process 2 9 1")
        assert read(container)["processes"] == 3


def test_a_half_made_region_is_finished(container: Container) -> None:
    mirroring(container).finish()
    os.truncate(container.mirror, SLOTS)
    mirroring(container).tell("mirror_process 0 9 1")
    assert container.mirror.stat().st_size == FILE
    assert read(container)["switch"] == 1
    assert read(container).active() == {0: (9, 1)}


FOREIGN = {
    "text": b"somebody's data\n" * 200_000,
    "short text": b"x",
    "zeros": bytes(FILE),
    "other magic": struct.pack("<iII", MAGIC + 1, 1, 2).ljust(FILE, b"\0"),
    "other version": struct.pack("<iII", MAGIC, 2, 0).ljust(FILE, b"\0"),
    "HAMi's version 0": struct.pack("<iiI", MAGIC, 1, 2).ljust(1197897, b"\0"),
    "magic alone": struct.pack("<i", MAGIC),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_never_touched(container: Container, what: str) -> None:
    container.mirror.write_bytes(FOREIGN[what])
    process = container.start()
    assert process.tell("mirror 2") == "0"
    assert process.tell("mirror_process 0 9 1") == "ok"
    assert process.tell("mirror_usage 0 0 1 1 1 1 1 1 1 1") == "ok"
    assert container.mirror.read_bytes() == FOREIGN[what]


def link(path: Path) -> None:
    path.with_name("elsewhere").touch()
    path.symlink_to(path.with_name("elsewhere"))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [link, pipe, folder])
def test_what_is_no_file_is_no_mirror(container: Container, make: Callable[[Path], None]) -> None:
    make(container.mirror)
    process = container.start()
    assert process.tell("mirror 2") == "0"
    assert process.tell("mirror_process 0 9 1") == "ok"
    if (elsewhere := container.folder / "elsewhere").exists():
        assert elsewhere.stat().st_size == 0


def test_an_empty_file_becomes_a_region(container: Container) -> None:
    container.mirror.touch()
    mirroring(container)
    assert read(container)["magic"] == MAGIC


def test_a_folder_that_may_not_be_written_is_no_mirror(container: Container) -> None:
    process = container.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/proc/no/such/place")
    assert process.tell("mirror 2") == "0"


def test_a_file_of_the_program_under_our_descriptor_number_is_safe(container: Container) -> None:
    precious = container.folder / "precious"
    precious.write_bytes(b"data")
    process = mirroring(container)
    process.tell("mirror_process 0 9 1")
    assert process.tell(f"squat {precious}") == "ok"
    process.tell("mirror_usage 0 0 1 1 1 1 1 1 1 1")
    process.tell("mirror_process 0 9 2")
    process.tell("mirror_kernel 5")
    assert precious.read_bytes() == b"data"


def test_a_file_size_limit_ends_no_program(container: Container) -> None:
    process = container.start()
    assert process.ask("fsize 4096") == 0
    assert process.tell("mirror 2") == "0"
    assert process.ask(f"fsize {FILE}") == 0
    assert process.tell("mirror 2") == "1"
    assert process.ask("fsize 4096") == 0
    assert process.tell("mirror_process 9 9 1") == "ok"
    assert process.ask(f"fsize {FILE}") == 0
    assert process.tell("mirror_process 9 8 1") == "ok"
    assert read(container).active() == {9: (8, 1)}


def test_a_removed_file_disturbs_nobody(container: Container) -> None:
    process = mirroring(container)
    container.mirror.unlink()
    assert process.tell("mirror_process 0 9 1") == "ok"
    assert not container.mirror.exists()


def test_a_forked_child_opens_its_own(container: Container) -> None:
    process = mirroring(container)
    process.tell("mirror_process 0 77 1")
    told = process.tell("fork mirror_process 1 66 1;mirror 2;mirror_process 2 55 1")
    assert told == "ok 1 ok status=0"
    assert read(container).active() == {0: (77, 1), 2: (55, 1)}
    process.tell("mirror_process 0 77 2")
    assert read(container).active()[0] == (77, 2)


def test_processes_that_start_at_once_leave_the_highest_count(container: Container) -> None:
    processes = [mirroring(container) for _ in range(8)]
    for slot, process in enumerate(processes):
        process.send(f"mirror_process {slot} 9 1")
    assert [process.read() for process in processes] == ["ok"] * 8
    assert read(container)["processes"] == 8
