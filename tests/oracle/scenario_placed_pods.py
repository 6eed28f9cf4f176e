"""The pods that are on the nodes of a scenario before the incoming one comes.

Bound, foreign, finished, half-way through their init containers, or an earlier life of the incoming
pod. What they leave free gives the incoming pod its sizes: scenario_incoming_pod.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.wire import annotation_keys as keys
from hami.wire import node_register, objects, shares
from tests.oracle.reference_unproven import FORGED
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_containers import Kind, pick_kinds, pod_spec
from tests.oracle.scenario_draft import NAMESPACE, UID, Amounts, Draft
from tests.oracle.scenario_nodes import copied
from tests.oracle.scenario_tape import Tape

_DELETED = {"NVIDIA": [node_register.RegisteredCard(id="GPU-gone", devmem=8000)]}


def add_pod(draft: Draft, node: str) -> None:
    tape = draft.tape
    number = len(draft.pods)
    kinds = pick_kinds(tape, several=35)
    given: dict[str, list[tuple[shares.Share, ...]]] = {}
    containers: list[Amounts] = [{} for _ in kinds]
    foreign = tape.chance(10)
    forged = tape.chance(8)
    for vendor in draft.vendors:
        devices = draft.nodes.get(node, _DELETED).get(vendor.name, [])
        if vendor is not draft.vendors[0] and not tape.chance(60):
            continue
        asks_more = foreign or forged
        listed = [_grants(draft, devices, vendor.name) for _ in kinds]
        for container, each in zip(containers, listed, strict=True):
            if each:
                container[vendor.count] = str(len(each) + (asks_more and tape.chance(30)))
                _ask_for_amounts(tape, container, vendor)
        given[vendor.allocated] = listed
    values: dict[str, str | None] = (
        {} if foreign else {key: shares.encode(listed) for key, listed in given.items()}
    )
    if not foreign and tape.chance(70):
        values[keys.ASSIGNED_NODE] = node
    if forged:
        values[keys.GRANT_MAC] = FORGED
    phase = tape.pick(("Running", "Running", "Pending", "", "Unknown"))
    uid = f"uid-{number}"
    chance = tape.below(100)
    if chance >= 96:
        phase = tape.pick(("Succeeded", "Failed"))
    elif chance >= 93 and all(pod.uid != UID for pod in draft.pods):
        uid = UID
    spec = pod_spec(kinds, containers, node=node)
    draft.pods.append(
        objects.Pod(
            metadata=objects.Metadata(
                name=f"pod-{number}",
                namespace=tape.pick((NAMESPACE, NAMESPACE, "other")),
                uid=uid,
                annotations=values,
            ),
            spec=spec,
            status=objects.PodStatus(phase=phase, init_container_statuses=_statuses(draft, kinds)),
        )
    )


def copy_pods(draft: Draft, original: str, node: str) -> None:
    """Put onto `node` what its original holds, so that both score the same."""
    for pod in [pod for pod in draft.pods if pod.node_name == original and pod.uid != UID]:
        assert pod.spec is not None
        values: dict[str, str | None] = {}
        if pod.annotation(keys.ASSIGNED_NODE):
            values[keys.ASSIGNED_NODE] = node
        if pod.annotation(keys.GRANT_MAC):
            values[keys.GRANT_MAC] = FORGED
        for key in [vendor.allocated for vendor in draft.vendors]:
            listed = shares.decode(pod.annotation(key))
            if listed:
                values[key] = shares.encode(
                    [
                        shares.Share(copied(g.card, node[-1]), g.vendor, g.memory_mib, g.cores)
                        for g in each
                    ]
                    for each in listed
                )
        number = len(draft.pods)
        draft.pods.append(
            objects.Pod(
                metadata=objects.Metadata(
                    name=f"pod-{number}",
                    namespace=pod.namespace,
                    uid=f"uid-{number}",
                    annotations=values,
                ),
                spec=objects.PodSpec(
                    node_name=node,
                    containers=pod.spec.containers,
                    init_containers=pod.spec.init_containers,
                ),
                status=pod.status,
            )
        )


def _ask_for_amounts(tape: Tape, container: Amounts, vendor: RefVendor) -> None:
    """Ask for amounts that are not those of the grant: they count only without one."""
    amounts = tape.pick((None, None, "memory", "cores", "percentage"))
    if amounts == "memory":
        container[vendor.memory] = str(tape.pick((500, 2000, 4000)) // max(vendor.memory_factor, 1))
    elif amounts == "cores":
        container[vendor.cores] = tape.pick(("0", "10", "50", "100"))
    elif amounts == "percentage" and vendor.percentage:
        container[vendor.percentage] = tape.pick(("10", "50", "100"))


def _grants(
    draft: Draft, devices: Sequence[node_register.RegisteredCard], vendor: str
) -> tuple[shares.Share, ...]:
    tape = draft.tape
    chosen = tape.subset(devices, tape.pick((1, 1, 1, 2, 0, 3)))
    if not chosen:
        return ()
    part = tape.pick((4, 4, 2, 8, 1, 0))
    cores = tape.pick((0, 0, 0, 10, 25, 50, 50, 100))
    grants = []
    for device in chosen:
        memory = device.devmem // part if part else tape.pick((1000, 3000, 5000))
        uuid = "GPU-replaced" if tape.chance(1) else device.id
        grants.append(shares.Share(uuid, vendor, memory, cores))
    return tuple(grants)


def _statuses(draft: Draft, kinds: Sequence[Kind]) -> list[objects.ContainerStatus | None]:
    """Return how far the init containers are; sidecars run."""
    progress = draft.tape.pick(("done", "running", "running", "done", "failed", "half"))
    statuses: list[objects.ContainerStatus | None] = []
    for number, kind in enumerate(kinds):
        if kind is Kind.APP:
            continue
        ended = kind is Kind.INIT and progress != "running" and not (progress == "half" and number)
        code = objects.Terminated(exit_code=1 if progress == "failed" else 0)
        state = objects.ContainerState(terminated=code if ended else None)
        statuses.append(objects.ContainerStatus(name=f"c{number}", state=state))
    return statuses
