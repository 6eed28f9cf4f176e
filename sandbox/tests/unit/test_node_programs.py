"""Programs of a node of the embedded cluster, by its plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_sandbox import node_programs
from hami_sandbox.plan import parse_node


@pytest.mark.parametrize(
    ("cards", "offers"),
    [
        ("1xT4", {"nvidia.com/"}),
        ("1xT4,1xZ100", {"nvidia.com/", "hygon.com/dcunum"}),
        ("1xS60,1xMI210", {"enflame.com/gcu", "amd.com/gpu"}),
    ],
)
def test_a_node_offers_the_resources_of_all_its_cards(
    cards: str, offers: set[str], tmp_path: Path
) -> None:
    plan = parse_node(f"n={cards}")
    node = node_programs.make(tmp_path, plan, agent_port=1, monitor_port=2)
    assert node.resources() == offers
