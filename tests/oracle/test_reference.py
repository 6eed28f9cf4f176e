"""The reference itself, on cases computed by hand, so that the oracle is not taken on faith.

Numbers come from the worked examples of HAMi's protocol and tests, and from docs/placement.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from hami.wire import annotation_keys as keys
from hami.wire import node_register, objects, pod_devices
from tests.oracle import reference
from tests.oracle.scenarios import ACME, NVIDIA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = reference.Kind
Amounts = dict[str, objects.Amount | None]
INIT, SIDECAR, APP = Kind.INIT, Kind.SIDECAR, Kind.APP


def card(name: str, index: int = 0, **changes: Any) -> node_register.Device:
    values: dict[str, Any] = {
        "count": 10,
        "devmem": 8000,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
    }
    return node_register.Device(id=name, index=index, **(values | changes))


def node(
    name: str,
    *cards: node_register.Device,
    acme: Sequence[node_register.Device] = (),
    ids: Mapping[str, objects.Amount | None] | None = None,
    cordon: str | None = None,
) -> objects.Node:
    values: dict[str, str | None] = {NVIDIA.cordon: cordon}
    if cards:
        values[NVIDIA.register] = node_register.encode_json(cards)
    if acme:
        values[ACME.register] = node_register.encode_json(acme)
    allocatable: Amounts = {NVIDIA.count: "100", ACME.count: "100"}
    if ids is not None:
        allocatable = dict(ids)
    return objects.Node(
        metadata=objects.Metadata(name=name, annotations=values),
        status=objects.NodeStatus(allocatable=allocatable),
    )


def gpu(
    count: objects.Amount = 1,
    memory: objects.Amount | None = None,
    cores: objects.Amount | None = None,
    percentage: objects.Amount | None = None,
) -> Amounts:
    return {
        NVIDIA.count: count,
        NVIDIA.memory: memory,
        NVIDIA.cores: cores,
        NVIDIA.percentage: percentage,
    }


Asked = tuple[Kind, Amounts]


def pod(
    *containers: Asked | Amounts,
    uid: str = "incoming",
    on: str | None = None,
    phase: str = "Running",
    init_exit_code: int | None = None,
    **annotations: str,
) -> objects.Pod:
    """Build a pod; containers are apps unless a kind is given; `_` in a key stands for `-`."""
    inits: list[objects.Container | None] = []
    apps: list[objects.Container | None] = []
    for number, asked in enumerate(containers):
        kind, limits = asked if isinstance(asked, tuple) else (APP, asked)
        container = objects.Container(
            name=f"c{number}",
            resources=objects.Resources(limits=limits),
            restart_policy="Always" if kind is SIDECAR else None,
        )
        (apps if kind is APP else inits).append(container)
    ended = objects.Terminated(exit_code=init_exit_code)
    state = objects.ContainerState(terminated=None if init_exit_code is None else ended)
    return objects.Pod(
        metadata=objects.Metadata(
            name=uid, namespace="team", uid=uid, annotations=named(annotations)
        ),
        spec=objects.PodSpec(node_name=on, containers=apps, init_containers=inits),
        status=objects.PodStatus(
            phase=phase,
            init_container_statuses=[
                objects.ContainerStatus(name=init.name, state=state)
                for init in inits
                if init and init.restart_policy is None
            ],
        ),
    )


def named(annotations: Mapping[str, str]) -> dict[str, str | None]:
    """Turn short names of annotations into their keys."""
    known = {
        "node_policy": keys.NODE_POLICY,
        "gpu_policy": keys.GPU_POLICY,
        "weights": keys.SCORING_WEIGHTS,
    }
    return {known.get(name) or getattr(NVIDIA, name): text for name, text in annotations.items()}


def placed(uid: str, on: str, slots: str, *kinds: Kind, **options: Any) -> objects.Pod:
    """Build a pod that holds `slots`, written as in its annotation."""
    held = pod_devices.decode(slots)
    counts: list[Amounts] = [{NVIDIA.count: len(slot)} if slot else {} for slot in held]
    containers = zip(kinds or [APP] * len(held), counts, strict=True)
    return pod(*containers, uid=uid, on=on, allocated=slots, **options)


def quota(**hard: objects.Amount) -> objects.ResourceQuota:
    limits: Amounts = {f"limits.{getattr(NVIDIA, name)}": amount for name, amount in hard.items()}
    return objects.ResourceQuota(
        metadata=objects.Metadata(name="quota", namespace="team"),
        spec=objects.QuotaSpec(hard=limits),
    )


def ask(
    incoming: objects.Pod,
    *nodes: objects.Node,
    pods: Sequence[objects.Pod] = (),
    quotas: Sequence[objects.ResourceQuota] = (),
    vendors: Sequence[reference.RefVendor] = (NVIDIA,),
    names: Sequence[str] | None = None,
) -> reference.Answer:
    return reference.filter_pod(
        vendors=vendors,
        nodes=list(nodes),
        pods=list(pods),
        quotas=list(quotas),
        pod=incoming,
        names=[node.name for node in nodes] if names is None else list(names),
        node_policy="binpack",
        gpu_policy="spread",
    )


def uuids(answer: reference.Answer) -> list[list[str]]:
    return [[grant.uuid for grant in slot] for slot in answer.slots["NVIDIA"]]


# HAMi's own two-node example (Test_Filter), with real model names.

TWO_NODES = (
    node("node1", card("device1"), card("device2", 1)),
    node("node2", card("device3"), card("device4", 1)),
)
TWO_PODS = (
    placed("a", "node1", "device1,NVIDIA,2000,25:;"),
    placed("b", "node2", "device4,NVIDIA,6000,75:;"),
)


@pytest.mark.parametrize(
    ("node_policy", "gpu_policy", "want_node", "want_card", "want_score"),
    [
        # (1 + 1) / 20 + (75 + 20) / 200 + (6000 + 1000) / 16000 = 1.0125
        ("binpack", "binpack", "node2", "device4", 10.125),
        ("binpack", "spread", "node2", "device3", 10.125),
        # (1 + 1) / 20 + (25 + 20) / 200 + (2000 + 1000) / 16000 = 0.5125
        ("spread", "binpack", "node1", "device1", 5.125),
        ("spread", "spread", "node1", "device2", 5.125),
    ],
)
def test_the_two_node_example_of_hami(
    node_policy: str, gpu_policy: str, want_node: str, want_card: str, want_score: float
) -> None:
    incoming = pod(gpu(1, 1000, 20), node_policy=node_policy, gpu_policy=gpu_policy)
    answer = ask(incoming, *TWO_NODES, pods=TWO_PODS)
    assert (answer.winner, answer.score) == (want_node, want_score)
    assert answer.slots == {"NVIDIA": ((pod_devices.Grant(want_card, "NVIDIA", 1000, 20),),)}
    assert answer.failed == {}


def test_the_two_node_example_with_an_init_container() -> None:
    incoming = pod((INIT, gpu(1, 5000)), (APP, gpu(1, 4000)), gpu_policy="binpack")
    answer = ask(incoming, *TWO_NODES, pods=TWO_PODS)
    assert answer.winner == "node2"
    assert uuids(answer) == [["device3"], ["device3"]]
    # The peak counts: one slot and 5000 MiB, not two and 9000.
    assert answer.score == (2 / 20 + 75 / 200 + 11000 / 16000) * 10


# Worked numbers.


def test_device_score_of_the_worked_example() -> None:
    device = card("a", count=10, devcore=4, devmem=8192)
    used = reference.Card(device, 0, cordoned=False, slots=2, memory=2048, cores=1)
    want = reference.Ask(count=3, memory=1024, percentage=0, cores=1)
    # 11.75 / 3 x 1048576 = 4106922.67
    assert reference.device_score(used, want, reference.Weights()) == 4106923
    # 10 x (2 x 0.3 + 0 x 0.5 + 6 x 0.375) / 8 = 3.5625
    assert reference.device_score(used, want, reference.Weights(2, 0, 6)) == 3735552


@pytest.mark.parametrize("field", ["count", "devcore", "devmem"])
def test_device_score_without_capacity_is_zero(field: str) -> None:
    used = reference.Card(card("a", **{field: 0}), 0, cordoned=False, slots=2, memory=1, cores=1)
    want = reference.Ask(count=1, memory=1, percentage=0, cores=1)
    assert reference.device_score(used, want, reference.Weights()) == 0


def test_node_score_of_the_worked_example_grows_by_the_pod() -> None:
    state = {"NVIDIA": reference.cards_of(TWO_NODES[0], NVIDIA, TWO_PODS)}
    wish = reference.read_wish(pod(gpu()), [NVIDIA], "binpack", "spread")
    assert wish is not None
    assert reference.node_score(state, wish, [{}]) == 3.0
    grant = pod_devices.Grant("device2", "NVIDIA", 8000, 0)
    assert reference.node_score(state, wish, [{"NVIDIA": (grant,)}]) == 8.5


@pytest.mark.parametrize(
    ("total", "percentage", "want"),
    [(40960, 50, 20480), (8000, 33, 2640), (7, 50, 3), (99, 100, 99)],
)
def test_percentages_are_rounded_down(total: int, percentage: int, want: int) -> None:
    answer = ask(pod(gpu(percentage=percentage)), node("n", card("a", devmem=total)))
    assert answer.slots["NVIDIA"][0][0].memory == want


# Section 1.


@pytest.mark.parametrize(
    ("limits", "want"),
    {
        "count only is the whole card": (gpu(2), (2, 0, 100, 0)),
        "memory": (gpu(1, 4096), (1, 4096, 0, 0)),
        "percentage": (gpu(1, percentage=50), (1, 0, 50, 0)),
        "percentage 0 counts as absent": (gpu(1, percentage=0), (1, 0, 100, 0)),
        "memory wins": (gpu(1, 2000, percentage=50), (1, 2000, 0, 0)),
        "memory 0 is no memory": (gpu(1, 0), (1, 0, 100, 0)),
        "cores above 100": (gpu(1, 1, 2000), (1, 1, 0, 100)),
        "quantities": (gpu("1e0", "16Ki", "50000m"), (1, 16384, 0, 50)),
    }.values(),
)
def test_requests(limits: dict[str, Any], want: tuple[int, ...]) -> None:
    container = objects.Container(resources=objects.Resources(limits=limits))
    read = reference.read_ask(container, NVIDIA)
    assert read is not None
    assert dataclasses.astuple(read) == want


def test_defaults_and_factor() -> None:
    vendor = dataclasses.replace(NVIDIA, memory_factor=10, default_memory=500, default_cores=30)

    def read(limits: dict[str, Any]) -> reference.Ask | None:
        resources = objects.Resources(requests=limits)
        return reference.read_ask(objects.Container(resources=resources), vendor)

    assert read(gpu(1)) == reference.Ask(1, 500, 0, 30)
    assert read(gpu(1, 7, 0)) == reference.Ask(1, 70, 0, 0)
    assert read(gpu(1, percentage=5)) == reference.Ask(1, 0, 5, 30)
    assert read(gpu(1, 214748364)) == reference.Ask(1, 2147483640, 0, 30)
    assert read(gpu(0, "nonsense")) is None


@pytest.mark.parametrize(
    "incoming",
    {
        "count": pod(gpu("1.5")),
        "negative count": pod(gpu(-1)),
        "huge count": pod(gpu("1e30")),
        "memory": pod(gpu(1, "16Gi")),
        "percentage": pod(gpu(1, percentage=101)),
        "cores": pod(gpu(1, cores=-1)),
        "second container": pod(gpu(), gpu("x")),
        "node policy": pod(gpu(), node_policy="mutex"),
        "gpu policy": pod(gpu(), gpu_policy="binpack,best"),
        "blank weights": pod(gpu(), weights=""),
        "missing weight": pod(gpu(), weights="slot=1,core=1"),
        "double weight": pod(gpu(), weights="slot=1,core=1,memory=1,slot=1"),
        "zero weights": pod(gpu(), weights="slot=0,core=0,memory=0"),
        "fractional weight": pod(gpu(), weights="slot=0.5,core=0,memory=0"),
        "large weight": pod(gpu(), weights="slot=2147483648,core=0,memory=0"),
    }.values(),
)
def test_malformed_requests_are_refused(incoming: objects.Pod) -> None:
    answer = ask(incoming, *TWO_NODES)
    assert answer.error
    assert not answer.passed_through
    assert answer.winner is None


def test_weights_in_any_order() -> None:
    wish = reference.read_weights(pod(weights=" memory=3, core = 2,slot=1"))
    assert wish == reference.Weights(1, 2, 3)


@pytest.mark.parametrize("limits", [{}, {"cpu": "1"}, gpu(0), {NVIDIA.memory: "1000"}])
def test_pods_without_a_count_pass_through(limits: dict[str, Any]) -> None:
    assert ask(pod(limits), *TWO_NODES) == reference.Answer(passed_through=True)


@pytest.mark.parametrize(
    ("annotations", "model", "want"),
    [
        ({"use_type": "H20"}, "NVIDIA H200", False),
        ({"use_type": "h200"}, "NVIDIA H200", True),
        ({"use_type": "A10"}, "NVIDIA A100-SXM4-40GB", False),
        ({"use_type": "A10"}, "NVIDIA A10G", True),
        ({"use_type": "SXM"}, "NVIDIA A100-SXM4-40GB", True),
        ({"use_type": "H20, ,A10G"}, "NVIDIA A10G", True),
        ({"use_type": " , "}, "NVIDIA A10G", True),
        ({"nouse_type": "H20"}, "NVIDIA H200", True),
        ({"nouse_type": "H20,H200"}, "NVIDIA H200", False),
        ({"use_type": "H200", "nouse_type": "nvidia"}, "NVIDIA H200", False),
    ],
)
def test_types(annotations: dict[str, Any], model: str, want: bool) -> None:  # noqa: FBT001
    answer = ask(pod(gpu(), **annotations), node("n", card("a", type=model)))
    assert (answer.winner == "n") is want
    assert answer.failed == ({} if want else {"n": "1/1 CardTypeMismatch"})


# Section 3.


@pytest.mark.parametrize(
    ("nodes", "limits", "want"),
    {
        "unknown": ([], gpu(), "node unregistered"),
        "no cards": ([node("n")], gpu(), "node unregistered"),
        "no ids": ([node("n", card("a"), ids={})], gpu(), "node unregistered"),
        "zero ids": (
            [node("n", card("a"), ids={NVIDIA.count: "0"})],
            gpu(),
            "node unregistered",
        ),
        "other vendor": ([node("n", acme=[card("x")])], gpu(), "Device type not found"),
        "too many cards": ([node("n", card("a"))], gpu(2), "NodeInsufficientDevice"),
        "too few ids": (
            [node("n", card("a"), card("b", 1), ids={NVIDIA.count: 1})],
            gpu(2),
            "NodeInsufficientDevice",
        ),
    }.values(),
)
def test_node_checks(nodes: list[objects.Node], limits: dict[str, Any], want: str) -> None:
    answer = ask(pod(limits), *nodes, names=["n"], vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": want}


def test_checks_go_over_all_vendors_before_the_next_check() -> None:
    incoming = pod(gpu(5) | {ACME.count: 1})
    ids: Amounts = {NVIDIA.count: "9", ACME.count: "0"}
    answer = ask(incoming, node("n", card("a"), acme=[card("x")], ids=ids), vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": "node unregistered"}
    answer = ask(incoming, node("n", card("a")), vendors=(NVIDIA, ACME))
    assert answer.failed == {"n": "Device type not found"}


def test_ids_are_held_by_foreign_pods_and_by_finished_init_containers() -> None:
    cards = [card("a"), card("b", 1)]
    foreign = pod(gpu(1), uid="foreign", on="n")
    done = placed(
        "done", "n", "a,NVIDIA,1,0:b,NVIDIA,1,0:;a,NVIDIA,1,0:;", INIT, APP, init_exit_code=0
    )
    gone = placed("gone", "n", "a,NVIDIA,1,0:;", phase="Failed")
    pods = [foreign, done, gone]
    for ids, want in ((5, "n"), (4, None)):
        answer = ask(pod(gpu(2, 1)), node("n", *cards, ids={NVIDIA.count: ids}), pods=pods)
        assert answer.winner == want


# Sections 4 and 6.


def test_reasons_are_counted_and_sorted_as_text() -> None:
    cards = [card(f"g{index}", index, health=index != 3) for index in range(8)]
    answer = ask(pod(gpu(1, 8001)), node("n", *cards))
    assert answer.failed == {"n": "1/8 CardNotHealth, 7/8 CardInsufficientMemory"}
    cards = [card(f"g{index:x}", index, health=index > 9) for index in range(12)]
    answer = ask(pod(gpu(1, 8001)), node("n", *cards))
    assert answer.failed == {"n": "10/12 CardNotHealth, 2/12 CardInsufficientMemory"}


@pytest.mark.parametrize(
    ("device", "used", "incoming", "want"),
    {
        "health": (card("a", health=False), "", pod(gpu()), "CardNotHealth"),
        "cordon": (card("cordoned"), "", pod(gpu()), "CardCordoned"),
        "mode": (card("a", mode="mps"), "", pod(gpu(), mode="hami-core"), "ModeNotFit"),
        "mode within": (card("a"), "", pod(gpu(), mode="mps,hami-core"), None),
        "no mode": (card("a", mode=""), "", pod(gpu(), mode="mig"), None),
        "use uuid": (card("a"), "", pod(gpu(), use_uuid="A, aa"), "CardUuidMismatch"),
        "nouse uuid": (card("a"), "", pod(gpu(), nouse_uuid="b, a"), "CardUuidMismatch"),
        "slots": (card("a", count=1), "1,0", pod(gpu(1, 1)), "CardTimeSlicingExhausted"),
        "mutex": (
            card("a"),
            "1,0",
            pod(gpu(1, 1), gpu_policy="numa, mutex"),
            "ExclusiveDeviceAllocateConflict",
        ),
        "memory": (card("a"), "4000,0", pod(gpu(1, 4001)), "CardInsufficientMemory"),
        "memory left": (card("a"), "4000,0", pod(gpu(1, 4000)), None),
        "over-used": (card("a"), "9000,0", pod(gpu(1, 1)), "CardInsufficientMemory"),
        "cores": (card("a"), "1,50", pod(gpu(1, 1, 51)), "CardInsufficientCore"),
        "cores left": (card("a"), "1,50", pod(gpu(1, 1, 50)), None),
        "whole card": (
            card("a"),
            "1,0",
            pod(gpu(1, 1, 100)),
            "ExclusiveDeviceAllocateConflict",
        ),
        "whole of a scaled card": (card("a", devcore=200), "1,0", pod(gpu(1, 1, 100)), None),
        "no cores left": (card("a"), "1,100", pod(gpu(1, 1)), "CardComputeUnitsExhausted"),
        "no cores ever": (card("a", devcore=0), "1,0", pod(gpu(1, 1)), None),
        "mig": (card("a", mode="mig"), "", pod(gpu()), "CardMigTopologyInfeasible"),
    }.values(),
)
def test_card_checks(
    device: node_register.Device, used: str, incoming: objects.Pod, want: str | None
) -> None:
    pods = [placed("p", "n", f"{device.id},NVIDIA,{used}:;")] if used else []
    answer = ask(incoming, node("n", device, cordon=" cordoned,,"), pods=pods)
    assert answer.failed == ({"n": f"1/1 {want}"} if want else {})


def test_eligible_cards_that_are_too_few() -> None:
    cards = [card("a"), card("b", 1, health=False), card("c", 2)]
    answer = ask(pod(gpu(3)), node("n", *cards))
    assert answer.failed == {"n": "1/3 CardNotHealth, 2/3 AllocatedCardsInsufficientRequest"}


def test_numa_groups_that_are_too_small() -> None:
    cards = [card("a"), card("b", 1, numa=1), card("c", 2, numa=2)]
    bound = pod(gpu(2), numa_bind="true")
    assert ask(bound, node("n", *cards)).failed == {"n": "3/3 NumaNotFit"}
    assert ask(pod(gpu(2), numa_bind="yes"), node("n", *cards)).winner == "n"
    cards.append(card("d", 3, numa=1))
    assert uuids(ask(bound, node("n", *cards))) == [["b", "d"]]


def test_a_vendor_rule_sees_columns_and_the_type_of_grants_is_the_word() -> None:
    acme = [card("x", 3), card("y", 1), card("z", 2)]
    limits: Amounts = {ACME.count: 2, ACME.memory: 4}
    answer = ask(pod(limits), node("n", acme=acme), vendors=(NVIDIA, ACME))
    grants = [pod_devices.Grant(name, "ACME", 1024, 0) for name in "yx"]
    assert answer.slots == {"ACME": (tuple(grants),)}
    limits[ACME.count] = 3
    answer = ask(pod(limits), node("n", acme=acme), vendors=(NVIDIA, ACME))
    assert answer.failed == {
        "n": "1/3 CardNotFoundCustomFilterRule, 2/3 AllocatedCardsInsufficientRequest"
    }


@pytest.mark.parametrize(
    ("limit", "used", "containers", "fits"),
    {
        "two cards, exactly": (2048, 0, [(APP, gpu(2, 1024))], True),
        "two cards, one too much": (2047, 0, [(APP, gpu(2, 1024))], False),
        "used counts": (2048, 1024, [(APP, gpu(1, 1024))], True),
        "used counts too much": (2048, 1025, [(APP, gpu(1, 1024))], False),
        "apps add up": (2048, 0, [(APP, gpu(1, 1025)), (APP, gpu(1, 1024))], False),
        "inits do not add up": (2048, 0, [(INIT, gpu(1, 2048)), (APP, gpu(1, 2048))], True),
        "sidecars add up": (2048, 0, [(SIDECAR, gpu(1, 1)), (APP, gpu(1, 2048))], False),
        "inits after sidecars": (2048, 0, [(SIDECAR, gpu(1, 1)), (INIT, gpu(1, 2048))], False),
        "limit 0 blocks": (0, 0, [(APP, gpu(1, 1))], False),
        "whole cards": (7999, 0, [(APP, gpu(1))], False),
    }.values(),
)
def test_memory_quota(limit: int, used: int, containers: list[Asked], fits: bool) -> None:  # noqa: FBT001
    other = [placed("p", "elsewhere", f"far,NVIDIA,{used},0:;")] if used else []
    there = node("n", card("a"), card("b", 1))
    quotas = [quota(memory=10**6), quota(memory=limit, cores=0)]
    answer = ask(pod(*containers), there, pods=other, quotas=quotas)
    assert (answer.winner == "n") is fits
    assert answer.failed == ({} if fits else {"n": "2/2 ResourceQuotaNotFit"})


def test_core_quota_and_the_quota_of_a_factor() -> None:
    there = node("n", card("a"), card("b", 1))
    assert ask(pod(gpu(2, 1, 30)), there, quotas=[quota(cores=60)]).winner == "n"
    assert ask(pod(gpu(2, 1, 30)), there, quotas=[quota(cores=59)]).winner is None
    # HAMi's MLU example: 60 units of 256 MiB, two cards of 40 units.
    vendor = dataclasses.replace(NVIDIA, memory_factor=256)
    big = node("n", card("a", devmem=20480), card("b", 1, devmem=20480))
    for units, want in ((40, None), (30, "n"), (31, None)):
        answer = ask(pod(gpu(2, units)), big, quotas=[quota(memory=60)], vendors=[vendor])
        assert answer.winner == want


# Section 5.

#: By name: numa, used memory in percent, used slots. Slots are so many that they hardly score.
ORDERED = {"a": (0, 50, 1), "b": (0, 20, 2), "c": (1, 50, 1), "d": (1, 0, 0), "e": (1, 20, 2)}


@pytest.mark.parametrize(
    ("policy", "bound", "want"),
    [
        ("binpack", "", "c a e b d"),
        ("spread", "", "d e b c a"),
        ("topology-aware", "", "d e b c a"),
        ("numa", "", "e d c b a"),
        ("numa,binpack", "", "c e d a b"),
        ("binpack,numa", "", "c a e b d"),
        ("spread,numa", "", "d e b c a"),
        ("spread,spread", "", "d e b c a"),
        ("binpack,binpack", "", "c a e b d"),
        (" numa , spread,", "", "d e c b a"),
        ("topology-aware,mutex", "", "d"),
        ("mutex", "", "d"),
        ("binpack", "true", "a b"),
        ("spread", "true", "d e c"),
        ("mutex", "true", "d"),
        ("numa", "true", "e d c"),
        ("binpack,spread", "true", "c e d"),
        ("spread,numa", "true", "d e c"),
        ("topology-aware,topology-aware", "true", "d e c"),
    ],
)
def test_card_orders(policy: str, bound: str, want: str) -> None:
    cards, pods = [], []
    for index, (name, (numa, memory, slots)) in enumerate(ORDERED.items()):
        cards.append(card(name, index, numa=numa, devmem=1000, count=1000))
        for slot in range(slots):
            share = memory * 10 if slot == 0 else 0
            pods.append(placed(f"{name}{slot}", "n", f"{name},NVIDIA,{share},0:;"))
    there = node("n", *cards)
    for count in range(1, len(want.split()) + 1):
        incoming = pod(gpu(count, 1), gpu_policy=policy, numa_bind=bound)
        # Listed by column, which is the order of the names; the growing set shows the preference.
        got = uuids(ask(incoming, there, pods=pods))[0]
        assert got == sorted(want.split()[:count])


def test_mutex_prefers_few_slots_then_high_numa_then_high_columns() -> None:
    cards = [reference.Card(card(n, numa=n == "b"), i, cordoned=False) for i, n in enumerate("abc")]
    wish = reference.read_wish(pod(gpu(), gpu_policy="mutex"), [NVIDIA], "binpack", "spread")
    assert wish is not None
    case = reference.Case(wish, [NVIDIA], {}, [], {}, set())
    order = reference.first_cards(case, cards, reference.Ask(3, 1, 0, 0), bound=False)
    assert [c.device.id for c in order] == ["b", "c", "a"]


def test_columns_are_by_index_then_id_and_the_last_tie_goes_to_the_highest() -> None:
    cards = [card("z", 1), card("a", 1), card("m", 0), card("y", 2)]
    there = node("n", *cards)
    assert [c.device.id for c in reference.cards_of(there, NVIDIA, ())] == ["m", "a", "z", "y"]
    for policy in ("binpack", "spread", "mutex", "numa", "topology-aware", "mutex,mutex"):
        for count in (1, 2, 3, 4):
            want = ["m", "a", "z", "y"][-count:]
            assert uuids(ask(pod(gpu(count), gpu_policy=policy), there)) == [want]


# Section 7.


@pytest.mark.parametrize(
    ("series", "want"),
    [
        ([], 0),
        ([(APP, 2), (APP, 3)], 5),
        ([(INIT, 7), (APP, 3)], 7),
        ([(INIT, 2), (INIT, 3), (APP, 4)], 4),
        ([(SIDECAR, 3), (INIT, 5), (APP, 4)], 8),
        ([(INIT, 5), (SIDECAR, 3), (APP, 4)], 7),
        ([(INIT, 9), (SIDECAR, 3), (INIT, 5), (APP, 4)], 9),
    ],
)
def test_peaks(series: list[tuple[Kind, int]], want: int) -> None:
    assert reference.peak(series) == want


def used(there: objects.Node, *pods: objects.Pod) -> list[tuple[int, int, int]]:
    cards = reference.cards_of(there, NVIDIA, pods)
    return [(c.slots, c.memory, c.cores) for c in cards]


def test_a_pod_shrinks_when_its_init_containers_are_done() -> None:
    there = node("n", card("a", devmem=40960))
    slots = "a,NVIDIA,20000,10:;a,NVIDIA,10000,5:;"
    before = placed("p", "n", slots, INIT, APP)
    failed = placed("p", "n", slots, INIT, APP, init_exit_code=1)
    after = placed("p", "n", slots, INIT, APP, init_exit_code=0)
    assert used(there, before) == used(there, failed) == [(1, 20000, 10)]
    assert used(there, after) == [(1, 10000, 5)]
    for held, want in ((before, (20000, 10)), (after, (10000, 5))):
        quota_use = reference.quota_of(NVIDIA, "team", [held], [])
        assert (quota_use.memory_used, quota_use.cores_used) == want


def test_cards_take_their_own_peaks_but_the_quota_takes_that_of_the_pod() -> None:
    there = node("n", card("a"), card("b", 1))
    held = placed("p", "n", "a,NVIDIA,500,10:;b,NVIDIA,300,20:;", INIT, APP)
    assert used(there, held) == [(1, 500, 10), (1, 300, 20)]
    quota_use = reference.quota_of(NVIDIA, "team", [held], [])
    assert (quota_use.memory_used, quota_use.cores_used) == (500, 20)


def test_two_apps_and_a_sidecar_share_a_card_and_unknown_cards_are_nobodys() -> None:
    there = node("n", card("a"))
    slots = "a,NVIDIA,1,2:;;a,NVIDIA,3,4:x,NVIDIA,9,9:;a,NVIDIA,5,6:;"
    held = placed("p", "n", slots, SIDECAR, INIT, APP, APP)
    assert used(there, held) == [(3, 9, 12)]
    assert used(there, placed("p", "other", slots, SIDECAR, INIT, APP, APP)) == [(0, 0, 0)]


def test_an_earlier_life_of_the_pod_and_finished_pods_do_not_count() -> None:
    there = node("n", card("a", count=1), ids={NVIDIA.count: 1})
    earlier = placed("incoming", "n", "a,NVIDIA,8000,100:;")
    finished = placed("done", "n", "a,NVIDIA,8000,100:;", phase="Succeeded")
    quotas = [quota(memory=8000)]
    assert ask(pod(gpu()), there, pods=[earlier, finished], quotas=quotas).winner == "n"
    assert ask(pod(gpu(), uid="x"), there, pods=[earlier], quotas=quotas).winner is None


# Section 8.


def test_equal_scores_go_to_the_lowest_name() -> None:
    nodes = [node(name, card(f"card-{name}")) for name in ("n2", "n10", "n3")]
    for policy in ("binpack", "spread"):
        answer = ask(pod(gpu(), node_policy=policy), *nodes)
        assert answer.winner == "n10"
        assert "nodes tied" in answer.traits


def test_the_node_score_counts_all_vendors_and_the_pods_peaks() -> None:
    there = node("n", card("a"), acme=[card("x", devmem=1024)])
    both = gpu(1, 500, 10) | {ACME.count: 1, ACME.memory: 1, ACME.cores: 5}
    incoming = pod((INIT, gpu(1, 600)), (SIDECAR, both), (INIT, gpu(1, 700)))
    answer = ask(incoming, there, vendors=(NVIDIA, ACME))
    # Peaks: slots 2 + 1, cores 15, memory 500 + 256 + 700, each from its own moment.
    assert answer.score == (3 / 20 + 15 / 200 + 1456 / 9024) * 10
    assert [len(slot) for slot in answer.slots["ACME"]] == [0, 1, 0]


# Section 9.


def test_second_try_places_what_the_own_order_cannot() -> None:
    gib = 1024
    there = node("n", card("a", devmem=10 * gib), card("b", 1, devmem=6 * gib))
    two = pod(gpu(1, 5 * gib), gpu(1, 10 * gib))
    answer = ask(two, there)
    assert answer.traits >= {"second try"}
    assert uuids(answer) == [["b"], ["a"]]
    assert answer.failed == {}
    assert answer.score == (2 / 20 + 0 / 200 + 15 / 16) * 10
    # One of them a sidecar: its place in the order is fixed.
    answer = ask(pod((SIDECAR, gpu(1, 5 * gib)), (APP, gpu(1, 10 * gib))), there)
    assert answer.failed == {"n": "2/2 CardInsufficientMemory"}
    # A second node fits neither way: the reasons of the first try.
    small = node("m", card("c", devmem=10 * gib), card("d", 1, devmem=4 * gib))
    answer = ask(two, there, small)
    assert answer.winner == "n"
    assert answer.failed == {"m": "2/2 CardInsufficientMemory"}


def test_second_try_order_is_hardest_first() -> None:
    wish = reference.read_wish(
        pod(
            (INIT, gpu(1, 1)),
            (APP, gpu(1, 5)),
            (APP, {}),
            (APP, gpu(1, 9)),
            (APP, gpu(1, percentage=1)),
            (APP, gpu(1, 5)),
            (APP, gpu(2, 5)),
            (APP, gpu(1, 5, 1)),
        ),
        [NVIDIA],
        "binpack",
        "spread",
    )
    assert wish is not None
    assert reference.hardest_first(wish) == [0, 4, 3, 7, 6, 1, 5, 2]
