"""A node's stand-in GPUs: the folder that native/fakegpu reads.

The same node name and the same cards give the same UUIDs: a node that is created again is the same
node. Cards get buses in the order given, the first half at NUMA node 0 and the rest at node 1, in
pairs behind one PCIe switch. Cards of a model with NVLink are joined by a switch, or in pairs.

`inject_xid` and `set_faults` break cards that run. `cdi_spec` describes how containers get them.
The folder's format is in native/fakegpu/store.h.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hami.agent.containers import library
from hami.node import files
from hami_sandbox.errors import SandboxError
from hami_sandbox.gpu_models import MIB, MODELS, Model

CDI_KIND = "nvidia.com/gpu"
IN_CONTAINER = "/run/fakegpu"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
MOST_CARDS = 16
MOST_MIG = 7

_NAMESPACE = uuid.UUID("5d3a1a0e-6a0f-5b86-9a53-3b1f2f4c7e11")
_CPUS = ("0-31,64-95", "32-63,96-127")
_PROFILE = re.compile(r"[1-7]g\.\d{1,3}gb")
_XIDS = range(1, 1000)
_NAME = r"(?:cu|nvml)[A-Z]\w*"
_FAULT = re.compile(
    rf"{_NAME} [1-9]\d*\+? [1-9]\d*"
    rf"|{_NAME} delay \d+"
    rf"|missing {_NAME}"
    r"|card (?P<card>\S+) (?:lost|hide [1-9]\d*)"
    r"|pids (?:outer|shifted [1-9]\d*)",
    re.ASCII,
)


def driver_folder() -> Path:
    """Return the folder with the stand-in driver's libraries for this machine."""
    package = Path(__file__).parent
    return library.find_built(f"fakegpu/{LIBRARIES[0]}", package=package).parent


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A card as the folder has it. `fields` is its whole line."""

    uuid: str
    name: str
    bus: str
    numa: int
    memory: int
    fields: Mapping[str, str]


def write_node(
    folder: Path,
    cards: Sequence[tuple[str, int]],
    *,
    name: str,
    mig: Mapping[int, Sequence[str]] | None = None,
) -> list[Card]:
    """Create or change a node: cards of each model; `mig` has MIG profiles by card."""
    models = _models(cards)
    profiles = _profiles(mig or {}, models)
    lines = [
        _line(models, index, name=name, profiles=profiles.get(index, ()))
        for index in range(len(models))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # processes of every user in every container write to it
    files.write_atomic(folder / "devices", "".join(f"{line}\n" for line in lines).encode())
    # In the place of the driver's device files: they show which processes have a card open.
    (folder / "dev").mkdir(exist_ok=True)
    for number in ("ctl", *range(len(models))):
        (folder / "dev" / f"nvidia{number}").touch()
    return read_node(folder)


def read_node(folder: Path) -> list[Card]:
    """Read the cards of a node in the order of their indexes."""
    try:
        text = (folder / "devices").read_text()
    except OSError as error:
        raise SandboxError(
            str(folder), f"is no stand-in node ({error.strerror})", "make it with write_node()"
        ) from error
    return [_card(line) for line in text.splitlines() if line]


def inject_xid(folder: Path, card: str, xid: int) -> None:
    """Let a card report an Xid to every process that waits for its events now."""
    _check_card(folder, card)
    if xid not in _XIDS:
        raise SandboxError(f"XID {xid}", "is not from 1 to 999", "take one that NVIDIA documents")
    with (folder / "xids").open("a") as file:
        file.write(f"{card}\t{xid}\n")


def set_faults(folder: Path, lines: Sequence[str]) -> None:
    """Replace all faults (native/fakegpu/faults.h); an empty list heals everything."""
    for line in lines:
        found = _FAULT.fullmatch(line)
        if not found:
            raise SandboxError(
                f"fault {line!r}",
                "is not a fault of the stand-in driver",
                "use one of native/fakegpu/faults.h",
            )
        if found["card"]:
            _check_card(folder, found["card"])
    files.write_atomic(folder / "faults", "".join(f"{line}\n" for line in lines).encode())


def cdi_spec(folder: Path, library_dir: Path) -> dict[str, Any]:
    """Describe the node's cards as NVIDIA's own CDI spec does.

    Real cards are given by their device nodes. These have none, so each device's edit names it in
    the environment, in place of the `void` that NVIDIA's spec gives all containers.
    """
    missing = [file for file in LIBRARIES if not (library_dir / file).is_file()]
    if missing:
        raise SandboxError(
            str(library_dir), f"has no {' and no '.join(missing)}", "build them with `make native`"
        )
    cards = read_node(folder)
    devices = [(str(index), card.uuid) for index, card in enumerate(cards)]
    devices += [(card.uuid, card.uuid) for card in cards]
    devices += [(part, part) for card in cards for part in mig_uuids(card)]
    devices.append(("all", "all"))
    target = f"/usr/lib/{platform.machine()}-linux-gnu"
    return {
        "cdiVersion": "0.5.0",
        "kind": CDI_KIND,
        "devices": [
            {"name": name, "containerEdits": {"env": [f"NVIDIA_VISIBLE_DEVICES={value}"]}}
            for name, value in devices
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", f"FAKEGPU_DIR={IN_CONTAINER}"],
            "mounts": [
                *(
                    {
                        "hostPath": str(library_dir / file),
                        "containerPath": f"{target}/{file}",
                        "options": ["ro", "nosuid", "nodev", "bind"],
                    }
                    for file in LIBRARIES
                ),
                {
                    "hostPath": str(folder),
                    "containerPath": IN_CONTAINER,
                    "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
                },
            ],
        },
    }


def mig_uuids(card: Card) -> list[str]:
    """Name the MIG devices of a card."""
    entries = card.fields.get("mig", "")
    return [entry.partition(":")[2] for entry in entries.split(",") if entry]


def _models(cards: Sequence[tuple[str, int]]) -> list[Model]:
    models: list[Model] = []
    for model, count in cards:
        if model not in MODELS:
            raise SandboxError(
                f"model {model!r}", "is not in the table", f"take one of {', '.join(MODELS)}"
            )
        if count < 1:
            raise SandboxError(f"{count} cards {model}", "is less than one", "leave the model out")
        models += [MODELS[model]] * count
    if not 1 <= len(models) <= MOST_CARDS:
        raise SandboxError(
            f"{len(models)} cards",
            f"is not from 1 to {MOST_CARDS}",
            "a node without GPUs needs no folder, one with more needs two nodes",
        )
    return models


def _profiles(
    mig: Mapping[int, Sequence[str]], models: Sequence[Model]
) -> Mapping[int, Sequence[str]]:
    for index, profiles in mig.items():
        if not 0 <= index < len(models):
            raise SandboxError(
                f"MIG on card {index}", f"the node has {len(models)}", "indexes start at 0"
            )
        if not models[index].mig:
            raise SandboxError(
                f"MIG on card {index}", f"{models[index].name} has none", "take an A100 or newer"
            )
        wrong = [profile for profile in profiles if not _PROFILE.fullmatch(profile)]
        if wrong or sum(int(profile[0]) for profile in profiles) > MOST_MIG:
            raise SandboxError(
                f"MIG profiles {', '.join(profiles)}",
                f"must read as 1g.10gb and have {MOST_MIG} slices together at most",
                "take fewer or smaller ones",
            )
    return mig


def _bus(index: int) -> str:
    return f"0000:{0x1A + 13 * index:02x}:00.0"


def _links(models: Sequence[Model], index: int) -> str:
    """Name the far end of each of a card's links."""
    model = models[index]
    peer = index ^ 1
    if model.switched:
        return ",".join(["switch"] * model.links)
    if peer < len(models) and models[peer] is model:
        return ",".join([_bus(peer)] * model.links)
    return ""


def _line(models: Sequence[Model], index: int, *, name: str, profiles: Sequence[str]) -> str:
    model = models[index]
    own = uuid.uuid5(_NAMESPACE, f"{name}/{index}")
    numa = int(index >= (len(models) + 1) // 2)
    major, minor = model.capability
    fields = {
        "uuid": f"GPU-{own}",
        "name": model.name,
        "memory": model.memory_mib * MIB,
        "sms": model.sms,
        "threads": model.threads,
        "major": major,
        "minor": minor,
        "context": model.context_mib * MIB,
        "bus": _bus(index),
        "numa": numa,
        "cpus": _CPUS[numa],
        "switch": index // 2,
        "nvlink": _links(models, index),
        "power": model.watts * 1000,
        "clock": model.clock_mhz,
        "memory_clock": model.memory_clock_mhz,
        "pci_device": hex(model.pci_device),
        "brand": model.brand,
        "p2p": int(model.p2p),
        "ecc": int(model.ecc),
        "mig_capable": int(model.mig),
        "serial": own.int % 10**13,
        "vbios": "96.00.99.00.01",
        "mig": ",".join(
            f"{profile}:MIG-{uuid.uuid5(own, str(place))}" for place, profile in enumerate(profiles)
        ),
    }
    return "\t".join(f"{key}={value}" for key, value in fields.items() if value != "")


def _card(line: str) -> Card:
    fields = dict(field.partition("=")[::2] for field in line.split("\t"))
    return Card(
        uuid=fields["uuid"],
        name=fields["name"],
        bus=fields["bus"],
        numa=int(fields["numa"]),
        memory=int(fields["memory"]),
        fields=fields,
    )


def _check_card(folder: Path, card: str) -> None:
    known = [each.uuid for each in read_node(folder)]
    if card not in known:
        raise SandboxError(
            f"card {card!r}", f"is not in {folder}", f"take one of {', '.join(known)}"
        )
