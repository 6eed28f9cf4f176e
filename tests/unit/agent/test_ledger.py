"""The ledger: old or new, never neither; what cannot be read is kept and hurts nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.agent.ledger import Ledger, LedgerError
from hami.node import ledger_record as records_file
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord
from tests.unit.agent.preparing import layout
from tests.unit.agent.records import APP, INIT, allocation, record

FIRST = record("uid-1", (APP, [("A", 1000, 10)]), allocations=[allocation("a", 0, "A-0")])
SECOND = record("uid-2", (APP, [("B", 500, 0)]), allocations=[allocation("b", 0, "A-1")])
CHANGED = msgspec.structs.replace(FIRST, generation=2, resize="A,NVIDIA,2000,10:;")


def with_allocation_id(text: str) -> LedgerRecord:
    bad = msgspec.structs.replace(allocation("a"), allocation_id=text)
    return msgspec.structs.replace(FIRST, allocations=(bad,))


@pytest.fixture
def node(tmp_path: Path) -> NodeLayout:
    return layout(tmp_path)


def loaded(node: NodeLayout, *records: LedgerRecord) -> Ledger:
    """Write records, and read them as a new agent does."""
    writer = Ledger(node)
    writer.load()
    for each in records:
        writer.put(each)
    reader = Ledger(node)
    reader.load()
    return reader


def test_records_are_there_after_a_restart(node: NodeLayout) -> None:
    ledger = loaded(node, FIRST, SECOND)
    assert ledger.records() == [FIRST, SECOND]
    assert ledger.get("uid-1") == FIRST
    assert ledger.by_allocation_id("b" * 32) == SECOND
    assert ledger.damaged == {}


def test_an_empty_ledger_knows_nobody(node: NodeLayout) -> None:
    ledger = loaded(node)
    assert (ledger.records(), ledger.get("uid-1"), ledger.by_allocation_id("a" * 32)) == (
        [],
        None,
        None,
    )


def test_a_changed_record_takes_the_place_of_the_old_one(node: NodeLayout) -> None:
    ledger = loaded(node, FIRST)
    other = msgspec.structs.replace(CHANGED, allocations=(allocation("c"),))
    ledger.put(other)
    assert ledger.get("uid-1") == loaded(node).get("uid-1") == other
    assert ledger.by_allocation_id("a" * 32) is None
    assert ledger.by_allocation_id("c" * 32) == other


def test_a_removed_pod_is_gone_for_good_and_twice_is_no_error(node: NodeLayout) -> None:
    ledger = loaded(node, FIRST, SECOND)
    for _ in range(2):
        ledger.remove("uid-1")
        assert ledger.records() == loaded(node).records() == [SECOND]
        assert ledger.by_allocation_id("a" * 32) is None


def failing(after: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call fail after so many good ones."""
    left = [after]

    def call(*arguments: Any, **options: Any) -> Any:
        if left[0] == 0:
            raise OSError(5, "Input/output error")
        left[0] -= 1
        return real(*arguments, **options)

    return call


#: What fails, and after how many good calls. The last one follows the rename.
STEPS = [("os", "fsync", 0), ("pathlib.Path", "replace", 0), ("os", "fsync", 1)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("old", [None, FIRST])
def test_whatever_fails_the_file_has_the_old_record_or_the_new_one(
    node: NodeLayout,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[str, str, int],
    old: LedgerRecord | None,
) -> None:
    place, call, after = step
    ledger = loaded(node, SECOND, *([old] if old else []))
    where: Any = os if place == "os" else Path
    monkeypatch.setattr(where, call, failing(after, getattr(where, call)))
    with pytest.raises(LedgerError, match=r"uid-1 .*Input/output error"):
        ledger.put(CHANGED)
    monkeypatch.undo()
    on_disk = loaded(node)
    assert on_disk.get("uid-1") == (CHANGED if after else old)
    assert on_disk.get("uid-2") == SECOND
    assert on_disk.damaged == {}
    # Memory counts what a restarted agent would count.
    assert ledger.get("uid-1") == on_disk.get("uid-1")


_KILLED = """
import os, pathlib, signal, sys
from hami.agent.ledger import Ledger
from hami.node import ledger_record as record
from hami.node.layout import NodeLayout

ledger = Ledger(NodeLayout(state_dir=pathlib.Path(sys.argv[1])))
ledger.load()
left = int(sys.argv[4])
real = getattr({"os": os, "pathlib.Path": pathlib.Path}[sys.argv[2]], sys.argv[3])
def call(*arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(*arguments)
setattr({"os": os, "pathlib.Path": pathlib.Path}[sys.argv[2]], sys.argv[3], call)
ledger.put(record.decode(sys.stdin.buffer.read(), what="new"))
"""


@pytest.mark.parametrize("step", STEPS)
def test_an_agent_killed_while_it_writes_leaves_the_old_record_or_the_new_one(
    node: NodeLayout, step: tuple[str, str, int]
) -> None:
    loaded(node, FIRST, SECOND)
    place, call, after = step
    ran = subprocess.run(
        [sys.executable, "-c", _KILLED, str(node.state_dir), place, call, str(after)],
        input=records_file.encode(CHANGED),
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    on_disk = loaded(node)
    assert on_disk.get("uid-1") == (CHANGED if after else FIRST)
    assert on_disk.get("uid-2") == SECOND
    assert on_disk.damaged == {}
    names = sorted(path.name for path in node.ledger.iterdir())
    assert names == ["uid-1.json", "uid-2.json"]  # no draft stays


def test_it_is_on_disk_before_put_returns(
    node: NodeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before the rename, the folder after it."""
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        seen.append("folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file")
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(self, target)

    ledger = loaded(node)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    ledger.put(FIRST)
    assert seen == ["file", "rename", "folder"]
    seen.clear()
    ledger.put(CHANGED, durable=False)
    assert seen == ["rename"]
    ledger.remove("uid-1")
    assert seen == ["rename", "folder"]


def test_drafts_of_a_killed_agent_are_cleared(node: NodeLayout) -> None:
    loaded(node, FIRST)
    (node.ledger / ".0123").write_bytes(b'{"half')
    ledger = loaded(node)
    assert ledger.records() == [FIRST]
    assert [path.name for path in node.ledger.iterdir()] == ["uid-1.json"]


def renamed(uid: str) -> bytes:
    return records_file.encode(msgspec.structs.replace(FIRST, uid=uid))


DAMAGE = {
    "empty": b"",
    "cut": records_file.encode(FIRST)[:-20],
    "garbage": b"\xff\x00 not json",
    "another shape": b"[]",
    "another version": records_file.encode(msgspec.structs.replace(FIRST, version=9)),
    "another pod": renamed("uid-9"),
    "no grant": records_file.encode(msgspec.structs.replace(FIRST, devices="A,NVIDIA:;")),
    "no token": records_file.encode(with_allocation_id("../../etc")),
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_record_is_named_kept_and_hurts_nobody(node: NodeLayout, content: bytes) -> None:
    loaded(node, FIRST, SECOND)
    node.record("uid-1").write_bytes(content)
    ledger = loaded(node)
    assert ledger.records() == [SECOND]
    assert list(ledger.damaged) == ["uid-1"]
    assert str(node.record("uid-1")) in ledger.damaged["uid-1"]
    ledger.remove("uid-1")
    assert node.record("uid-1").read_bytes() == content
    # The pod is taken in again: the damaged file makes room and stays.
    ledger.put(FIRST)
    assert ledger.damaged == {}
    assert loaded(node).records() == [FIRST, SECOND]
    assert (node.ledger / "uid-1.json.damaged-1").read_bytes() == content


def test_a_second_damage_does_not_write_over_the_first(node: NodeLayout) -> None:
    for content in (b"one", b"two"):
        loaded(node, FIRST)
        node.record("uid-1").write_bytes(content)
        loaded(node).put(FIRST)
    kept = sorted(path.read_bytes() for path in node.ledger.glob("*.damaged-*"))
    assert kept == [b"one", b"two"]


def test_a_folder_in_the_place_of_a_record_is_damage_too(node: NodeLayout) -> None:
    loaded(node, SECOND)
    node.record("uid-1").mkdir()
    ledger = loaded(node)
    assert "uid-1" in ledger.damaged
    ledger.put(FIRST)
    assert loaded(node).records() == [FIRST, SECOND]


def test_other_files_are_left_alone(node: NodeLayout) -> None:
    loaded(node, FIRST)
    (node.ledger / "README").write_text("hands off")
    ledger = loaded(node)
    assert (ledger.records(), ledger.damaged) == ([FIRST], {})
    assert (node.ledger / "README").exists()


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(FIRST, uid="../evil"),
        msgspec.structs.replace(FIRST, uid=""),
        with_allocation_id("A" * 32),
    ],
)
def test_what_must_not_become_a_path_is_not_written(node: NodeLayout, bad: LedgerRecord) -> None:
    ledger = loaded(node)
    with pytest.raises(LedgerError, match="which is not"):
        ledger.put(bad)
    assert [path for path in node.state_dir.rglob("*") if path.is_file()] == []


def test_a_ledger_that_cannot_be_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("a file where the folder should be")
    with pytest.raises(LedgerError, match="--state-dir"):
        Ledger(layout(tmp_path)).load()


def test_a_full_disk_keeps_what_was(node: NodeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = loaded(node, FIRST)

    def full(*_arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(LedgerError, match="No space left on device; free space"):
        ledger.put(CHANGED)
    monkeypatch.undo()
    assert ledger.get("uid-1") == FIRST


def test_device_ids_lead_to_the_cards_behind_them(node: NodeLayout) -> None:
    """To the main container kubelet gives the ids of an init container that ended."""
    pod = record(
        "uid-3",
        (INIT, [("A", 100, 0)]),
        (APP, [("B", 100, 0), ("C", 100, 0)]),
        allocations=[allocation("c", 0, "B-7"), allocation("d", 1, "B-7", "C-1")],
    )
    assert loaded(node, FIRST, pod).held() == {
        "A-0": {"A"},
        "B-7": {"A", "B", "C"},
        "C-1": {"B", "C"},
    }


def test_used_slots_are_the_most_at_one_time(node: NodeLayout) -> None:
    pod = record(
        "uid-3",
        (INIT, [("A", 100, 0)]),
        (INIT, [("A", 100, 0), ("B", 1, 0)]),
        (APP, [("A", 100, 0)]),
    )
    ledger = loaded(node, FIRST, pod)
    assert ledger.used_shares() == {"A": 2, "B": 1}
    assert ledger.used_shares(init_done={"uid-3"}) == {"A": 2, "B": 0}


def test_a_damaged_record_that_somebody_took_away_is_none(node: NodeLayout) -> None:
    node.ledger.mkdir(parents=True)
    for uid in ("uid-1", "uid-2"):
        node.record(uid).write_bytes(b"{")
    ledger = Ledger(node)
    ledger.load()
    node.record("uid-1").unlink()
    ledger.recheck_damaged()
    assert list(ledger.damaged) == ["uid-2"]
