"""Cables and routes: a bridge at the control plane, a cable to each node.

Everything is made inside the machines' own network namespaces; this machine's interfaces, routes
and packet filter are never touched. Nodes route to each other's pods directly, without translation.
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster.layout import CONTROL_PLANE_ADDRESS, MACHINE_PREFIX, SERVICE_RANGE, Node
from tests.e2e.cluster.machines import Machine

BRIDGE = "machines"


def set_up_control_plane(machine: Machine, nodes: tuple[Node, ...]) -> None:
    _ip(
        machine,
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {CONTROL_PLANE_ADDRESS}/{MACHINE_PREFIX} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # A service's address must have a way out before kube-proxy's rules can change it.
        f"route add {SERVICE_RANGE} dev {BRIDGE}",
        *(f"route add {node.pod_range} via {node.address}" for node in nodes),
    )
    _forward(machine)


def connect(control_plane: Machine, machine: Machine, node: Node, nodes: tuple[Node, ...]) -> None:
    with Path(f"/proc/{machine.init.pid}/ns/net").open("rb") as other:
        far_end = f"/proc/self/fd/{other.fileno()}"
        control_plane.run(
            *f"ip link add {node.name} type veth peer name eth0 netns {far_end}".split(),
            pass_fds=(other.fileno(),),
        )
    _ip(control_plane, f"link set {node.name} master {BRIDGE} up")
    _ip(
        machine,
        "link set lo up",
        f"addr add {node.address}/{MACHINE_PREFIX} dev eth0",
        "link set eth0 up",
        f"route add default via {CONTROL_PLANE_ADDRESS}",
        *(f"route add {o.pod_range} via {o.address}" for o in nodes if o != node),
    )
    _forward(machine)


def _ip(machine: Machine, *commands: str) -> None:
    machine.run("ip", "-batch", "-", stdin="\n".join(commands))


def _forward(machine: Machine) -> None:
    # Written from inside: these files belong to the network of whoever opens them.
    machine.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
