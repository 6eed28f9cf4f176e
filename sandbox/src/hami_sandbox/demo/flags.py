"""Flags of `hami demo`, and its fleet.

The flags of `hami demo`.

The demo's own fleet, and the one that its user asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hami.cli import errors
from hami_sandbox.plan import NodePlan, Plan, parse_node

_DESCRIPTION = """\
Run a whole cluster on this machine, without Kubernetes, root or GPU, and show what hami does.

hami's own scheduler, webhook, agents and monitors run as they do on a real cluster; Kubernetes and
the GPUs are stand-ins. The examples are run one after the other, and each is held against its text.
On a terminal the cluster then stays up, for you and kubectl, until Ctrl-C. No process and no file
is left behind."""
_EPILOG = """\
  hami demo                                   the examples on two H100, two A100 and four T4
  hami demo --once                            the same, then end: for scripts
  hami demo --node gpu-a=8xH100 --no-examples one node with eight H100, and nothing on it yet
  hami demo --nodes 1000                      with simulated nodes, 1000 in all
  hami demo --example quota --example burst   some examples only

Exit code 0: every example ended as its text says; 1: one did not, or the cluster did not start;
2: wrong usage; 130: ended by Ctrl-C before the examples were through."""


def build(prog: str) -> errors.Parser:
    made = errors.Parser(prog=prog, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument(
        "--once", action="store_true", help="end after the summary; so without a terminal, too"
    )
    made.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=CARDS",
        help="a node and its cards, as gpu-a=8xH100 or gpu-b=4xA100-80GB,2xT4; may be repeated, up "
        "to 8 (default: a small mixed fleet)",
    )
    made.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="nodes in all; those beyond the ones above are simulated and start no containers",
    )
    made.add_argument(
        "--example",
        action="append",
        default=[],
        metavar="NAME",
        help="run this one, as 05-quota, quota or 5; may be repeated (default: all)",
    )
    made.add_argument("--no-examples", action="store_true", help="run none")
    made.add_argument(
        "--examples",
        type=Path,
        metavar="DIR",
        help="where they are (default: examples/ beside the sources)",
    )
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where the cluster's files are meanwhile; must be new or empty, and goes at the end "
        "(default: a new one below /tmp)",
    )
    made.add_argument(
        "--keep-logs",
        type=Path,
        metavar="DIR",
        help="keep the logs of all programs there",
    )
    return made


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
