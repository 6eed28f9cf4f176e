"""Cards on nodes of the test cluster: the stand-in driver in containers.

On each node: libraries and probe in PLACE, the driver's folder in /run/fakegpu, and NVIDIA's CDI
spec in /etc/cdi. A node without CDI has no spec; its containers get the libraries from the test
image and the folder as a hostPath (pods.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_sandbox import gpus
from hami_sandbox.gpus import Card
from tests.e2e.auditor import peaks
from tests.e2e.auditor.peaks import Peak
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Runtime
from tests.e2e.cluster.machines import Machine
from tests.e2e.fakegpu import image
from tests.native import building
from tests.native.probing import Probe

PLACE = "/usr/local/fakegpu"
FOLDER = gpus.IN_CONTAINER
SPEC = "/etc/cdi/nvidia.json"
CARDS = (("A10", 2),)


@dataclass(frozen=True)
class GpuNode:
    machine: Machine
    cards: Sequence[Card]
    cdi: bool

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def card(self) -> Card:
        """The one that containers get."""
        return self.cards[0]

    def path(self, seen: str) -> Path:
        """Where a path of the node is for us."""
        return self.machine.root / seen.lstrip("/")

    def reader(self, noise: Path) -> Probe:
        """Start a process on the node itself, in no container: it sees what an agent would."""
        env = {"LD_LIBRARY_PATH": PLACE, "FAKEGPU_DIR": FOLDER}
        return Probe(self.machine.entering([f"{PLACE}/probe"], env), os.environ, noise)

    def process(self, pid: int) -> tuple[str, int]:
        """Give a process's name, and its pid as its own container sees it."""
        status = (self.path("/proc") / str(pid) / "status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return fields["Name"].strip(), int(fields["NSpid"].split()[-1])

    def peaks(self) -> list[Peak]:
        """Read the driver's own record."""
        found, bad = peaks.read((self.path(FOLDER) / peaks.FILE).read_text())
        assert not bad
        return found


@contextlib.contextmanager
def with_driver(
    cluster: Cluster, cards: Sequence[tuple[str, int]] = CARDS
) -> Iterator[Mapping[str, GpuNode]]:
    """Give every node these cards for as long as the block runs; nodes by their names."""
    image.load(cluster)
    with contextlib.ExitStack() as stack:
        made = {}
        for node in cluster.layout.nodes:
            machine = cluster.machine(node)
            stack.callback(_remove, machine)
            cdi = node.runtime is not Runtime.CONTAINERD_1
            made[node.name] = GpuNode(machine, _install(machine, cards, cdi=cdi), cdi)
        yield made


def find(cluster: Cluster) -> Mapping[str, GpuNode]:
    """Give the nodes that somebody else has given cards."""
    made = {}
    for node in cluster.layout.nodes:
        machine = cluster.machine(node)
        cards = gpus.read_node(machine.root / FOLDER.lstrip("/"))
        made[node.name] = GpuNode(machine, cards, node.runtime is not Runtime.CONTAINERD_1)
    return made


def _install(machine: Machine, cards: Sequence[tuple[str, int]], *, cdi: bool) -> list[Card]:
    _remove(machine)  # on a cluster that stays up, a run that was killed left its own
    built = building.all_current()
    place, folder = (machine.root / seen.lstrip("/") for seen in (PLACE, FOLDER))
    place.mkdir()
    for source in (built / "probe", *(built / "fakegpu" / name for name in gpus.LIBRARIES)):
        shutil.copy(source, place)
    made = gpus.write_node(folder, cards, name=machine.name)
    if cdi:
        write_spec(machine, SPEC, _as_seen(gpus.cdi_spec(folder, place), machine.root))
    return made


def write_spec(machine: Machine, seen: str, spec: Mapping[str, Any]) -> None:
    """Put a CDI spec into place in one step: the runtime watches the folder."""
    path = machine.root / seen.lstrip("/")
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(spec))
    draft.replace(path)


def _as_seen(spec: Any, root: Path) -> Any:
    """Turn our paths to the node's files into those that the node has for them."""
    if isinstance(spec, dict):
        return {key: _as_seen(value, root) for key, value in spec.items()}
    if isinstance(spec, list):
        return [_as_seen(value, root) for value in spec]
    return spec.removeprefix(str(root)) if isinstance(spec, str) else spec


def _remove(machine: Machine) -> None:
    (machine.root / SPEC.lstrip("/")).unlink(missing_ok=True)
    for folder in (FOLDER, PLACE):
        shutil.rmtree(machine.root / folder.lstrip("/"), ignore_errors=True)
