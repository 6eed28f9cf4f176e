"""Cards that are let go: which device files a process has open, as others see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami.node import proc, released_cards
from hami.node.released_cards import NONE, ReleasedCards, ReleasedFile
from hami_sandbox import gpus
from tests.unit.agent.node_cards import card, cut
from tests.unit.node import stand_in

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def run(tmp_path: Path, root: Path) -> Run:
    node = tmp_path / "gpus"
    gpus.write_node(node, [("A100-40GB", 3)], name="node-a", mig={1: ["1g.5gb", "2g.10gb"]})
    return lambda code: stand_in.run(_OPENED + code, node=node, root=root)


_OPENED = """
def opened():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # that of the list itself
    return sorted(link.rpartition("/")[2] for link in links if link.startswith(f"{folder}/dev/"))
"""


def test_a_released_card_is_not_opened_and_the_others_answer(run: Run) -> None:
    all_open, left, known, answers, mig, unknown, closed = run(
        """
nvml = Nvml.open(root)
cards, _ = nvml.cards()
before = opened()
nvml.close()
others = cards[:2]
nvml = Nvml.open(root, others)
again, problems = nvml.cards()
nvml.links(again)
for each in again:
    nvml.processes(each.uuid)
part = others[1].mig[0].uuid
found = [nvml.probe(card(0)), [str(p) for p in problems], nvml.processes(part)]
watch = nvml.watch_xids([each.uuid for each in again])
watch.close()
try:
    nvml.memory_used(card(2))
    unknown = ""
except NvmlError as error:
    unknown = str(error)
held = opened()
same = again == others
nvml.close()
result = [before, held, same, found[:2], list(found[2]), unknown, opened()]
"""
    )
    assert all_open == ["nvidia0", "nvidia1", "nvidia2", "nvidiactl"]
    assert left == ["nvidia0", "nvidia1", "nvidiactl"]
    assert known
    assert answers == ["", []]
    assert mig == []
    assert "there is no such thing" in unknown or "Not Found" in unknown
    assert closed == []


def test_a_card_that_left_the_bus_meanwhile_is_a_problem_of_its_own(run: Run) -> None:
    cards, (problem,) = run(
        """
nvml = Nvml.open(root)
cards, _ = nvml.cards()
nvml.close()
gpus.set_faults(folder, [f"card {card(0)} lost"])
nvml = Nvml.open(root, cards[:2])
again, problems = nvml.cards()
result = [[each.index for each in again], [str(each) for each in problems]]
"""
    )
    assert cards == [1]
    assert "GPU 0000:" in problem


@pytest.mark.parametrize("cards", [NONE, ReleasedCards((card(0), cut(1, 1, 2)), (card(2),))])
def test_the_file_has_what_was_released(tmp_path: Path, cards: ReleasedCards) -> None:
    path = tmp_path / "state" / "released-cards.json"
    assert released_cards.read(path) == NONE
    released_cards.write(path, cards)
    assert released_cards.read(path) == cards
    assert path.exists() == bool(cards.released)
    released_cards.write(path, NONE)
    assert released_cards.read(path) == NONE


def test_a_damaged_file_releases_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "released-cards.json"
    path.write_text("[")
    assert released_cards.read(path) == NONE
    assert "cannot read which cards are released" in caplog.text


def test_a_reader_of_the_file_follows_its_changes(tmp_path: Path) -> None:
    path = tmp_path / "released-cards.json"
    released = ReleasedFile(path)
    assert released() == NONE
    for cards in (ReleasedCards((card(0),), (card(1),)), ReleasedCards((card(1),), (card(0),))):
        released_cards.write(path, cards)
        assert released() == cards
    released_cards.write(path, NONE)
    assert released() == NONE


UID, OTHER = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-666666666666"


def _process(folder: Path, pid: int, *, pod: str = "", state: str = "S", opens: str = "") -> None:
    place = folder / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "cgroup").write_text(f"0::/kubepods/pod{pod}/x\n" if pod else "0::/init.scope\n")
    (place / "stat").write_text(f"{pid} (a (Z) b) {state} 1 1")
    (place / "comm").write_text("trainer\n")
    (place / "fd" / "0").symlink_to("/dev/null")
    if opens:
        (place / "fd" / "7").symlink_to(opens)


def test_a_pod_lives_while_a_process_of_it_has_not_ended(tmp_path: Path) -> None:
    _process(tmp_path, 1)
    _process(tmp_path, 40, pod=UID.replace("-", "_"), state="D")
    _process(tmp_path, 41, pod=OTHER, state="Z")
    (tmp_path / "42").mkdir()  # it has just ended
    assert proc.living(tmp_path, [UID, OTHER]) == {UID}
    assert proc.living(tmp_path / "none", [UID]) == frozenset()


def test_processes_that_have_a_card_open_are_found_with_their_pods(tmp_path: Path) -> None:
    _process(tmp_path, 1, opens="/dev/nvidia10")
    _process(tmp_path, 40, pod=UID, opens="/dev/nvidia1")
    _process(tmp_path, 41, opens="/dev/nvidia1")
    _process(tmp_path, 42, opens="/dev/nvidiactl")
    _process(tmp_path, 43, opens="/dev/nvidia1 (deleted)")  # as the kernel shows it after rm
    found = proc.openers(tmp_path, [0, 1])
    assert found[0] == []
    assert [(each.pid, each.name) for each in found[1]] == [
        (pid, "trainer") for pid in (40, 41, 43)
    ]
    assert [[pod.uid for pod in each.pods] for each in found[1]] == [[UID], [], []]
