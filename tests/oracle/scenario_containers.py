"""Containers of a scenario's pods: kinds, order, spelling of amounts.

Placed pods and the incoming one are both made of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.wire import objects
from tests.oracle.sample_vendors import NVIDIA
from tests.oracle.scenario_draft import Amounts
from tests.oracle.scenario_tape import Tape

Kind = objects.ContainerKind

_OTHER_REQUESTS: Amounts = {NVIDIA.count: "2", NVIDIA.cores: "20"}


def pick_kinds(tape: Tape, several: int) -> list[Kind]:
    """Pick the kinds of a pod's containers; `several` is the chance of more than one."""
    if not tape.chance(several):
        return [Kind.APP]
    return tape.pick(
        (
            [Kind.APP, Kind.APP],
            [Kind.INIT, Kind.APP],
            [Kind.SIDECAR, Kind.APP],
            [Kind.INIT, Kind.APP, Kind.APP],
            [Kind.SIDECAR, Kind.INIT, Kind.APP],
            [Kind.INIT, Kind.SIDECAR, Kind.APP],
            [Kind.INIT, Kind.INIT, Kind.APP],
            [Kind.APP, Kind.APP, Kind.APP],
            [Kind.INIT, Kind.SIDECAR, Kind.INIT, Kind.APP, Kind.APP],
        )
    )


def pod_spec(
    kinds: Sequence[Kind],
    containers: Sequence[Amounts],
    *,
    node: str | None,
    place: str = "limits",
) -> objects.PodSpec:
    """Write amounts as limits, requests, both equal, or limits next to other requests."""
    inits: list[objects.Container | None] = []
    apps: list[objects.Container | None] = []
    for number, (kind, amounts) in enumerate(zip(kinds, containers, strict=True)):
        resources = objects.Resources(
            limits={} if place == "requests" else amounts,
            requests={"requests": amounts, "equal": {**amounts}, "both": _OTHER_REQUESTS}.get(
                place
            ),
        )
        container = objects.Container(
            name=f"c{number}",
            resources=resources if amounts else None,
            restart_policy="Always" if kind is Kind.SIDECAR else None,
        )
        (apps if kind is Kind.APP else inits).append(container)
    return objects.PodSpec(node_name=node, containers=apps, init_containers=inits or None)
