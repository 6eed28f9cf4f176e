"""The pod that comes: what its containers ask for.

Uniform sizes would hardly ever meet a boundary; therefore it often asks for exactly what some card
has left, give or take one. Its annotations are made in scenario_selectors.py.
"""

from __future__ import annotations

from hami.wire import annotation_keys as keys
from hami.wire import objects
from tests.oracle.reference_request import read_request
from tests.oracle.sample_vendors import ACME, NVIDIA
from tests.oracle.scenario_containers import Kind, pick_kinds, pod_spec
from tests.oracle.scenario_draft import NAMESPACE, UID, Amounts, Draft
from tests.oracle.scenario_selectors import user_annotations

_PLACES = (*["limits"] * 12, "requests", "requests", "both")
_BAD_COUNTS = ("1.5", "-1", "1e30", "2147483648", "many", "100m", "")
_BAD_MEMORY = ("1.5", "-1", "16Gi", "2147483648", "x", "1e30")
_BAD_PERCENTAGES = ("101", "-1", "0.5", "1k")


def incoming_pod(draft: Draft) -> objects.Pod:
    tape = draft.tape
    annotations = user_annotations(draft)
    if tape.chance(draft.flavour.packing):
        kinds, containers = _packing_containers(draft)
        if tape.chance(60):
            annotations[keys.GPU_POLICY] = "spread"
    else:
        kinds = pick_kinds(tape, draft.flavour.several)
        containers = [_request(draft, len(kinds)) for _ in kinds]
    if tape.chance(2):
        _spoil(draft, containers)
    if tape.chance(2):  # not ours, whatever its annotations say
        containers = [{} for _ in kinds]
        if tape.chance(30):
            annotations[keys.GPU_POLICY] = "best"
    spec = pod_spec(kinds, containers, node=None, place=tape.pick(_PLACES))
    return objects.Pod(
        metadata=objects.Metadata(
            name="incoming",
            namespace=NAMESPACE,
            uid=UID,
            annotations=annotations,
        ),
        spec=spec,
    )


def _packing_containers(draft: Draft) -> tuple[list[Kind], list[Amounts]]:
    """Ask for all that the roomiest card has left, after asking for less."""
    tape = draft.tape
    name = tape.pick(list(draft.nodes))
    cards = draft.cards[name]["NVIDIA"]
    room = sorted((card.device.devmem - card.memory for card in cards), reverse=True)
    most = max(room[0], 1) if room else 1000
    roomiest = min(room.count(most), 3)
    next_most = max(room[roomiest], 1) if len(room) > roomiest else most // 3
    small = tape.pick((next_most // 2 + 1, next_most, 500, 1000))
    sizes = [*[small] * max(roomiest, 1), most]
    if tape.chance(20):
        sizes.insert(tape.below(len(sizes)), tape.pick((small // 2 + 1, most, 1)))
    containers: list[Amounts] = []
    for size in sizes:
        containers.append({NVIDIA.count: "1", NVIDIA.memory: _units(draft, size)})
        if tape.chance(5):
            containers[-1] = {NVIDIA.count: "1", NVIDIA.percentage: tape.pick(("100", "50"))}
    kinds = [Kind.APP for _ in sizes]
    if tape.chance(20):
        kinds.insert(0, tape.pick((Kind.INIT, Kind.SIDECAR)))
        containers.insert(0, _request(draft, 2))
    return kinds, containers


def _units(draft: Draft, memory: int) -> objects.Amount:
    """Write MiB in the units of NVIDIA's row here."""
    nvidia = draft.nvidia
    units = memory // max(nvidia.memory_factor, 1)
    if units and units % 1024 == 0 and draft.tape.chance(20):
        return f"{units // 1024}Ki"
    return units if draft.tape.chance(10) else str(units)


def _request(draft: Draft, containers: int) -> Amounts:
    """Return what one container asks for."""
    tape = draft.tape
    if containers > 1 and tape.chance(15):
        return tape.pick(({}, {"cpu": "1"}, {NVIDIA.memory: "1000"}, {NVIDIA.count: "0"}))
    amounts: Amounts = {}
    both = len(draft.vendors) > 1
    if not both or not tape.chance(35):
        amounts |= _nvidia_request(draft, containers)
    if both and (not amounts or tape.chance(35)):
        amounts |= _acme_request(draft)
    return amounts


def _nvidia_request(draft: Draft, containers: int) -> Amounts:
    tape = draft.tape
    card = draft.some_card("NVIDIA")
    count = tape.pick((1, 2, 1, 1, 2, 1, 3, 4))
    if tape.chance(4):
        count = tape.pick((8, 5, 11))
    amounts: Amounts = {NVIDIA.count: count if tape.chance(10) else str(count)}
    how = tape.below(100)
    if how >= 92:
        pass  # neither memory nor percentage: the default
    elif how >= 72:
        amounts[NVIDIA.percentage] = str(tape.pick((50, 25, 100, 33, 10, 0, 75, 1)))
    elif how >= 40 and card is not None:
        room = card.device.devmem - card.memory
        size = max(room // tape.pick((1, 1, containers)) + tape.pick((0, 0, -1, 1)), 0)
        amounts[NVIDIA.memory] = _units(draft, size)
    else:
        amounts[NVIDIA.memory] = _units(draft, tape.pick((1000, 2000, 3000, 5000, 4096, 0)))
    if tape.chance(3):  # ignored beside memory, but not when it is out of range
        amounts[NVIDIA.percentage] = tape.pick(("50", "0", "50", "101"))
    how = tape.below(100)
    if how >= 90 and card is not None:
        room = card.device.devcore - card.cores
        amounts[NVIDIA.cores] = str(max(room + tape.pick((0, 1, -1)), 0))
    elif how >= 45:
        amounts[NVIDIA.cores] = str(tape.pick((10, 25, 30, 50, 100, 0, 150, 100)))
    return amounts


def _acme_request(draft: Draft) -> Amounts:
    tape = draft.tape
    amounts: Amounts = {ACME.count: str(tape.pick((1, 1, 1, 2, 2, 3)))}
    card = draft.some_card("ACME")
    how = tape.below(100)
    if how >= 85:
        pass
    elif how >= 50 and card is not None:
        room = (card.device.devmem - card.memory) // ACME.memory_factor
        amounts[ACME.memory] = str(max(room + tape.pick((0, 0, 1, -1)), 0))
    else:
        amounts[ACME.memory] = str(tape.pick((4, 8, 20, 16)))
    if tape.chance(30):
        amounts[ACME.cores] = str(tape.pick((25, 50, 100)))
    if tape.chance(10):  # ACME has no such resource
        amounts["acme.test/mem-percentage"] = "500"
    return amounts


def _spoil(draft: Draft, containers: list[Amounts]) -> None:
    amounts = draft.tape.pick(containers)
    resource, values = draft.tape.pick(
        (
            (NVIDIA.count, _BAD_COUNTS),
            (NVIDIA.memory, _BAD_MEMORY),
            (NVIDIA.percentage, _BAD_PERCENTAGES),
            (NVIDIA.cores, _BAD_COUNTS),
        )
    )
    amounts[resource] = draft.tape.pick(values)


def readable(pod: objects.Pod) -> bool:
    """Say whether the pod breaks no rule, so that its wanted can size other things."""
    try:
        read_request(pod, (NVIDIA, ACME), "binpack", "spread")
    except ValueError:
        return False
    return True
