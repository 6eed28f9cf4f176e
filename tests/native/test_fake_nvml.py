"""The stand-in NVML as nvidia-ml-py, a device plugin and a monitor see it.

Each question runs in a process of its own, on the built library, with the Python bindings that the
product uses.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hami_sandbox import gpus
from native import build
from tests.native import elf
from tests.native.fake_store_driving import UNSHARE, Holder, can_unshare, current_driver

MIB = 1 << 20
LOST, NOT_FOUND, NOT_SUPPORTED, UNINITIALIZED, TIMEOUT, TOO_SMALL = 15, 6, 3, 1, 10, 7

PRELUDE = """
import ctypes, json, os, pynvml as n, sys, time
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
def card(index=0):
    return n.nvmlDeviceGetHandleByIndex(index)
def procs(function=n.nvmlDeviceGetComputeRunningProcesses, index=0):
    return {p.pid: p.usedGpuMemory for p in function(card(index))}
n.nvmlInit()
"""


class Node:
    """A node's folder, questions about it and processes on it."""

    def __init__(self, folder: Path, libraries: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._libraries = libraries
        self._stack = stack

    @property
    def cards(self) -> list[gpus.Card]:
        return gpus.read_node(self.folder)

    def ask(self, code: str, wrapper: tuple[str, ...] = (), **environment: str) -> Any:
        """Run `code` after PRELUDE; give what it left in `result`."""
        done = self.run(f"{PRELUDE}\n{code}\nprint(json.dumps(result))", wrapper, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(
        self, code: str, wrapper: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*wrapper, sys.executable, "-c", code],
            env=self._environment(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def talk(self, code: str, **environment: str) -> Callable[..., Any]:
        """Start `code`, which answers each line it gets by a line of JSON; give the way to ask."""
        popen = subprocess.Popen(
            [sys.executable, "-u", "-c", f"{PRELUDE}\nprint('ready')\n{code}"],
            env=self._environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._stack.enter_context(popen)
        sent, got = popen.stdin, popen.stdout
        assert sent is not None
        assert got is not None
        self._stack.callback(sent.close)
        assert got.readline() == "ready\n"

        def ask(line: str = "") -> Any:
            sent.write(f"{line}\n")
            return json.loads(got.readline())

        return ask

    def hold(self, mib: int, index: int = 0, **environment: str) -> Holder:
        holder = self._stack.enter_context(Holder(current_driver(), self.folder, environment))
        assert holder.ask(f"take {index} {mib}") == "1"
        return holder

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "_VISIBLE_" not in name}
        kept |= {"FAKEGPU_DIR": str(self.folder), "LD_LIBRARY_PATH": str(self._libraries)}
        return kept | more


Make = Callable[..., Node]


@pytest.fixture(scope="session")
def library(built: Path) -> Path:
    """Build the stand-in NVML alone; give its folder."""
    build.build([build.zig(build.own_arch())], [build.LIBNVML], say=lambda _: None)
    return (built / build.LIBNVML.name).parent


@pytest.fixture
def make(library: Path, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(*cards: tuple[str, int], mig: dict[int, list[str]] | None = None) -> Node:
            folder = tmp_path / "node"
            gpus.write_node(folder, cards, name="n", mig=mig)
            return Node(folder, library, stack)

        yield made


def test_a_plugin_reads_what_the_node_has(make: Make) -> None:
    node = make(("H200", 1), ("T4", 1))
    assert node.ask("""
def facts(h):
    return [n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h), n.nvmlDeviceGetIndex(h),
        n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetMemoryInfo(h).total,
        n.nvmlDeviceGetPciInfo(h).busId, list(n.nvmlDeviceGetCudaComputeCapability(h)),
        n.nvmlDeviceGetArchitecture(h), n.nvmlDeviceGetPowerManagementLimit(h),
        n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), code(n.nvmlDeviceGetMigMode, h)]
result = [facts(card(i)) for i in range(n.nvmlDeviceGetCount())]
""") == [
        [
            *(node.cards[0].uuid, "NVIDIA H200", 0, 0, 143771 * MIB, "00000000:1A:00.0", [9, 0]),
            *(9, 700_000, 1980, 0),
        ],
        [
            *(node.cards[1].uuid, "Tesla T4", 1, 1, 15360 * MIB, "00000000:27:00.0", [7, 5]),
            *(6, 70_000, 1590, NOT_SUPPORTED),
        ],
    ]


def test_cards_are_found_by_each_of_their_names(make: Make) -> None:
    node = make(("L4", 2))
    assert node.ask(f"""
h = n.nvmlDeviceGetHandleByUUID({node.cards[1].uuid!r})
buses = ["00000000:27:00.0", "0000:27:00.0", "27:00.0"]
result = [n.nvmlDeviceGetIndex(h), code(n.nvmlDeviceGetHandleByUUID, "GPU-none"),
    [n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b)) for b in buses],
    code(n.nvmlDeviceGetHandleByPciBusId, "0000:99:00.0"), code(n.nvmlDeviceGetHandleByIndex, 2)]
""") == [1, NOT_FOUND, [1, 1, 1], NOT_FOUND, 2]


def test_versions(make: Make) -> None:
    assert make(("L4", 1)).ask("""
result = [n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion()]
""") == ["580.159.04", 13000]


def test_nothing_works_before_the_start_and_after_the_end(make: Make) -> None:
    assert make(("L4", 1)).ask("""
n.nvmlInit()
n.nvmlShutdown()
first = code(n.nvmlDeviceGetCount)
n.nvmlShutdown()
fn = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetCount_v2
result = [first, fn(ctypes.byref(ctypes.c_uint()))]
""") == [0, UNINITIALIZED]


def test_a_machine_without_a_node_has_no_driver(make: Make, tmp_path: Path) -> None:
    node = make(("L4", 1))
    done = node.run(PRELUDE, FAKEGPU_DIR=str(tmp_path / "nowhere"))
    assert "NVMLError_DriverNotLoaded" in done.stderr


def test_memory_and_processes_of_a_card(make: Make) -> None:
    node = make(("H200", 2))
    one, two = node.hold(1000), node.hold(500)
    node.hold(7, index=1)
    one.ask("managed 0 100")
    lists, old, first, second, graphics = node.ask("""
m, v2 = n.nvmlDeviceGetMemoryInfo(card()), n.nvmlDeviceGetMemoryInfo(card(), n.nvmlMemory_v2)
buffer, count = (ctypes.c_ulonglong * 8)(), ctypes.c_uint(4)
assert ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses(
    card(), ctypes.byref(count), buffer) == 0
old = {buffer[2 * i] & 0xFFFFFFFF: buffer[2 * i + 1] for i in range(count.value)}
result = [[procs(), procs(n.nvmlDeviceGetComputeRunningProcesses_v2)], old,
    [m.total, m.free, m.used], [v2.total, v2.free, v2.used, v2.reserved],
    procs(n.nvmlDeviceGetGraphicsRunningProcesses)]
""")
    expected = {str(one.pid): 1000 * MIB, str(two.pid): 500 * MIB}
    assert lists == [expected, expected]
    assert old == expected
    assert graphics == {}
    assert first == [143771 * MIB, 142171 * MIB, 1600 * MIB]
    assert second == [143771 * MIB, 142171 * MIB, 1600 * MIB, 0]


def test_a_short_list_is_refused_with_the_right_length(make: Make) -> None:
    node = make(("L4", 1))
    node.hold(1)
    node.hold(1)
    assert node.ask("""
fn = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses_v3
count = ctypes.c_uint(1)
result = [fn(card(), ctypes.byref(count), (ctypes.c_ulonglong * 3)()), count.value]
""") == [TOO_SMALL, 2]


def test_a_reader_that_lives_sees_processes_come_and_be_killed(make: Make) -> None:
    node = make(("L4", 1))
    look = node.talk("""
for line in sys.stdin:
    print(json.dumps([procs(), n.nvmlDeviceGetMemoryInfo(card()).used]))
""")
    assert look() == [{}, 0]
    holder = node.hold(10)
    assert look() == [{str(holder.pid): 10 * MIB}, 10 * MIB]
    holder.kill()
    assert look() == [{}, 0]


@pytest.mark.skipif(not can_unshare(), reason="may not make pid namespaces")
def test_a_container_sees_all_memory_but_only_its_own_processes(make: Make) -> None:
    node = make(("L4", 1))
    node.hold(10)
    look = "result = [procs(), n.nvmlDeviceGetMemoryInfo(card()).used]"
    assert node.ask(look, UNSHARE) == [{}, 10 * MIB]


@pytest.mark.parametrize(
    ("fault", "shift"), [("pids shifted 1000", 1000), ("pids outer", 4_194_304)]
)
def test_pids_that_the_caller_does_not_know(make: Make, fault: str, shift: int) -> None:
    node = make(("L4", 1))
    holder = node.hold(10)
    gpus.set_faults(node.folder, [fault])
    assert node.ask("result = procs()") == {str(holder.pid + shift): 10 * MIB}


def test_only_granted_cards_are_there(make: Make) -> None:
    node = make(("L4", 3))
    assert node.ask(
        f"""
result = [n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(card(1)), n.nvmlDeviceGetMinorNumber(card(1)),
    code(n.nvmlDeviceGetHandleByUUID, {node.cards[1].uuid!r})]
""",
        NVIDIA_VISIBLE_DEVICES=f"{node.cards[2].uuid},0",
    ) == [2, node.cards[2].uuid, 2, NOT_FOUND]
    assert node.ask("result = n.nvmlDeviceGetCount()", NVIDIA_VISIBLE_DEVICES="void") == 0


def test_utilisation_is_the_share_of_time_since_the_last_question(make: Make) -> None:
    node = make(("L4", 1))
    holder = node.hold(10, FAKEGPU_CLOCK="virtual")
    look = node.talk(
        """
advance = ctypes.CDLL("libnvidia-ml.so.1").fakegpu_advance
advance.argtypes = [ctypes.c_ulonglong]
h = card()
for line in sys.stdin:
    advance(1_000_000_000)
    rates = n.nvmlDeviceGetUtilizationRates(h).gpu
    share = [[s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(h, 0)]
    again = n.nvmlDeviceGetUtilizationRates(h).gpu
    print(json.dumps([rates, share, n.nvmlDeviceGetPowerUsage(h), again]))
""",
        FAKEGPU_CLOCK="virtual",
    )
    holder.ask(f"run 0 {holder.ask('now 0')} 300000000")
    assert look() == [30, [[holder.pid, 30]], 72_000 * 38 // 100, 30]
    assert look() == [0, [[holder.pid, 0]], 72_000 * 12 // 100, 0]


def test_a_reader_that_asks_once_sees_whether_the_card_works(make: Make) -> None:
    node = make(("L4", 2))
    holder = node.hold(10, FAKEGPU_CLOCK="virtual")
    holder.ask(f"run 0 {holder.ask('now 0')} 1000")
    look = "result = [n.nvmlDeviceGetUtilizationRates(card(i)).gpu for i in (0, 1)]"
    assert node.ask(look, FAKEGPU_CLOCK="virtual") == [100, 0]


def test_mig_devices_of_a_card(make: Make) -> None:
    node = make(("A100-80GB", 2), mig={1: ["1g.10gb", "3g.40gb"]})
    parent, own = node.cards[1].uuid, gpus.mig_uuids(node.cards[1])
    assert node.ask("""
parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(card(1), i) for i in range(2)]
def facts(h):
    return [n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h), n.nvmlDeviceIsMigDeviceHandle(h).value,
        n.nvmlDeviceGetMemoryInfo(h).total, n.nvmlDeviceGetAttributes(h).multiprocessorCount,
        n.nvmlDeviceGetAttributes(h).gpuInstanceSliceCount, n.nvmlDeviceGetGpuInstanceId(h),
        n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(h))]
result = [list(n.nvmlDeviceGetMigMode(card(0))), list(n.nvmlDeviceGetMigMode(card(1))),
    [facts(h) for h in parts], code(n.nvmlDeviceGetMigDeviceHandleByIndex, card(1), 2),
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(facts(parts[0])[0])),
    code(n.nvmlDeviceGetGpuInstanceId, card(1))]
""") == [
        [0, 0],
        [1, 1],
        [
            [own[0], "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 1, 9728 * MIB, 14, 1, 7, parent],
            [own[1], "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 1, 40448 * MIB, 40, 3, 8, parent],
        ],
        NOT_FOUND,
        own[0],
        NOT_SUPPORTED,
    ]


def test_a_container_with_one_mig_device_does_not_see_the_others(make: Make) -> None:
    node = make(("A100-80GB", 2), mig={1: ["1g.10gb", "3g.40gb"]})
    own = gpus.mig_uuids(node.cards[1])
    assert node.ask(
        """
result = [n.nvmlDeviceGetCount(),
    [code(n.nvmlDeviceGetMigDeviceHandleByIndex, card(0), i) for i in range(2)]]
""",
        NVIDIA_VISIBLE_DEVICES=own[1],
    ) == [1, [NOT_FOUND, 0]]


def test_how_cards_are_connected(make: Make) -> None:
    node = make(("H100", 4))
    assert node.ask("""
far = n.nvmlDeviceGetTopologyCommonAncestor
result = [[far(card(0), card(i)) for i in (1, 2)],
    n.nvmlDeviceGetNvLinkState(card(0), 17), code(n.nvmlDeviceGetNvLinkState, card(0), 18),
    n.nvmlDeviceGetNvLinkRemoteDeviceType(card(0), 0),
    n.nvmlDeviceGetP2PStatus(card(0), card(3), n.NVML_P2P_CAPS_INDEX_NVLINK),
    [list(n.nvmlDeviceGetMemoryAffinity(card(i), 1, 0)) for i in (0, 3)],
    list(n.nvmlDeviceGetCpuAffinity(card(0), 2))]
""") == [[10, 50], 1, 2, 2, 0, [[1], [2]], [0xFFFFFFFF, 0xFFFFFFFF]]


def test_cards_in_pairs_and_cards_without_links(make: Make) -> None:
    node = make(("V100", 2), ("RTX4090", 2))
    assert node.ask("""
status = lambda a, b, what: n.nvmlDeviceGetP2PStatus(card(a), card(b), what)
result = [n.nvmlDeviceGetNvLinkRemotePciInfo(card(0), 5).busId,
    n.nvmlDeviceGetNvLinkState(card(0), 6), code(n.nvmlDeviceGetNvLinkState, card(2), 0),
    status(0, 1, n.NVML_P2P_CAPS_INDEX_NVLINK), status(2, 3, n.NVML_P2P_CAPS_INDEX_NVLINK) > 0,
    status(2, 3, 0) > 0, code(n.nvmlDeviceGetRetiredPages, card(0), 0),
    code(n.nvmlDeviceGetRemappedRows, card(0)), list(n.nvmlDeviceGetEccMode(card(3)))]
""") == ["00000000:27:00.0", 0, NOT_SUPPORTED, 0, True, True, 0, NOT_SUPPORTED, [0, 0]]


LISTEN = """
sets = [n.nvmlEventSetCreate() for _ in range(2)]
for place, events in enumerate(sets):
    n.nvmlDeviceRegisterEvents(card(place), n.nvmlEventTypeXidCriticalError, events)
for line in sys.stdin:
    try:
        place, milliseconds = map(int, line.split())
        event = n.nvmlEventSetWait(sets[place], milliseconds)
        said = [n.nvmlDeviceGetUUID(event.device), event.eventType, event.eventData]
    except n.NVMLError as error:
        said = error.value
    print(json.dumps(said))
"""


def test_xids_come_to_those_who_listened_to_the_card(make: Make) -> None:
    node = make(("L4", 2))
    first, second = (card.uuid for card in node.cards)
    gpus.inject_xid(node.folder, first, 13)
    wait = node.talk(LISTEN)
    assert wait("0 0") == TIMEOUT
    gpus.inject_xid(node.folder, second, 48)
    gpus.inject_xid(node.folder, first, 79)
    gpus.inject_xid(node.folder, first, 31)
    assert wait("0 5000") == [first, 8, 79]
    assert wait("0 5000") == [first, 8, 31]
    assert wait("0 0") == TIMEOUT
    assert wait("1 5000") == [second, 8, 48]
    gpus.set_faults(node.folder, [f"card {second} lost"])
    assert wait("1 0") == LOST
    assert wait("0 0") == TIMEOUT


def test_a_lost_card_answers_nothing_and_the_others_go_on(make: Make) -> None:
    node = make(("L4", 2))
    gpus.set_faults(node.folder, [f"card {node.cards[0].uuid} lost"])
    assert node.ask(f"""
result = [n.nvmlDeviceGetCount(), code(card, 0), code(card, 1),
    code(n.nvmlDeviceGetHandleByUUID, {node.cards[0].uuid!r})]
""") == [2, LOST, 0, LOST]


def test_a_card_that_falls_off_the_bus_while_it_is_watched(make: Make) -> None:
    node = make(("L4", 1))
    look = node.talk("""
h = card()
for line in sys.stdin:
    print(code(n.nvmlDeviceGetMemoryInfo, h))
""")
    seen = []
    for faults in ([], [f"card {node.cards[0].uuid} lost"], []):
        gpus.set_faults(node.folder, faults)
        seen.append(look())
    assert seen == [0, LOST, 0]


def test_faults_on_order(make: Make) -> None:
    node = make(("L4", 1))
    assert node.ask(
        """
ask = lambda: code(n.nvmlDeviceGetMemoryInfo, card())
result = [[ask() for _ in range(3)], code(n.nvmlDeviceGetName, card())]
""",
        FAKEGPU_FAULTS="nvmlDeviceGetMemoryInfo 2 999;missing nvmlDeviceGetName",
    ) == [[0, 999, 0], 13]


def test_hidden_memory_is_not_free(make: Make) -> None:
    node = make(("T4", 1))
    gpus.set_faults(node.folder, [f"card {node.cards[0].uuid} hide {1000 * MIB}"])
    assert node.ask("""
m, v2 = n.nvmlDeviceGetMemoryInfo(card()), n.nvmlDeviceGetMemoryInfo(card(), n.nvmlMemory_v2)
result = [m.free, m.used, v2.free, v2.used, v2.reserved]
""") == [14360 * MIB, 1000 * MIB, 14360 * MIB, 0, 1000 * MIB]


def test_a_bad_handle_is_refused(make: Make) -> None:
    assert make(("L4", 1)).ask("""
lib = ctypes.CDLL("libnvidia-ml.so.1")
ask = lambda at: lib.nvmlDeviceGetIndex(ctypes.c_void_p(at), ctypes.byref(ctypes.c_uint()))
result = [ask(None), ask(4096), ask(ctypes.cast(card(), ctypes.c_void_p).value)]
""") == [2, 2, 0]


def test_only_nvml_is_exported(library: Path) -> None:
    names = elf.Library(library / "libnvidia-ml.so.1").exports
    assert {name for name in names if not re.match("nvml[A-Z]", name)} == {"fakegpu_advance"}
