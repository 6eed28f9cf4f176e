"""The cost of a context is learned from the driver alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hami.agent.cards.context_costs import LEAST, MOST, ContextCosts
from hami.node.nvml import NvmlError
from hami.node.nvml_cards import Card
from hami.node.nvml_processes import GpuProcess
from hami.wire import policy_file
from native import build
from tests.unit.agent.preparing import ALLOCATION_ID, FIRST, SECOND, Desk, grant

MIB = 1 << 20
CONTEXT = 518 * MIB
ENOUGH = 4000 * MIB


class Driver:
    def __init__(self) -> None:
        self.version = "580.1"
        self.on: dict[str, dict[int, int | None]] = {}

    def driver_version(self) -> str:
        return self.version

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        if uuid not in self.on:
            raise NvmlError(f"GPU {uuid}", "does not answer", "wait")
        return tuple(GpuProcess(pid=pid, memory=each) for pid, each in self.on[uuid].items())


def card(uuid: str, name: str = "NVIDIA H200", *, mig: bool = False) -> Card:
    return Card(
        index=0,
        minor=0,
        uuid=uuid,
        name=name,
        memory=140 << 30,
        mig_enabled=mig,
        mig=(),
        bus_id="0000:01:00.0",
        numa=0,
    )


class Node:
    """A node with two cards of one product."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lib" / "context-costs.json"
        self.driver = Driver()
        self.cards = [card(FIRST), card(SECOND)]
        self.costs = ContextCosts(self.path)

    def shows(self, *lists: dict[int, int | None]) -> int:
        """Let the driver show these processes on the first card, one list after the other."""
        for each in lists:
            self.driver.on[FIRST] = each
            self.costs.observe(self.driver, self.cards)
        return self.costs.cost(FIRST, ENOUGH)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_least_that_any_process_has_is_the_cost(node: Node) -> None:
    assert node.shows({1: CONTEXT + 40 * MIB, 2: 9000 * MIB}) == 0
    assert node.shows({1: CONTEXT + 40 * MIB, 2: 9000 * MIB}) == CONTEXT + 40 * MIB
    assert node.shows({3: CONTEXT}, {3: CONTEXT}) == CONTEXT
    assert node.shows({4: CONTEXT + MIB}, {4: CONTEXT + MIB}) == CONTEXT


def test_a_context_that_is_being_created_is_no_measure(node: Node) -> None:
    assert node.shows({1: 200 * MIB}, {1: CONTEXT}, {1: CONTEXT + MIB}, {2: CONTEXT + MIB}) == 0


@pytest.mark.parametrize("memory", [None, 0, LEAST - 1, MOST + 1, 100 << 30])
def test_what_no_context_costs_is_not_learned(node: Node, memory: int | None) -> None:
    assert node.shows({1: memory}, {1: memory}) == 0
    assert not node.path.exists()


def test_it_holds_for_all_cards_of_the_product_with_that_driver(node: Node) -> None:
    node.shows({1: CONTEXT}, {1: CONTEXT})
    assert node.costs.cost(SECOND, ENOUGH) == CONTEXT
    node.cards[1] = card(SECOND, "NVIDIA A10")
    assert node.shows({1: CONTEXT}) == CONTEXT
    assert node.costs.cost(SECOND, ENOUGH) == 0
    node.driver.version = "590.1"
    assert node.shows({}) == 0
    node.driver.version = "580.1"
    assert node.shows({}) == CONTEXT


def test_it_is_known_after_a_restart(node: Node) -> None:
    node.shows({1: CONTEXT}, {1: CONTEXT})
    node.costs = ContextCosts(node.path)
    assert node.costs.cost(FIRST, ENOUGH) == 0  # the driver has not listed the card yet
    assert node.shows({}) == CONTEXT


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"NVIDIA H200|580.1":99999999999999}'])
def test_a_damaged_file_is_forgotten(node: Node, content: bytes) -> None:
    node.path.parent.mkdir()
    node.path.write_bytes(content)
    node.costs = ContextCosts(node.path)
    assert node.shows({}) == 0
    assert node.shows({1: CONTEXT}, {1: CONTEXT}) == CONTEXT


def test_mig_devices_teach_nothing_about_the_card(node: Node) -> None:
    node.cards[0] = card(FIRST, mig=True)
    assert node.shows({1: CONTEXT}, {1: CONTEXT}) == 0


def test_a_small_limit_is_left_to_the_measurement(node: Node) -> None:
    """A figure of others that is too high must not keep a context from a share that it fits in."""
    node.shows({1: MOST}, {1: MOST})
    assert node.costs.cost(FIRST, MOST) == MOST
    assert node.costs.cost(FIRST, MOST - 1) == 0


def test_the_bound_is_the_librarys_guess() -> None:
    text = (build.SOURCES / "libvgpu/contexts.c").read_text()
    assert re.findall(r"#define USUAL_CONTEXT \((\d+) \* MIB\)", text) == [str(MOST // MIB)]


def test_the_cost_is_in_the_policies_of_containers(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.context_costs[FIRST] = CONTEXT
    desk.preparer.prepare(desk.share(grant(FIRST, 4000), grant(SECOND, 4000)), cdi=True)
    known = policy_file.decode(desk.layout.policy(ALLOCATION_ID).read_bytes())
    assert known.context_bytes == {FIRST: CONTEXT}
