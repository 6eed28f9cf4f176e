"""Metrics of running containers against the driver's counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client import parser

from tests.e2e import pods
from tests.e2e.agent import node_side, scraping, workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, Agents
from tests.e2e.agent.workloads import CONTEXT, MIB
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.install import nodes as registering
from tests.e2e.parts import catalogue, promtool
from tests.e2e.test_metrics_format import complaints
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path
from tests.native.probing import Memory

SOON_S = 60
SHARE = frozenset({"namespace", "pod", "container", "vdevice_index", "device_uuid"})
CARD = frozenset({"device_index", "device_uuid", "device_type"})
USED, ALLOWED = "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"
CORES = "hami_vgpu_core_limit_percent"
BUFFER, OVERHEAD = "hami_vgpu_memory_buffer_bytes", "hami_vgpu_memory_context_bytes"
HOST_MEMORY = "hami_host_gpu_memory_used_bytes"

#: As docs/designs/006-hami-protocol.md and docs/monitor.md name them.
FAMILIES: Mapping[str, frozenset[str]] = {
    HOST_MEMORY: CARD | {"node"},
    "hami_host_gpu_utilization_ratio": CARD | {"node"},
    "hami_host_gpu_memory_controller_utilization_ratio": CARD,
    USED: SHARE,
    ALLOWED: SHARE,
    "hami_container_device_memory_bytes": SHARE,
    "hami_container_device_utilization_ratio": SHARE,
    OVERHEAD: SHARE,
    BUFFER: SHARE,
    "hami_vgpu_core_used_percent": SHARE,
    CORES: SHARE,
}
#: Announced without series: there is no MIG here; libvgpu leaves launches to the driver, and does
#: not tell modules from the rest that the driver takes by itself.
NONE_HERE = frozenset(
    {
        "hami_mig_device_info",
        "hami_container_last_kernel_elapsed_seconds",
        "hami_vgpu_memory_module_bytes",
    }
)

#: An init container that stays until it is told to go on.
GO = "/go"
UNTIL_TOLD = f"{{ printf '%s\\n' \"$@\"; until [ -e {GO} ]; do sleep 0.1; done; }} | probe; true"

#: MiB by container: what it may have and what it takes. No two alike, none may be mixed up.
LIMITS = {"first": 600, "side": 700, "one": 1000, "two": 800}
TAKEN = {"first": 100, "side": 200, "one": 300, "two": 150}
ONES_CORES = 20


def _pod(node: GpuNode) -> Object:
    def described(name: str, *commands: str, device: int = 0, cores: int = 0) -> Object:
        asked = ("init", f"device {device}", f"take alloc a {TAKEN[name]}m", *commands)
        return workloads.container(name, *asked, node=node, memory=LIMITS[name], cores=cores)

    first = described("first")
    first["command"][2] = UNTIL_TOLD
    side = described("side") | {"restartPolicy": "Always"}
    one = described("one", "module load m empty", "launch m default 10", cores=ONES_CORES)
    # Two cards, of which it uses the second.
    two = described("two", device=1) | registering.limits(2, memory=LIMITS["two"])
    return workloads.pod("many", one, two, node=node, initContainers=[first, side])


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_every_container_is_shown_with_its_own(
    agents: Agents, client: Client, namespace: str, where: str, tmp_path: Path
) -> None:
    node = agents.nodes[where]
    labels = {"namespace": namespace, "pod": "many"}

    def by_container(name: str) -> dict[tuple[str, str], float]:
        """Give a metric by container and the card's place in it."""
        return {
            (one.labels["container"], one.labels["vdevice_index"]): one.value
            for one in scraping.samples(agents.metrics(where), name, **labels)
        }

    def shows(name: str, expected: Mapping[tuple[str, str], float]) -> bool:
        found = by_container(name)
        return {place: found.get(place) for place in expected} == expected

    pods.create(client, namespace, _pod(node))
    # While the first runs, it is the first that is seen.
    place = ("first", "0")
    wait_for(
        "the init container to be seen",
        lambda: shows(USED, {place: CONTEXT + TAKEN["first"] * MIB}),
        SOON_S,
    )
    assert shows(ALLOWED, {place: LIMITS["first"] * MIB})

    pod = client.get(pods_path(namespace, "many"))
    node_side.within(agents, pod, f": > {GO}", "first")
    pod = pods.await_phase(client, namespace, "many")
    places = {("side", "0"): "side", ("one", "0"): "one", ("two", "0"): "two", ("two", "1"): "two"}
    limits = {place: LIMITS[name] * MIB for place, name in places.items()}
    wait_for("the init container's series to end", lambda: by_container(ALLOWED) == limits, SOON_S)
    workloads.answers(client, pod, "one", 5)
    buffers = {place: TAKEN[name] * MIB for place, name in places.items()} | {("two", "0"): 0}
    wait_for("the others to be seen", lambda: by_container(BUFFER) == buffers, SOON_S)
    assert by_container(CORES) == dict.fromkeys(limits, 100) | {("one", "0"): ONES_CORES}

    with node.reader(tmp_path / "noise") as reader:
        driver = [reader.memory(index) for index in range(len(node.cards))]
    wait_for(
        "the cards to be shown as the driver has them",
        lambda: _cards(agents.metrics(where)) == _counted(node, driver),
        SOON_S,
    )
    page = agents.metrics(where)
    _require_families(page, labels)
    _require_readable(page, agents.metrics(where, AGENT))
    for card, counted in zip(node.cards, driver, strict=True):
        on_it = {"device_uuid": card.uuid}
        shown = [one.value for one in scraping.samples(page, USED, **labels, **on_it) if one.value]
        assert sorted(shown) == sorted(counted.processes.values())

    gpu_pods.remove(client, pod)
    wait_for("its series to end", lambda: namespace not in agents.metrics(where), SOON_S)


def _cards(page: str) -> dict[tuple[str, ...], float]:
    names = ("node", "device_index", "device_uuid", "device_type")
    return {
        tuple(one.labels[name] for name in names): one.value
        for one in scraping.samples(page, HOST_MEMORY)
    }


def _counted(node: GpuNode, driver: Sequence[Memory]) -> dict[tuple[str, ...], float]:
    return {
        (node.name, str(index), card.uuid, _type(card.name)): counted.used
        for index, (card, counted) in enumerate(zip(node.cards, driver, strict=True))
    }


def _type(name: str) -> str:
    """Return a card's type as the scheduler's metrics have it, too."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def _require_families(page: str, labels: Mapping[str, str]) -> None:
    """Everything is there for a running container, with the right labels."""
    named = {family.name for family in parser.text_string_to_metric_families(page)}
    assert named >= {*FAMILIES, *NONE_HERE}
    for name, keys in FAMILIES.items():
        wanted = {**labels, "container": "one"} if keys == SHARE else {}
        found = scraping.samples(page, name, **wanted)
        assert found, name
        assert all(one.labels.keys() - {"zone"} == keys for one in found), found
    assert not any(scraping.samples(page, name) for name in NONE_HERE)


def _require_readable(*pages: str) -> None:
    """Prometheus itself reads them, and has nothing against our names."""
    program = str(catalogue.provide(promtool.promtool()) / promtool.PROGRAM)
    for page in pages:
        assert complaints(program, page.encode()) == set()
