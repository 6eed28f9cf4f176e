"""The driver's view of a node's cards, on the stand-in driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami.node import nvml_library
from hami_sandbox import gpus
from tests.unit.node import stand_in

MIB = 1 << 20

Run = Callable[[str], Any]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "gpus"
    gpus.write_node(folder, [("A10", 3)], name="node-a")
    return folder


@pytest.fixture
def run(node: Path, root: Path) -> Run:
    return lambda code: stand_in.run(code, node=node, root=root)


LIST = """
nvml = Nvml.open(root)
cards, problems = nvml.cards()
result = [[dataclasses.asdict(card) for card in cards], [str(problem) for problem in problems]]
"""


def test_cards_are_read_as_the_driver_has_them(run: Run, node: Path) -> None:
    cards, problems = run(LIST)
    assert problems == []
    expected = gpus.read_node(node)
    assert [card["uuid"] for card in cards] == [card.uuid for card in expected]
    assert [card["index"] for card in cards] == [0, 1, 2]
    assert [card["minor"] for card in cards] == [0, 1, 2]
    assert {card["name"] for card in cards} == {"NVIDIA A10"}
    assert [card["memory"] for card in cards] == [card.memory for card in expected]
    assert [card["numa"] for card in cards] == [0, 0, 1]
    assert [card["bus_id"] for card in cards] == [card.bus for card in expected]
    assert not any(card["mig_enabled"] or card["mig"] for card in cards)


def test_a_lost_card_is_a_problem_of_its_own(run: Run, node: Path) -> None:
    lost = gpus.read_node(node)[1].uuid
    gpus.set_faults(node, [f"card {lost} lost"])
    cards, problems = run(LIST)
    assert [card["index"] for card in cards] == [0, 2]
    (problem,) = problems
    assert "GPU 1" in problem
    assert "reboot" in problem


def test_a_card_that_is_lost_later_is_named_by_its_uuid(run: Run, node: Path) -> None:
    lost = gpus.read_node(node)[2].uuid
    (problem,) = run(
        """
nvml = Nvml.open(root)
nvml.cards()
gpus.set_faults(folder, [f"card {card(2)} lost"])
result = [str(problem) for problem in nvml.cards()[1]]
"""
    )
    assert lost in problem


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"]
)
def test_one_refusal_costs_one_card(run: Run, node: Path, function: str) -> None:
    gpus.set_faults(node, [f"{function} 2 999"])
    cards, problems = run(LIST)
    assert [card["index"] for card in cards] == [0, 2]
    assert len(problems) == 1
    assert "GPU 1" in problems[0]


def test_what_a_driver_does_not_report_is_left_open(run: Run, node: Path) -> None:
    gpus.set_faults(
        node,
        [
            "nvmlDeviceGetMemoryInfo 1+ 3",
            "missing nvmlDeviceGetMinorNumber",
            "missing nvmlDeviceGetMigMode",
            "missing nvmlDeviceGetMemoryAffinity",
        ],
    )
    cards, problems = run(LIST)
    assert problems == []
    assert [(card["memory"], card["minor"], card["mig_enabled"]) for card in cards] == [
        (0, None, False)
    ] * 3


def test_a_card_with_unified_memory_answers_a_probe_and_reports_no_memory(
    run: Run, node: Path
) -> None:
    gpus.set_faults(node, ["nvmlDeviceGetMemoryInfo 1+ 3", "nvmlDeviceGetMemoryInfo_v2 1+ 3"])
    code = """
nvml = Nvml.open(root)
try:
    used = nvml.memory_used(card(0))
except NvmlError as error:
    used = error.is_unsupported
result = [nvml.probe(card(0)), used]
"""
    assert run(code) == ["", True]


def test_a_new_process_tries_the_driver(
    root: Path, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKEGPU_DIR", str(node))
    assert nvml_library.opens_in_new_process(str(root))
    assert not nvml_library.opens_in_new_process(str(tmp_path / "elsewhere"))


def test_mig_devices_are_listed_with_their_card(root: Path, tmp_path: Path) -> None:
    made = gpus.write_node(
        tmp_path, [("A100-40GB", 2)], name="node-m", mig={1: ["1g.5gb", "3g.20gb"]}
    )
    cards, problems = stand_in.run(LIST, node=tmp_path, root=root)
    assert problems == []
    assert [card["mig_enabled"] for card in cards] == [False, True]
    parts = cards[1]["mig"]
    assert [part["uuid"] for part in parts] == gpus.mig_uuids(made[1])
    assert [part["profile"] for part in parts] == ["1g.5gb", "3g.20gb"]
    assert [part["parent"] for part in parts] == [made[1].uuid] * 2
    assert parts[0]["memory"] == 5 * 1024 * MIB - 512 * MIB
    assert len({part["gpu_instance_id"] for part in parts}) == 2


def test_a_mig_device_that_refuses_leaves_the_others(root: Path, tmp_path: Path) -> None:
    gpus.write_node(tmp_path, [("A100-40GB", 1)], name="node-m", mig={0: ["1g.5gb", "1g.5gb"]})
    gpus.set_faults(tmp_path, ["nvmlDeviceGetAttributes_v2 1 999"])
    cards, problems = stand_in.run(LIST, node=tmp_path, root=root)
    assert len(cards[0]["mig"]) == 1
    assert len(problems) == 1
    assert "MIG-" in problems[0]


def test_no_driver_says_why_and_what_to_do(root: Path, tmp_path: Path) -> None:
    code = """
try:
    Nvml.open(sys.argv[1] if len(sys.argv) > 1 else root)
except NvmlError as error:
    result = [error.what, error.text, error.remedy]
"""
    what, text, remedy = stand_in.run(code, node=tmp_path / "absent", root=root)
    assert what == "NVML"
    assert "Driver Not Loaded" in text
    assert "load the NVIDIA driver" in remedy
    _, text, remedy = stand_in.run(code, node=tmp_path, root=tmp_path)
    assert str(tmp_path) in text
    assert "--driver-root" in remedy


def test_a_probe_returns_why_a_card_does_not_answer(run: Run) -> None:
    before, lost, other, unknown, after = run(
        """
nvml = Nvml.open(root)
before = nvml.probe(card(1))
gpus.set_faults(folder, [f"card {card(1)} lost"])
lost, other, unknown = nvml.probe(card(1)), nvml.probe(card(0)), nvml.probe("GPU-none")
gpus.set_faults(folder, [])
result = [before, lost, other, unknown, nvml.probe(card(1))]
"""
    )
    assert (before, other, after) == ("", "", "")
    assert "lost" in lost
    assert "Not Found" in unknown


def test_a_card_that_was_never_seen_is_found_past_a_lost_one(run: Run) -> None:
    assert (
        run(
            """
gpus.set_faults(folder, [f"card {card(0)} lost", "missing nvmlDeviceGetHandleByUUID"])
nvml = Nvml.open(root)
result = nvml.probe(card(2))
"""
        )
        == ""
    )


def test_a_driver_without_recovery_actions_says_none(run: Run) -> None:
    assert run("result = [Nvml.open(root).recovery_action(card(0))]") == [None]


def test_a_reopened_driver_answers_again(run: Run) -> None:
    refused, first, removed, back = run(
        """
nvml = Nvml.open(root)
watch = nvml.watch_xids([card(0)])
try:
    nvml.reopen()
except NvmlError as error:
    refused = str(error)
watch.close()
nvml.reopen()
first = nvml.probe(card(0))
gpus.set_faults(folder, ["nvmlInitWithFlags 1 9"])
try:
    nvml.reopen()
except NvmlError:
    removed = nvml.probe(card(0))
nvml.reopen()
result = [refused, first, removed, nvml.probe(card(0))]
"""
    )
    assert "XID watch" in refused
    assert (first, back) == ("", "")
    assert "Uninitialized" in removed


def test_links_are_read_card_by_card(root: Path, tmp_path: Path) -> None:
    made = gpus.write_node(tmp_path, [("H100", 4)], name="node-l")
    links, problems = stand_in.run(
        """
nvml = Nvml.open(root)
links, problems = nvml.links(nvml.cards()[0])
result = [[dataclasses.asdict(each) for each in links], [str(each) for each in problems]]
""",
        node=tmp_path,
        root=root,
    )
    assert problems == []
    assert [each["uuid"] for each in links] == [card.uuid for card in made]
    assert [links[0]["ancestors"][card.uuid] for card in made[1:]] == [10, 50, 50]
    assert set(links[0]["nvlinks"]) == {"switch"}


def test_a_lost_card_has_no_links_and_the_others_have(run: Run) -> None:
    count, problems = run(
        """
nvml = Nvml.open(root)
cards = nvml.cards()[0]
gpus.set_faults(folder, [f"card {card(1)} lost"])
links, problems = nvml.links(cards)
linked = {each.uuid: sorted(each.ancestors) for each in links}
result = [len(linked[card(0)]), [str(each) for each in problems]]
"""
    )
    assert count == 1
    assert any("lost" in problem for problem in problems)
