"""The demo's own fleet, and the one that its user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from hami_sandbox.plan import NodePlan, Plan, parse_node

#: Small and mixed: every example fits, and three nodes are up in seconds on two cores.
NODES = (
    NodePlan(name="gpu-a", cards=(("H100", 2),)),
    NodePlan(name="gpu-b", cards=(("A100-80GB", 2),)),
    NodePlan(name="gpu-c", cards=(("T4", 4),)),
)


def plan(nodes: Sequence[str], simulated: int) -> Plan:
    """Return what is to be started; nodes that are named stand in for the demo's own."""
    made = Plan(nodes=tuple(map(parse_node, nodes)) or NODES, simulated=simulated)
    made.check()
    return made
