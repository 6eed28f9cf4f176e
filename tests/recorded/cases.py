"""Random cases of one vendor: a fleet, pods placed there, quotas, a new pod.

A case is a JSON object of Kubernetes' own objects, see docs/testing.md. The same vendor, seed and
number draw the same case. Requests and placed pods are drawn so that some nodes have room and
some have not.

Left out, because HAMi's answer is a bug that is known and not reproduced: quotas together with init
containers (the quota's sum leaves some out), and quotas on shared Enflame cards (limits in GB are
compared with a use in MiB).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator

from tests.recorded import fleets
from tests.recorded.fleets import Card, Document

NAMESPACE = "team-a"
#: Resource names: count, memory, cores; empty where the vendor has none.
RESOURCES = {
    "DCU": ("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    "Biren": ("birentech.com/gpu", "", ""),
    "GCU": ("enflame.com/gcu", "", ""),
    "MLU": ("cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
    "AMD": ("amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"),
    **{
        word: (f"iluvatar.ai/{word}-vgpu", f"iluvatar.ai/{word}.vMem", f"iluvatar.ai/{word}.vCore")
        for word in fleets.ILUVATAR
    },
}
ALLOCATED = {
    "DCU": "hami.io/dcu-devices-allocated",
    "Biren": "hami.io/Biren-devices-allocated",
    "GCU": "hami.io/enflame-gcu-devices-allocated",
    "Enflame": "hami.io/enflame-vgpu-devices-allocated",
    "MLU": "hami.io/cambricon-mlu-devices-allocated",
    "AMD": "hami.io/amd-devices-allocated",
    **{word: f"hami.io/{word}-devices-allocated" for word in fleets.ILUVATAR},
}
#: use and no-use of ids, then of types.
SELECTORS = {
    "DCU": (
        *("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
        *("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
    ),
    "Biren": ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid"),
    "GCU": (),
    "Enflame": ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid"),
    "MLU": ("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
    "AMD": (
        *("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),
        *("amd.com/use-gputype", "amd.com/nouse-gputype"),
    ),
    **{
        word: (f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid")
        for word in fleets.ILUVATAR
    },
}
TYPES = {"DCU": ("DCU", "k100", "Z100L", "MI300"), "AMD": ("mi300x", "MI210", "AMD", "Instinct")}
UNITS = {"MLU": 256, **dict.fromkeys(fleets.ILUVATAR, 256)}
"""MiB of one unit of a vendor's memory resource."""


def cases(vendor: str, seed: int, count: int) -> Iterator[Document]:
    """Draw cases; case number n depends on vendor, seed and n alone."""
    for number in range(count):
        yield draw(vendor, seed, number)


def draw(vendor: str, seed: int, number: int) -> Document:
    """Draw one case."""
    rng = random.Random(f"{vendor}/{seed}/{number}")
    nodes, cards = fleets.nodes(vendor, rng)
    load = rng.choice((0.6, 0.9, 0.95) if vendor == "drs" else (0.0, 0.3, 0.6, 0.9))
    pods, slots = _placed(cards, load, rng)
    init = rng.random() < 0.2
    case: Document = {
        "id": number,
        "vendor": vendor,
        "nodePolicy": rng.choice(("binpack", "spread")),
        "gpuPolicy": rng.choice(("spread", "spread", "binpack", "mutex", "numa", "binpack,numa")),
        "nodes": nodes,
        "pods": pods,
        "pod": _pod(vendor, cards, rng, init=init),
    }
    if vendor == "vgcu" and case["gpuPolicy"] == "mutex":
        case["gpuPolicy"] = "spread"  # HAMi 2.8 had no such policy
    if slots:
        case["slots"] = slots
    often = 0.4 if vendor == "cambricon" else 0.2  # it alone enforces quotas when it takes cards
    if not init and rng.random() < often and (quota := _quota(cards[0].word, rng)):
        case["quotas"] = [quota]
    return case


# Placed pods.


def _placed(cards: list[Card], load: float, rng: random.Random) -> tuple[list[Document], Document]:
    """Place pods so that each card is about this full; also slices that HAMi forgets to count."""
    pods: list[Document] = []
    slots: Document = {}
    for card in cards:
        free_memory, free_cores, free_slots = card.memory, card.cores, card.count
        while free_slots and rng.random() < load:
            memory, cores, profile = _held(card, free_memory, free_cores, rng)
            if memory > free_memory or cores > free_cores:
                break
            uid = f"placed-{len(pods)}"
            pods.append(_placed_pod(uid, card, memory, cores, profile))
            if profile:
                size = int(profile.split("g")[0])
                if size > 1:
                    slots[f"{uid}/{card.id}"] = size
                free_slots -= size - 1
            free_memory, free_cores, free_slots = (
                free_memory - memory, free_cores - cores, free_slots - 1,
            )  # fmt: skip
            if free_slots < 0:
                break
    return pods, slots


def _held(card: Card, memory: int, cores: int, rng: random.Random) -> tuple[int, int, str]:
    """Draw MiB, percent or units, and profile of one placed container."""
    if card.profiles:
        name = rng.choice(card.profiles)[0]
        size, gigabytes = name.split("g.")
        return int(gigabytes[:-2]) * 1024, math.ceil(int(size) * 100 / card.count), name
    if card.word == "GCU":
        return 100, 100, ""
    if card.word == "Biren":
        return 0, 0, ""
    if card.word == "Enflame":
        return rng.choice((12, 25, 50, 100)), 0, ""
    if rng.random() < 0.12:  # all of the compute that is left
        return min(card.memory // 8, memory), cores, ""
    part = rng.choice((4, 4, 8, 8, 2, 1))
    unit = UNITS.get(card.word, 1)
    held = card.memory // part // unit * unit
    taken = 0 if rng.random() < 0.3 else max(card.cores // part, 1)
    return min(held, memory), min(taken, cores), ""


def _placed_pod(uid: str, card: Card, memory: int, cores: int, profile: str) -> Document:
    devices = f"{card.id},{card.type},{memory},{cores}:;"
    annotations = {
        "hami.io/vgpu-node": card.node,
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-phase": "success",
        ALLOCATED[card.word]: devices,
    }
    if profile:
        index, size = card.id.rsplit("-", 1)[1], profile.split("g", 1)[0]
        held = {"allocated": True, "request": int(size), "profileID": dict(card.profiles)[profile]}
        annotations |= {
            "enflame.com/gcu-assigned": "true",
            "enflame.com/gcu-assigned-time": "1700000000000000000",
            "enflame.com/gcu-assigned-index": index,
            "enflame.com/gcu-assigned-id": index,
            "enflame.com/gcu-assigned-minor": card.minor,
            "enflame.com/gcu-request-size": size,
            "assigned-containers": json.dumps(
                {"main": held | {"profileName": profile}}, separators=(",", ":")
            ),
        }
    return {
        "metadata": {
            "name": uid, "namespace": NAMESPACE, "uid": uid, "annotations": annotations,
        },
        "spec": {"nodeName": card.node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }  # fmt: skip


# The new pod.


def _pod(vendor: str, cards: list[Card], rng: random.Random, *, init: bool) -> Document:
    card = rng.choice(cards)
    names = ["main", *(["side"] if rng.random() < 0.3 else [])]
    asking = rng.choice(names)
    containers = []
    for name in names:
        wants = name == asking or rng.random() < 0.4
        containers.append(_container(name, _limits(vendor, card, rng) if wants else {}, rng))
    spec: Document = {"containers": containers}
    if init:
        limits = _limits(vendor, card, rng) if rng.random() < 0.6 else {}
        spec["initContainers"] = [_container("prepare", limits, rng)]
    metadata: Document = {"name": "pod", "namespace": NAMESPACE, "uid": "uid-pod"}
    if annotations := _annotations(vendor, card, cards, rng):
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _container(name: str, limits: Document, rng: random.Random) -> Document:
    """Return a container as the API server shows it: requests default to limits."""
    container: Document = {"name": name}
    if rng.random() < 0.2:
        container["env"] = [{"name": rng.choice(("SOL_CONTINER_NAME", "MODE")), "value": "x"}]
    if limits:
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    return container


def _limits(vendor: str, card: Card, rng: random.Random) -> Document:
    number = rng.choice((1, 1, 1, 1, 1, 2, 2, 3))
    if vendor == "drs":
        return _slices(card, rng)
    if vendor == "vgcu":
        limits: Document = {"enflame.com/vgcu": str(number)}
        if rng.random() < 0.8:
            limits["enflame.com/vgcu-percentage"] = str(rng.choice((0, 1, 10, 25, 30, 50, 75, 100)))
        return limits
    count, memory, cores = RESOURCES[card.word]
    limits = {count: str(number)}
    if rng.random() < 0.02:
        limits[count] = "0"
    if memory and rng.random() < 0.7:
        limits[memory] = _memory(card, rng)
    if cores and rng.random() < 0.7:
        low = 1 if vendor == "amd" else 0
        limits[cores] = str(rng.choice((low, low, 1, 10, 25, 30, 50, 60, 100, 100)))
        if rng.random() < 0.04:
            limits[cores] = str(rng.choice((101, 250)))
    if len(limits) > 1 and rng.random() < 0.02:
        del limits[count]  # part of a card, but no card
    return limits


def _memory(card: Card, rng: random.Random) -> str:
    unit = UNITS.get(card.word, 1)
    part = rng.choice((16, 8, 4, 4, 2, 1))
    amount = card.memory // part // unit + (1 if rng.random() < 0.1 else 0)
    if rng.random() < 0.03:
        return rng.choice(("0", "1k", "2Ki", str(2**31 - 1)))
    return str(amount)


def _slices(card: Card, rng: random.Random) -> Document:
    profile = rng.choice(card.profiles)[0]
    size, gigabytes = profile.split("g.")
    how = rng.random()
    if how < 0.4:
        return {"enflame.com/drs-gcu": rng.choice((size, size, size, str(rng.randrange(8))))}
    limits = {}
    if how < 0.85:
        memory = int(gigabytes[:-2]) - rng.choice((0, 0, 1))
        mebibytes = rng.random() < 0.3
        limits["enflame.com/gcu-memory"] = str(memory * 1024 if mebibytes else memory)
    if how >= 0.7:
        share = min(int(size) * 100 // card.count + rng.choice((0, 0, 1, -1)), 100)
        limits["enflame.com/gcu-core"] = str(share if rng.random() > 0.05 else rng.choice((0, 101)))
    return limits


def _annotations(vendor: str, card: Card, cards: list[Card], rng: random.Random) -> Document:
    chosen: Document = {}
    selectors = SELECTORS[card.word]
    if selectors and rng.random() < 0.15:
        key = rng.choice(selectors[:2])
        ids = rng.sample([each.id for each in cards], k=min(len(cards), rng.choice((1, 1, 2))))
        spaced = vendor != "vgcu" and rng.random() < 0.3
        chosen[key] = (" , " if spaced else ",").join(ids)
        if vendor != "vgcu" and rng.random() < 0.1:
            chosen[key] = rng.choice(("", "  ", "no-such-card"))
    if len(selectors) > 2 and rng.random() < 0.15:
        chosen[rng.choice(selectors[2:])] = ",".join(rng.sample(TYPES[card.word], k=2))
    if rng.random() < 0.15:
        policies = ["binpack", "spread", "numa", "spread,numa"] + ["mutex"] * (vendor != "vgcu")
        chosen["hami.io/gpu-scheduler-policy"] = rng.choice(policies)
    if rng.random() < 0.15:
        chosen["hami.io/node-scheduler-policy"] = rng.choice(("binpack", "spread"))
    if rng.random() < 0.1:
        weights = rng.choice(("slot=1,core=0,memory=0", "slot=0,core=2,memory=5"))
        chosen["hami.io/device-scoring-weights"] = weights
    return chosen


def _quota(word: str, rng: random.Random) -> Document | None:
    memory, cores = RESOURCES.get(word, ("", "", ""))[1:]
    hard = {}
    if memory and rng.random() < 0.7:
        hard[f"limits.{memory}"] = str(rng.choice((0, 16, 64, 256, 16384, 65536)))
    if cores and rng.random() < 0.6:
        hard[f"limits.{cores}"] = str(rng.choice((0, 60, 100, 200, 400)))
    if not hard:
        return None
    return {"metadata": {"name": "quota", "namespace": NAMESPACE}, "spec": {"hard": hard}}
