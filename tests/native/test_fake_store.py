"""The stand-in driver's store: memory of the dead is free, peaks are kept.

What a user of the stand-in sees, whatever way processes end, fork or share a card.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hami_sandbox import gpus
from tests.e2e.auditor import peaks
from tests.native import building
from tests.native.fake_store_driving import (
    UNSHARE,
    Holder,
    can_unshare,
    current_driver,
    sanitized_driver,
)

MIB = 1 << 20

Start = Callable[..., Holder]


@pytest.fixture(scope="session")
def program() -> Path:
    return current_driver()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    gpus.write_node(folder, [("T4", 2)], name="n")
    return folder


@pytest.fixture
def start(program: Path, node: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(wrapper: tuple[str, ...] = (), **environment: str) -> Holder:
            return stack.enter_context(Holder(program, node, environment, wrapper))

        yield begin


def record(node: Path) -> dict[tuple[str, int], int]:
    """Read the highest lines of card 0, in MiB by owner and pid, as the auditor does."""
    found, bad = peaks.read((node / peaks.FILE).read_text())
    assert bad == []
    first = gpus.read_node(node)[0]
    assert {peak.total for peak in found} == {first.memory}
    return {(p.owner, p.pid): p.bytes // MIB for p in found if p.card == first.uuid}


def test_a_killed_process_frees_its_memory_at_once(start: Start) -> None:
    holder, reader = start(), start()
    assert holder.ask("take 0 1000") == "1"
    assert reader.ask("used 0") == "1000"
    holder.kill()
    assert reader.ask("used 0") == "0"
    assert reader.ask("processes 0") == ""


def test_a_full_card_refuses_and_takes_again_when_its_owner_died(start: Start) -> None:
    first, second = start(), start()
    assert first.ask("take 0 15360") == "1"
    assert second.ask("take 0 1") == "0"
    assert second.ask("take 1 15360") == "1"
    first.kill()
    assert second.ask("take 0 15360") == "1"
    assert second.ask("take-bytes 0 1") == "0"


def test_managed_memory_is_on_the_card_but_in_no_account(start: Start) -> None:
    holder = start()
    holder.ask("managed 0 64")
    assert (holder.ask("used 0"), holder.ask("own 0")) == ("64", "0")
    assert holder.ask("processes 0") == ""
    holder.ask("take 0 100")
    assert holder.ask("own 0") == "100"
    assert holder.ask("processes 0") == f"{holder.pid}:{holder.pid}:100"


def test_peaks_of_processes_containers_and_cards(start: Start, node: Path) -> None:
    one, two = start(FAKEGPU_OWNER="uid-1/main"), start(FAKEGPU_OWNER="uid-1/main")
    other, bare = start(FAKEGPU_OWNER="uid-2/main"), start(FAKEGPU_OWNER="")
    one.ask("take 0 300")
    one.ask("give 0 200")
    two.ask("take 0 150")
    two.ask("managed 0 100")
    other.ask("take 0 10")
    bare.ask("take 0 5")
    other.ask("take 1 7")
    assert record(node) == {
        ("uid-1/main", one.pid): 300,
        ("uid-1/main", two.pid): 250,
        ("uid-1/main", 0): 350,
        ("uid-2/main", other.pid): 10,
        ("uid-2/main", 0): 10,
        ("", bare.pid): 5,
        ("", 0): 365,
    }


def test_one_byte_above_a_limit_is_a_line_and_less_may_be_none(start: Start, node: Path) -> None:
    holder = start(FAKEGPU_OWNER="")
    holder.ask("take 0 100")
    lines = (node / peaks.FILE).read_text().count("\n")
    holder.ask("take-bytes 0 1")
    found, _ = peaks.read((node / peaks.FILE).read_text())
    assert {peak.bytes for peak in found} == {100 * MIB + 1}
    holder.ask("take-bytes 0 1000")
    assert (node / peaks.FILE).read_text().count("\n") == lines + 2


def test_what_the_dead_had_makes_no_peak(start: Start, node: Path) -> None:
    for _ in range(3):
        holder = start(FAKEGPU_OWNER="uid/main")
        holder.ask("take 0 1000")
        holder.kill()
    assert {key: value for key, value in record(node).items() if key[1] == 0} == {
        ("uid/main", 0): 1000,
        ("", 0): 1000,
    }


def test_an_owner_with_strange_letters_leaves_the_record_readable(start: Start, node: Path) -> None:
    start(FAKEGPU_OWNER='u"\\\n\x01/mä').ask("take 0 1")
    found, bad = peaks.read((node / peaks.FILE).read_text())
    assert bad == []
    assert {peak.owner for peak in found} == {'u"\\\n\x01/mä'.encode().decode("latin-1"), ""}


def test_a_line_cut_off_by_a_kill_spoils_no_other(start: Start, node: Path) -> None:
    """Linux ends a write of a killed process at a page's end: the line's first part stays."""
    first = start(FAKEGPU_OWNER="uid/main")
    first.ask("take 0 1000")
    with (node / peaks.FILE).open("a") as file:
        file.write('{"time": 1785320000.250000, "card": "GPU-')
    first.ask("take 0 10")
    found, bad = peaks.read((node / peaks.FILE).read_text())
    assert bad == []
    assert {peak.bytes for peak in found} == {1010 * MIB}


def test_a_record_that_was_removed_is_written_anew(start: Start, node: Path) -> None:
    first = start(FAKEGPU_OWNER="uid/main")
    first.ask("take 0 1000")
    (node / peaks.FILE).unlink()
    start(FAKEGPU_OWNER="uid/main").ask("take 0 10")
    assert record(node)["uid/main", 0] == 1010
    assert record(node)["", 0] == 1010


def test_killed_anywhere_they_leave_nothing(start: Start, node: Path) -> None:
    chance = random.Random(7)
    reader = start()
    for _ in range(15):
        churning = [start(FAKEGPU_OWNER="uid/main") for _ in range(3)]
        for holder in churning:
            assert holder.ask("churn 0") == "ok"
        for _ in range(chance.randrange(20)):  # meanwhile they get somewhere
            reader.ask("used 0")
        for holder in churning:
            holder.kill()
        assert reader.ask("used 0") == "0"
    assert reader.ask("take 0 15360") == "1"
    assert record(node)["", 0] == 15360


def test_a_child_starts_with_nothing_and_its_end_takes_nothing(start: Start) -> None:
    parent = start()
    parent.ask("take 0 100")
    assert parent.ask("fork 0 50") == "0 1 50 150"
    assert parent.ask("used 0") == "100"
    assert parent.ask("own 0") == "100"
    assert start().ask("processes 0") == f"{parent.pid}:{parent.pid}:100"


@pytest.mark.parametrize("size", ["same", "shorter", "empty"])
def test_a_state_file_of_someone_else_is_no_hindrance(start: Start, node: Path, size: str) -> None:
    first = start()
    first.ask("take 0 10")
    first.kill()
    state = node / "state"
    length = {"same": state.stat().st_size, "shorter": 1000, "empty": 0}[size]
    state.write_bytes(b"\xff" * length)
    holder, reader = start(), start()
    assert holder.ask("take 0 20") == "1"
    assert reader.ask("used 0") == "20"


def test_a_node_made_anew_with_other_cards_has_their_peaks(start: Start, node: Path) -> None:
    start(FAKEGPU_OWNER="uid/main").ask("take 0 1000")
    gpus.write_node(node, [("T4", 1)], name="another")
    start(FAKEGPU_OWNER="uid/main").ask("take 0 10")
    found, _ = peaks.read((node / peaks.FILE).read_text())
    fresh = gpus.read_node(node)[0].uuid
    assert ("uid/main", 0) in {(p.owner, p.pid) for p in found if p.card == fresh}


def test_processes_share_a_cards_time(start: Start) -> None:
    one, two = start(FAKEGPU_CLOCK="virtual"), start(FAKEGPU_CLOCK="virtual")
    now = int(one.ask("now 0"))
    assert int(one.ask(f"run 0 {now} 1000")) == now + 1000
    assert int(two.ask(f"run 0 {now} 500")) == now + 1500
    assert int(two.ask(f"run 0 {now + 9000} 500")) == now + 9500
    assert int(two.ask(f"run 1 {now} 500")) == now + 500
    one.ask("advance 0 1000000")
    assert one.ask("busy 0") == "2000 1000"
    assert two.ask("busy 0") == "2000 1000"


def test_work_of_the_dead_leaves_the_card_up_to_what_the_living_queued(start: Start) -> None:
    living, killed, behind = (start(FAKEGPU_CLOCK="virtual") for _ in range(3))
    now = int(living.ask("now 0"))
    living.ask(f"run 0 {now} 100")
    killed.ask(f"run 0 {now} 5000")
    killed.ask(f"run 0 {now} 5000")
    killed.kill()
    assert int(living.ask(f"run 0 {now} 10")) == now + 110
    another = start(FAKEGPU_CLOCK="virtual")
    another.ask(f"run 0 {now} 5000")
    assert int(behind.ask(f"run 0 {now} 10")) == now + 5120
    another.kill()
    assert int(living.ask(f"run 0 {now} 10")) == now + 5130
    living.ask("advance 0 1000000")
    assert living.ask("busy 0") == "5130 120"


def test_the_virtual_clock_moves_only_when_told_and_wakes_sleepers(start: Start) -> None:
    sleeper, other = start(FAKEGPU_CLOCK="virtual"), start(FAKEGPU_CLOCK="virtual")
    now = int(sleeper.ask("now 0"))
    assert int(other.ask("now 0")) == now
    sleeper.tell(f"sleep 0 {now + 3_600_000_000_000}")
    other.ask("advance 0 3600000000000")
    assert sleeper.answer() == "ok"
    assert int(other.ask("now 0")) == now + 3_600_000_000_000


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        (None, "0 1 2"),
        ("all", "0 1 2"),
        ("void", ""),
        ("none", ""),
        ("", ""),
        ("2,0", "0 2"),
        ("{2}", "2"),
        ("{1},{0}", "0 1"),
        ("GPU-unknown,1", "1"),
        ("7", ""),
        ("{mig}", "1"),
    ],
)
def test_granted_cards(program: Path, tmp_path: Path, granted: str | None, expected: str) -> None:
    cards = gpus.write_node(tmp_path / "n", [("A100-40GB", 3)], name="n", mig={1: ["1g.5gb"]})
    names = [card.uuid for card in cards]
    environment = {}
    if granted is not None:
        text = granted.format(*names, mig=gpus.mig_uuids(cards[1])[0])
        environment["NVIDIA_VISIBLE_DEVICES"] = text
    with Holder(program, tmp_path / "n", environment) as holder:
        assert holder.ask("nvml 0") == expected
        assert holder.ask("cuda 0") == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("1,0", "2 0"),
        ("0", "0"),
        ("", ""),
        ("-1", ""),
        ("1,5,0", "2"),
        ("1,1,0", "2"),
        ("{2}", "2"),
        ("{2:.12}", "2"),
        ("{1}", ""),
        ("GPU-", ""),
    ],
)
def test_cuda_narrows_and_orders_what_was_granted(
    program: Path, tmp_path: Path, wanted: str, expected: str
) -> None:
    cards = gpus.write_node(tmp_path / "n", [("A100-40GB", 3)], name="n")
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "0,2",
        "CUDA_VISIBLE_DEVICES": wanted.format(*(card.uuid for card in cards)),
    }
    with Holder(program, tmp_path / "n", environment) as holder:
        assert holder.ask("nvml 0") == "0 2"
        assert holder.ask("cuda 0") == expected


def test_without_a_node_there_are_no_cards_and_no_files(program: Path, tmp_path: Path) -> None:
    with Holder(program, tmp_path / "nowhere") as holder:
        assert holder.ask("problem 0").startswith("0 ")
        assert "No such file" in holder.ask("problem 0")
        assert holder.ask("take 0 1") == "0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("memory=16106127360", "memory=many"), "memory=many is no whole number"),
        (("bus=", "omnibus="), "no bus"),
        (("sms=40", f"sms=40\tlong={'x' * 3000}"), "is longer than"),
    ],
)
def test_a_bad_line_says_what_is_wrong(
    start: Start, node: Path, change: tuple[str, str], words: str
) -> None:
    text = (node / "devices").read_text()
    (node / "devices").write_text(text.replace(*change))
    answer = start().ask("problem 0")
    assert answer.startswith("0 ")
    assert words in answer


def test_faults_of_one_process(start: Start) -> None:
    broken = start(FAKEGPU_FAULTS="cuA 2 700; cuB 2+ 2\nmissing cuC")
    assert [broken.ask("fault cuA") for _ in range(3)] == ["0", "700", "0"]
    assert [broken.ask("fault cuB") for _ in range(3)] == ["0", "2", "2"]
    assert (broken.ask("missing cuC"), broken.ask("missing cuA")) == ("1", "0")
    assert start().ask("fault cuB") == "0"


def test_faults_of_a_node_come_and_go_while_processes_run(start: Start, node: Path) -> None:
    one, two = start(), start()
    assert one.ask("fault cuMemAlloc_v2") == "0"
    gpus.set_faults(node, ["cuMemAlloc_v2 2 2"])
    assert [one.ask("fault cuMemAlloc_v2") for _ in range(2)] == ["0", "2"]
    assert two.ask("fault cuMemAlloc_v2") == "0"
    gpus.set_faults(node, ["cuMemAlloc_v2 2 2", "missing cuX"])
    assert [two.ask("fault cuMemAlloc_v2") for _ in range(2)] == ["2", "0"]
    gpus.set_faults(node, [])
    assert (two.ask("missing cuX"), two.ask("fault cuMemAlloc_v2")) == ("0", "0")


def test_hidden_memory_cannot_be_had(start: Start, node: Path) -> None:
    gpus.set_faults(node, [f"card {gpus.read_node(node)[0].uuid} hide {15000 * MIB}"])
    holder = start()
    assert (holder.ask("take 0 361"), holder.ask("take 0 360")) == ("0", "1")
    assert holder.ask("take 1 15360") == "1"


def test_a_delay_passes_on_the_nodes_clock(start: Start, node: Path) -> None:
    gpus.set_faults(node, ["cuA delay 5000"])
    slow, other = start(FAKEGPU_CLOCK="virtual"), start(FAKEGPU_CLOCK="virtual")
    since = int(slow.ask("now 0"))
    slow.tell("fault cuA")
    while not slow.has_answer(0.05):
        other.ask("advance 0 1000000000")
    assert slow.answer() == "0"
    assert int(slow.ask("now 0")) >= since + 5_000_000_000


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="may not make pid namespaces")


@needs_namespaces
def test_a_reader_sees_pids_of_its_own_namespace(start: Start) -> None:
    outside, inside = start(), start(wrapper=UNSHARE)
    outside.ask("take 0 10")
    inside.ask("take 0 20")
    seen = dict(word.split(":", 1) for word in outside.ask("processes 0").split())
    assert seen.pop(str(outside.pid)) == f"{outside.pid}:10"
    (outer, rest), *none = seen.items()
    assert (none, rest) == ([], "1:20")
    assert "\t1\n" in Path(f"/proc/{outer}/status").read_text().partition("NSpid:")[2]
    assert set(inside.ask("processes 0").split()) == {f"0:{outside.pid}:10", "1:1:20"}


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount over /dev")
def test_a_containers_owner_is_read_from_its_mounts(start: Start, node: Path) -> None:
    source = node.parent / "pods/uid-9/containers/main/abc"
    source.parent.mkdir(parents=True)
    source.touch()
    script = (
        "mount -t tmpfs none /dev && touch /dev/termination-log"
        f' && mount --bind {source} /dev/termination-log && exec "$0"'
    )
    holder = start(wrapper=(*UNSHARE, "sh", "-c", script))
    holder.ask("take 0 10")
    assert record(node) == {("uid-9/main", 1): 10, ("uid-9/main", 0): 10, ("", 0): 10}


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitizers_find_nothing(node: Path, tmp_path: Path, kind: building.Kind) -> None:
    program, made = sanitized_driver(kind, tmp_path / "holder")
    reports = tmp_path / "reports"
    with Holder(program, node, made.environment(reports), made.wrapper) as holder:
        assert holder.ask("threads 0") == "ok"
        assert holder.ask("take 0 100") == "1"
        assert holder.ask("fork 0 50") == "0 1 50 150"
        assert holder.ask("used 0") == "100"
    assert building.reports(reports) == []
