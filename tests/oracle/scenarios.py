"""Random clusters and pods for the comparison of the reference with the product.

A scenario is read from a *tape* of bytes that hypothesis draws: every choice takes a byte or two
and 0 always means the simplest choice, so that shrinking the bytes shrinks the scenario. (A draw
of hypothesis per choice costs ten times as much.) Uniform choices would hardly ever meet a
boundary. Therefore nodes are often copies of each other, amounts come from small palettes, and
what the pod asks for is often exactly what some card, node or quota has left, give or take one.

`FLAVOURS` shift the weights, so that rare things (quota, NUMA, the second try) occur often enough.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

from hami.wire import annotation_keys as keys
from hami.wire import node_register, objects, pod_devices
from tests.oracle import reference

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
Kind = objects.ContainerKind
Amounts = dict[str, objects.Amount | None]

NAMESPACE = "team"
UID = "uid-incoming"


def _mig(_column: int, device: node_register.Device) -> str | None:
    return "CardMigTopologyInfeasible" if device.mode == "mig" else None


def _even_columns(column: int, _device: node_register.Device) -> str | None:
    return "CardNotFoundCustomFilterRule" if column % 2 else None


NVIDIA = reference.RefVendor(
    word="NVIDIA",
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    percentage="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    register="hami.io/node-nvidia-register",
    cordon="hami.io/device-cordon",
    allocated="hami.io/vgpu-devices-allocated",
    use_type="nvidia.com/use-gputype",
    nouse_type="nvidia.com/nouse-gputype",
    use_uuid="nvidia.com/use-gpuuuid",
    nouse_uuid="nvidia.com/nouse-gpuuuid",
    mode="nvidia.com/vgpu-mode",
    numa_bind="nvidia.com/numa-bind",
    rule=_mig,
)
ACME = reference.RefVendor(
    word="ACME",
    count="acme.test/card",
    memory="acme.test/mem",
    cores="acme.test/cores",
    memory_factor=256,
    register="acme.test/register",
    allocated="acme.test/allocated",
    enforces_quota=False,
    rule=_even_columns,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flavour:
    """Chances in percent."""

    #: The node is a copy of an earlier one.
    copy: int = 30
    #: A second vendor exists.
    acme: int = 25
    #: Per card: unhealthy, cordoned, other type, mode, memory, cores or count than its node.
    trouble: int = 6
    #: The namespace has quotas.
    quota: int = 12
    numa_bind: int = 12
    #: The pod has more than one container.
    several: int = 45
    #: The pod is made of app containers that fit in one order only.
    packing: int = 0
    #: Something is asked of types, modes or ids.
    picky: int = 15
    #: Most pods that a node holds.
    placed: int = 4
    #: How many nodes there are.
    nodes: tuple[int, ...] = (1, 2, 2, 1, 3, 3, 4, 5, 6)


FLAVOURS = {
    "plain": Flavour(),
    "ties": Flavour(copy=85, trouble=0, several=25, picky=5, placed=2, quota=5),
    "trouble": Flavour(copy=10, trouble=30, picky=45),
    "quota": Flavour(quota=85, trouble=3, picky=5),
    "numa": Flavour(numa_bind=75, trouble=4, picky=5, acme=10, copy=50),
    "vendors": Flavour(acme=100, picky=8),
    "packing": Flavour(
        packing=85, copy=60, acme=10, trouble=2, picky=3, quota=5, numa_bind=5, nodes=(1, 1, 2, 3)
    ),
    "peaks": Flavour(several=95, placed=7, picky=4, trouble=2),
}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Scenario:
    """Everything the filter is asked about one pod."""

    vendors: tuple[reference.RefVendor, ...]
    nodes: list[objects.Node]
    #: Pods already there: bound, foreign, finished, or an earlier life of the incoming one.
    pods: list[objects.Pod]
    quotas: list[objects.ResourceQuota]
    pod: objects.Pod
    names: list[str]
    node_policy: str
    gpu_policy: str
    #: Whether the product hears of the pods before it hears of the nodes.
    pods_first: bool
    #: The choices that made it: equal keys, equal scenarios.
    key: bytes = b""

    def answer(self) -> reference.Answer:
        """Judge the pod with the reference."""
        return reference.filter_pod(
            vendors=self.vendors,
            nodes=self.nodes,
            pods=self.pods,
            quotas=self.quotas,
            pod=self.pod,
            names=self.names,
            node_policy=self.node_policy,
            gpu_policy=self.gpu_policy,
        )

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: FBT001  IPython's protocol
        """Have hypothesis print the scenario in the form below."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        """Write the scenario for a human who must find out who is right."""
        first = "pods" if self.pods_first else "nodes"
        defaults = f"{self.node_policy} / {self.gpu_policy}"
        lines = ["", f"asked {self.names}, defaults {defaults}, {first} observed first"]
        lines += [
            f"vendor {vendor.word}: factor {vendor.memory_factor}, default memory "
            f"{vendor.default_memory}, default cores {vendor.default_cores}, "
            f"bounded by ids: {vendor.bounded_by_ids}"
            for vendor in self.vendors
        ]
        for node in self.nodes:
            lines.append(f"node {node.name} allocatable {dict(node.allocatable)}")
            lines += [f"  {key}: {value}" for key, value in node.annotations.items()]
        for quota in self.quotas:
            lines.append(f"quota {quota.namespace} {dict(quota.hard)}")
        for pod in (*self.pods, self.pod):
            state = f"node {pod.node_name!r} {pod.phase} init done: {pod.init_done}"
            lines.append(f"pod {pod.namespace} {pod.uid} {state}")
            lines += [f"  {key}: {value}" for key, value in pod.annotations.items()]
            for kind, container in pod.containers():
                resources = container.resources or objects.Resources()
                asked = f"limits {resources.limits} requests {resources.requests}"
                lines.append(f"  {kind.name} {container.name} {asked}")
        return "\n".join(lines)


class Tape:
    """Choices read from bytes; after their end every choice is the simplest."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1."""
        width = 1 if bound <= 64 else 2
        piece = self.data[self.position : self.position + width]
        self.position += width
        return int.from_bytes(piece, "big") % bound

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def subset(self, options: Sequence[T], size: int) -> list[T]:
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(size, len(left)))]


@st.composite
def scenarios(draw: st.DrawFn, flavour: str) -> Scenario:
    # Long enough for nearly every scenario; the others end with simple choices. A fixed length is
    # four times as fast to draw.
    data = draw(st.binary(min_size=_TAPE, max_size=_TAPE))
    return _Maker(Tape(data), FLAVOURS[flavour]).scenario()


_TAPE = 1024

_TYPES = (
    ("NVIDIA A100-SXM4-40GB", 40960),
    ("NVIDIA H200", 143771),
    ("NVIDIA H20", 97871),
    ("NVIDIA A10", 23028),
    ("NVIDIA A10G", 23028),
    ("NVIDIA-Tesla P4", 7680),
    ("NVIDIA GeForce RTX 3090", 24576),
    ("NVIDIA A100-SXM4-80GB", 81920),
)
_TYPE_LISTS = (
    "A100", "A10", "H20", "h200", "nvidia", "H20,A10", "A10G", "SXM4", "P4", "tesla p4, H100",
    "40GB", "0", "A1", " H200 ,", "RTX 3090", "NVIDIA",
)  # fmt: skip
_MODE_WISHES = ("mps", "hami-core", "mig", "mps", "hami-core,mps", "mig,hami-core", " ", "hami")
_TRUE_AND_NOT = ("true", "1", "True", "t", "TRUE", "false", "yes", " true", "0")
_SINGLE_POLICIES = ("spread", "binpack", "mutex", "numa", "topology-aware")
_CHAINS = (
    "numa,binpack", "binpack,numa", "spread,numa", "numa,spread", "mutex,binpack", "binpack,mutex",
    "mutex,topology-aware", "topology-aware,numa", " binpack , spread ", "spread,binpack",
    "numa,mutex,binpack", "binpack,binpack,numa", "spread,spread", "numa,numa", "binpack,binpack",
    "binpack,", ",mutex",
)  # fmt: skip
_BAD_POLICIES = ("best", "binpack,best", "Spread", "binpack;numa")
_WEIGHTS = (
    "slot=1,core=1,memory=1", "slot=0,core=0,memory=1", "slot=1,core=0,memory=0",
    "memory=5, core=3 ,slot=2", "slot=2147483647,core=1,memory=1",
    "core=2147483647,slot=0,memory=7",
    "slot=2147483647,core=2147483647,memory=2147483647", "slot=0,core=1,memory=0",
)  # fmt: skip
_BAD_WEIGHTS = (
    "", " ", "slot=1", "slot=0,core=0,memory=0", "slot=1,core=1,memory=-1",
    "slot=1,core=1,memory=1.5",
    "slot=1,core=1,memory=2147483648", "slot=1,core=1,memory=1,slot=1", "slot=1,core=1,mem=1",
    "slot=1,core=1,memory=1,", "slot,core,memory",
)  # fmt: skip
_PLACES = (*["limits"] * 12, "requests", "requests", "both")
_OTHER_REQUESTS: Amounts = {NVIDIA.count: "2", NVIDIA.cores: "20"}
_GONE = {"NVIDIA": [node_register.Device(id="GPU-gone", devmem=8000)]}
_BAD_COUNTS = ("1.5", "-1", "1e30", "2147483648", "many", "100m", "")
_BAD_MEMORY = ("1.5", "-1", "16Gi", "2147483648", "x", "1e30")
_BAD_PERCENTAGES = ("101", "-1", "0.5", "1k")


class _Maker:
    """Builds one scenario, from the nodes over the placed pods to the incoming one."""

    def __init__(self, tape: Tape, flavour: Flavour) -> None:
        self.tape = tape
        self.flavour = flavour
        self.nodes: dict[str, dict[str, list[node_register.Device]]] = {}
        self.cordons: dict[str, str] = {}
        #: Of which node a node is a copy.
        self.originals: dict[str, str] = {}
        self.pods: list[objects.Pod] = []
        self.vendors = self._vendors()
        #: Cards with what is used of them, by node and vendor word, once the pods are placed.
        self.cards: dict[str, dict[str, list[reference.Card]]] = {}

    def scenario(self) -> Scenario:
        tape = self.tape
        for number in range(tape.pick(self.flavour.nodes)):
            self._add_node(f"node-{'bacfed'[number]}")
        for name in self.nodes:
            if name in self.originals and tape.chance(60):
                self._copy_pods(self.originals[name], name)
                continue
            for _ in range(tape.below(self.flavour.placed + 1)):
                self._add_pod(name)
        if tape.chance(5):
            self._add_pod("gone")
        self._use_cards()
        pod = self._incoming()
        node_policy = tape.pick(("binpack", "spread"))
        gpu_policy = tape.pick(("spread", "spread", "spread", "binpack", "numa", "mutex,binpack"))
        return Scenario(
            vendors=self.vendors,
            quotas=self._quotas(pod),
            nodes=[self._node_object(name, pod) for name in self.nodes],
            pods=self.pods,
            pod=pod,
            names=self._names(),
            node_policy=node_policy,
            gpu_policy=gpu_policy,
            pods_first=tape.chance(20),
            key=tape.data[: tape.position],
        )

    def _vendors(self) -> tuple[reference.RefVendor, ...]:
        tape = self.tape
        nvidia = NVIDIA
        if tape.chance(15):
            nvidia = dataclasses.replace(
                NVIDIA,
                default_memory=tape.pick((0, 2000, 5000)),
                default_cores=tape.pick((0, 30, 100)),
                memory_factor=tape.pick((1, 0, 1000)),
            )
        if not tape.chance(self.flavour.acme):
            return (nvidia,)
        acme = dataclasses.replace(ACME, bounded_by_ids=not tape.chance(25))
        return (acme, nvidia) if tape.chance(25) else (nvidia, acme)

    # Nodes.

    def _add_node(self, name: str) -> None:
        tape = self.tape
        letter = name[-1]
        if self.nodes and tape.chance(self.flavour.copy):
            original = tape.pick(list(self.nodes))
            self.originals[name] = original
            self.nodes[name] = {
                word: [_changed(device, id=_copied(device.id, letter)) for device in devices]
                for word, devices in self.nodes[original].items()
            }
            return
        cards: dict[str, list[node_register.Device]] = {}
        if not tape.chance(4):
            cards["NVIDIA"] = self._nvidia_cards(letter)
        elif tape.chance(30):
            cards["NVIDIA"] = []
        if len(self.vendors) > 1 and tape.chance(70):
            cards["ACME"] = self._acme_cards(letter)
        self.nodes[name] = cards
        cordoned = [
            device.id
            for device in cards.get("NVIDIA", ())
            if tape.chance(self.flavour.trouble // 3)
        ]
        if cordoned:
            self.cordons[name] = tape.pick((",", ", ", ",,")).join([*cordoned, "GPU-unknown"])

    def _nvidia_cards(self, letter: str) -> list[node_register.Device]:
        tape = self.tape
        size = tape.pick((2, 1, 2, 3, 4, 4, 6, 8, 9, 10))
        kind, memory = tape.pick(_TYPES)
        memory = tape.pick((memory, memory, 8000, 16384))
        count = tape.pick((10, 10, 4, 3, 2, 1))
        cores = tape.pick((100, 100, 100, 100, 200, 50))
        mode = tape.pick(("hami-core", "", "hami-core", "hami-core", "hami-core", "mps", "mig"))
        if mode == "mig" and tape.chance(50):
            mode = "hami-core"
        numbering = tape.pick(("in order", "in order", "missing", "reversed", "scattered"))
        numas = tape.pick(("none", "halves", "halves", "random", "unknown"))
        mixed = tape.chance(25)
        trouble = self.flavour.trouble
        devices: list[node_register.Device] = []
        for place in range(size):
            index = {"in order": place, "missing": 0, "reversed": size - place}.get(numbering)
            numa = {"none": 0, "halves": 2 * place // size, "unknown": -1}.get(numas)
            device = node_register.Device(
                id=f"GPU-{letter}{(place * 7 + 3) % 11:x}",
                index=tape.below(12) if index is None else index,
                count=count,
                devmem=tape.pick((memory, memory // 2, 5000, 10240)) if mixed else memory,
                devcore=cores,
                type=kind,
                numa=tape.below(5) - 1 if numa is None else numa,
                mode=mode,
                health=True,
            )
            if tape.chance(trouble):
                device = self._odd_card(device)
            devices.append(device)
        return devices

    def _odd_card(self, device: node_register.Device) -> node_register.Device:
        tape = self.tape
        what = tape.pick(("health", "mode", "type", "count", "devcore", "devmem", "health", "mode"))
        values: dict[str, object] = {
            "health": False,
            "mode": tape.pick(("mig", "mps", "mig", "hami-core")),
            "type": tape.pick(_TYPES)[0],
            "count": tape.pick((1, 0, 2, 20)),
            "devcore": tape.pick((50, 0, 200, 300)),
            "devmem": tape.pick((2000, 0, 4000)),
        }
        return _changed(device, **{what: values[what]})

    def _acme_cards(self, letter: str) -> list[node_register.Device]:
        tape = self.tape
        memory = tape.pick((16384, 65536, 5120))
        count = tape.pick((10, 4, 2))
        return [
            node_register.Device(
                id=f"ACME-{letter}{place}",
                index=place,
                count=count,
                devmem=memory,
                devcore=100,
                type="ACME One",
                numa=place % 2,
                health=not tape.chance(self.flavour.trouble // 2),
            )
            for place in range(tape.pick((2, 1, 3, 4)))
        ]

    def _use_cards(self) -> None:
        pods = [pod for pod in self.pods if pod.uid != UID and not pod.finished]
        for name in self.nodes:
            node = objects.Node(objects.Metadata(name=name, annotations=self._registers(name)))
            self.cards[name] = {
                vendor.word: reference.cards_of(node, vendor, pods) for vendor in self.vendors
            }

    def _registers(self, name: str) -> dict[str, str | None]:
        registers = {vendor.word: vendor.register for vendor in self.vendors}
        values: dict[str, str | None] = {
            registers[word]: node_register.encode_json(devices)
            for word, devices in self.nodes[name].items()
        }
        if name in self.cordons:
            values[NVIDIA.cordon] = self.cordons[name]
        return values

    def _node_object(self, name: str, pod: objects.Pod) -> objects.Node:
        tape = self.tape
        allocatable: Amounts = {"cpu": "64", "memory": "512Gi"}
        others = [p for p in self.pods if p.uid != UID and not p.finished and p.node_name == name]
        for vendor in self.vendors:
            slots = sum(device.count for device in self.nodes[name].get(vendor.word, ()))
            how = tape.below(100)
            if how >= 98:
                continue
            if how >= 96:
                allocatable[vendor.count] = "0"
            elif how >= 86:
                exact = reference.held_ids(pod, vendor) if _readable(pod) else 1
                exact += sum(reference.held_ids(other, vendor) for other in others)
                allocatable[vendor.count] = max(exact + tape.pick((0, -1, 1)), 0)
            else:
                allocatable[vendor.count] = str(slots + 40)
        return objects.Node(
            metadata=objects.Metadata(name=name, annotations=self._registers(name)),
            status=objects.NodeStatus(allocatable=allocatable),
        )

    def _names(self) -> list[str]:
        tape = self.tape
        names = list(self.nodes)
        if len(names) > 1 and tape.chance(10):
            names = tape.subset(names, 1 + tape.below(len(names)))
        if tape.chance(5):
            names.insert(tape.below(len(names) + 1), "unheard-of")
        return names

    # Pods that are there.

    def _add_pod(self, node: str) -> None:
        tape = self.tape
        number = len(self.pods)
        kinds = self._kinds(several=35)
        given: dict[str, list[tuple[pod_devices.Grant, ...]]] = {}
        containers: list[Amounts] = [{} for _ in kinds]
        foreign = tape.chance(6)
        for vendor in self.vendors:
            devices = self.nodes.get(node, _GONE).get(vendor.word, [])
            if vendor is not self.vendors[0] and not tape.chance(60):
                continue
            slots = [self._grants(devices, vendor.word) for _ in kinds]
            for container, slot in zip(containers, slots, strict=True):
                if slot:
                    container[vendor.count] = str(len(slot))
            given[vendor.allocated] = slots
        values: dict[str, str | None] = (
            {} if foreign else {key: pod_devices.encode(slots) for key, slots in given.items()}
        )
        if not foreign and tape.chance(70):
            values[keys.ASSIGNED_NODE] = node
        phase = tape.pick(("Running", "Running", "Pending", "", "Unknown"))
        uid = f"uid-{number}"
        fate = tape.below(100)
        if fate >= 96:
            phase = tape.pick(("Succeeded", "Failed"))
        elif fate >= 93 and all(pod.uid != UID for pod in self.pods):
            uid = UID
        spec = _spec(kinds, containers, node=node)
        self.pods.append(
            objects.Pod(
                metadata=objects.Metadata(
                    name=f"pod-{number}",
                    namespace=tape.pick((NAMESPACE, NAMESPACE, "other")),
                    uid=uid,
                    annotations=values,
                ),
                spec=spec,
                status=objects.PodStatus(
                    phase=phase, init_container_statuses=self._statuses(kinds)
                ),
            )
        )

    def _copy_pods(self, original: str, node: str) -> None:
        """Put onto `node` what its original holds, so that both score the same."""
        for pod in [pod for pod in self.pods if pod.node_name == original and pod.uid != UID]:
            assert pod.spec is not None
            values: dict[str, str | None] = {}
            if pod.annotation(keys.ASSIGNED_NODE):
                values[keys.ASSIGNED_NODE] = node
            for key in [vendor.allocated for vendor in self.vendors]:
                slots = pod_devices.decode(pod.annotation(key))
                if slots:
                    values[key] = pod_devices.encode(
                        [
                            pod_devices.Grant(_copied(g.uuid, node[-1]), g.type, g.memory, g.cores)
                            for g in slot
                        ]
                        for slot in slots
                    )
            number = len(self.pods)
            self.pods.append(
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

    def _grants(
        self, devices: Sequence[node_register.Device], word: str
    ) -> tuple[pod_devices.Grant, ...]:
        tape = self.tape
        chosen = tape.subset(devices, tape.pick((1, 1, 1, 2, 0, 3)))
        if not chosen:
            return ()
        part = tape.pick((4, 4, 2, 8, 1, 0))
        cores = tape.pick((0, 0, 0, 10, 25, 50, 50, 100))
        grants = []
        for device in chosen:
            memory = device.devmem // part if part else tape.pick((1000, 3000, 5000))
            uuid = "GPU-replaced" if tape.chance(1) else device.id
            grants.append(pod_devices.Grant(uuid, word, memory, cores))
        return tuple(grants)

    def _statuses(self, kinds: Sequence[Kind]) -> list[objects.ContainerStatus | None]:
        """Return how far the init containers are; sidecars run."""
        fate = self.tape.pick(("done", "running", "running", "done", "failed", "half"))
        statuses: list[objects.ContainerStatus | None] = []
        for number, kind in enumerate(kinds):
            if kind is Kind.APP:
                continue
            ended = kind is Kind.INIT and fate != "running" and not (fate == "half" and number)
            code = objects.Terminated(exit_code=1 if fate == "failed" else 0)
            state = objects.ContainerState(terminated=code if ended else None)
            statuses.append(objects.ContainerStatus(name=f"c{number}", state=state))
        return statuses

    def _kinds(self, several: int) -> list[Kind]:
        tape = self.tape
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

    # The pod that comes.

    def _incoming(self) -> objects.Pod:
        tape = self.tape
        wishes = self._wishes()
        if tape.chance(self.flavour.packing):
            kinds, containers = self._packing_containers()
            if tape.chance(60):
                wishes[keys.GPU_POLICY] = "spread"
        else:
            kinds = self._kinds(self.flavour.several)
            containers = [self._request(len(kinds)) for _ in kinds]
        if tape.chance(2):
            self._spoil(containers)
        if tape.chance(2):  # not ours, whatever its annotations say
            containers = [{} for _ in kinds]
            if tape.chance(30):
                wishes[keys.GPU_POLICY] = "best"
        spec = _spec(kinds, containers, node=None, place=tape.pick(_PLACES))
        return objects.Pod(
            metadata=objects.Metadata(
                name="incoming",
                namespace=NAMESPACE,
                uid=UID,
                annotations=wishes,
            ),
            spec=spec,
        )

    def _packing_containers(self) -> tuple[list[Kind], list[Amounts]]:
        """Ask for all that the roomiest card has left, after asking for less."""
        tape = self.tape
        name = tape.pick(list(self.nodes))
        cards = self.cards[name]["NVIDIA"]
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
            containers.append({NVIDIA.count: "1", NVIDIA.memory: self._units(size)})
            if tape.chance(5):
                containers[-1] = {NVIDIA.count: "1", NVIDIA.percentage: tape.pick(("100", "50"))}
        kinds = [Kind.APP for _ in sizes]
        if tape.chance(20):
            kinds.insert(0, tape.pick((Kind.INIT, Kind.SIDECAR)))
            containers.insert(0, self._request(2))
        return kinds, containers

    def _units(self, memory: int) -> objects.Amount:
        """Write MiB in the units of NVIDIA's row here."""
        nvidia = next(vendor for vendor in self.vendors if vendor.word == "NVIDIA")
        units = memory // max(nvidia.memory_factor, 1)
        if units and units % 1024 == 0 and self.tape.chance(20):
            return f"{units // 1024}Ki"
        return units if self.tape.chance(10) else str(units)

    def _request(self, containers: int) -> Amounts:
        """Return what one container asks for."""
        tape = self.tape
        if containers > 1 and tape.chance(15):
            return tape.pick(({}, {"cpu": "1"}, {NVIDIA.memory: "1000"}, {NVIDIA.count: "0"}))
        amounts: Amounts = {}
        both = len(self.vendors) > 1
        if not both or not tape.chance(35):
            amounts |= self._nvidia_request(containers)
        if both and (not amounts or tape.chance(35)):
            amounts |= self._acme_request()
        return amounts

    def _some_card(self, word: str) -> reference.Card | None:
        """Pick a card whose room gives a request its size."""
        cards = [card for cards in self.cards.values() for card in cards[word]]
        return self.tape.pick(cards) if cards else None

    def _nvidia_request(self, containers: int) -> Amounts:
        tape = self.tape
        card = self._some_card("NVIDIA")
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
            amounts[NVIDIA.memory] = self._units(size)
        else:
            amounts[NVIDIA.memory] = self._units(tape.pick((1000, 2000, 3000, 5000, 4096, 0)))
        if tape.chance(3):
            amounts[NVIDIA.percentage] = "50"
        how = tape.below(100)
        if how >= 90 and card is not None:
            room = card.device.devcore - card.cores
            amounts[NVIDIA.cores] = str(max(room + tape.pick((0, 1, -1)), 0))
        elif how >= 45:
            amounts[NVIDIA.cores] = str(tape.pick((10, 25, 30, 50, 100, 0, 150, 100)))
        return amounts

    def _acme_request(self) -> Amounts:
        tape = self.tape
        amounts: Amounts = {ACME.count: str(tape.pick((1, 1, 1, 2, 2, 3)))}
        card = self._some_card("ACME")
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

    def _spoil(self, containers: list[Amounts]) -> None:
        amounts = self.tape.pick(containers)
        resource, values = self.tape.pick(
            (
                (NVIDIA.count, _BAD_COUNTS),
                (NVIDIA.memory, _BAD_MEMORY),
                (NVIDIA.percentage, _BAD_PERCENTAGES),
                (NVIDIA.cores, _BAD_COUNTS),
            )
        )
        amounts[resource] = self.tape.pick(values)

    def _wishes(self) -> dict[str, str | None]:
        """Return the annotations the pod's user wrote."""
        tape = self.tape
        wishes: dict[str, str | None] = {}
        if tape.chance(50):
            wishes[keys.NODE_POLICY] = tape.pick(("binpack", "spread", "spread", ""))
        how = tape.below(100)
        if how >= 75:
            wishes[keys.GPU_POLICY] = tape.pick(_CHAINS)
        elif how >= 35:
            wishes[keys.GPU_POLICY] = tape.pick(_SINGLE_POLICIES)
        elif how >= 33:
            wishes[keys.GPU_POLICY] = " "
        if tape.chance(15):
            wishes[keys.SCORING_WEIGHTS] = tape.pick(_WEIGHTS)
        if tape.chance(self.flavour.numa_bind):
            wishes[NVIDIA.numa_bind] = tape.pick(_TRUE_AND_NOT[: 1 + tape.below(9)])
        if tape.chance(self.flavour.picky):
            self._be_picky(wishes)
        if tape.chance(2):
            key, values = tape.pick(
                (
                    (keys.NODE_POLICY, ("best", "mutex", "Binpack")),
                    (keys.GPU_POLICY, _BAD_POLICIES),
                    (keys.SCORING_WEIGHTS, _BAD_WEIGHTS),
                )
            )
            wishes[key] = tape.pick(values)
        return wishes

    def _be_picky(self, wishes: dict[str, str | None]) -> None:
        tape = self.tape
        ids = [card.device.id for cards in self.cards.values() for card in cards["NVIDIA"]]
        what = tape.pick(("type", "no type", "mode", "ids", "no ids", "mode", "mode", "all"))
        if what in ("type", "all"):
            wishes[NVIDIA.use_type] = tape.pick(_TYPE_LISTS)
        if what in ("no type", "all"):
            wishes[NVIDIA.nouse_type] = tape.pick((*_TYPE_LISTS, " , "))
        if what in ("mode", "all"):
            wishes[NVIDIA.mode] = tape.pick(_MODE_WISHES)
        if what in ("ids", "all"):
            wanted = tape.subset(ids, 1 + tape.below(6))
            wishes[NVIDIA.use_uuid] = ", ".join([*wanted, "GPU-unknown"])
        if what in ("no ids", "all"):
            wishes[NVIDIA.nouse_uuid] = ",".join(tape.subset(ids, 1 + tape.below(3)))

    # Quotas.

    def _quotas(self, pod: objects.Pod) -> list[objects.ResourceQuota]:
        tape = self.tape
        if not tape.chance(self.flavour.quota):
            return []
        return [
            objects.ResourceQuota(
                metadata=objects.Metadata(name=f"quota-{number}", namespace=namespace),
                spec=objects.QuotaSpec(hard=self._hard(pod)),
            )
            for number, namespace in enumerate(
                tape.pick(
                    (
                        (NAMESPACE,),
                        (NAMESPACE, NAMESPACE),
                        (NAMESPACE, "other", NAMESPACE),
                        ("other",),
                    )
                )
            )
        ]

    def _hard(self, pod: objects.Pod) -> Amounts:
        """Limit to what is used and asked for, give or take, or to something quite different."""
        tape = self.tape
        nvidia = next(vendor for vendor in self.vendors if vendor.word == "NVIDIA")
        others = [p for p in self.pods if p.uid != UID and not p.finished]
        used = reference.quota_of(nvidia, NAMESPACE, others, [])
        memory, cores = used.memory_used, used.cores_used
        if _readable(pod):
            asks = [reference.read_ask(c, nvidia) for _, c in pod.containers()]
            whole = self._some_card("NVIDIA")
            for ask in asks:
                if ask is not None and whole is not None:
                    memory += ask.count * reference.memory_on(whole, ask)
                    cores += ask.count * ask.cores
        factor = max(nvidia.memory_factor, 1)
        hard: Amounts = {"cpu": "10", "requests.nvidia.com/gpumem": "0"}
        if tape.chance(75):
            exact = memory // factor + tape.pick((0, -1, 1, 1000))
            hard[f"limits.{nvidia.memory}"] = str(
                max(exact, 0) if tape.chance(80) else tape.pick((10**6, 10000, 0, 2048))
            )
        if tape.chance(50):
            exact = cores + tape.pick((0, -1, 1, 50))
            hard[f"limits.{nvidia.cores}"] = str(
                max(exact, 0) if tape.chance(80) else tape.pick((1000, 100, 0))
            )
        if tape.chance(10):  # ACME does not enforce quotas
            hard["limits.acme.test/mem"] = "1"
        return hard


def _readable(pod: objects.Pod) -> bool:
    try:
        reference.read_wish(pod, (NVIDIA, ACME), "binpack", "spread")
    except ValueError:
        return False
    return True


def _changed(device: node_register.Device, **changes: object) -> node_register.Device:
    fields: dict[str, Any] = {name: getattr(device, name) for name in device.__struct_fields__}
    return node_register.Device(**(fields | changes))


def _copied(card: str, letter: str) -> str:
    """Return the id of the like card on the node with this letter."""
    word, _, rest = card.partition("-")
    return card if rest == "replaced" else f"{word}-{letter}{rest[1:]}"


def _spec(
    kinds: Sequence[Kind],
    containers: Sequence[Amounts],
    *,
    node: str | None,
    place: str = "limits",
) -> objects.PodSpec:
    """Write amounts as limits, as requests, or as limits next to other requests."""
    inits: list[objects.Container | None] = []
    apps: list[objects.Container | None] = []
    for number, (kind, amounts) in enumerate(zip(kinds, containers, strict=True)):
        resources = objects.Resources(
            limits={} if place == "requests" else amounts,
            requests={"requests": amounts, "both": _OTHER_REQUESTS}.get(place),
        )
        container = objects.Container(
            name=f"c{number}",
            resources=resources if amounts else None,
            restart_policy="Always" if kind is Kind.SIDECAR else None,
        )
        (apps if kind is Kind.APP else inits).append(container)
    return objects.PodSpec(node_name=node, containers=apps, init_containers=inits or None)
