"""Simulated devices of every vendor on a real kubelet, installed by the chart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hami.vendors import table
from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.chart import release as releases
from tests.e2e.chart.fixtures import _audited, _told  # noqa: F401 (fixtures)
from tests.e2e.chart.release import Release
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

NODE = "node-1"
ROWS = {vendor.name: vendor for vendor in table.built_in()}
OFFERED_S = 60
ENDED_S = 30
REFUSED_S = 30


@dataclasses.dataclass(frozen=True)
class Case:
    """A vendor's card, and a pod that takes all of it."""

    model: str
    limits: Mapping[str, str]
    #: Resources that kubelet offers then, with their numbers.
    offers: Mapping[str, str]
    #: Annotations of the pod at the end, where the vendor's plugin writes no bind-phase.
    flags: Mapping[str, str] | None = None


CASES = {
    "NVIDIA": Case("T4", {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "10"}),
    "DCU": Case("Z100", {"hygon.com/dcunum": "1"}, {"hygon.com/dcunum": "4"}),
    "MLU": Case(
        "MLU370-X4",
        {
            "cambricon.com/vmlu": "1",
            "cambricon.com/mlu.smlu.vcore": "100",
            "cambricon.com/mlu.smlu.vmemory": "96",
        },
        {"cambricon.com/mlu.smlu.vcore": "100", "cambricon.com/mlu.smlu.vmemory": "96"},
        {"CAMBRICON_DSMLU_ASSIGNED": "true", "CAMBRICON_DSMLU_PROFILE": "0_100_96"},
    ),
    "GCU": Case("S60", {"enflame.com/gcu": "1"}, {"enflame.com/gcu": "1"}, {}),
    "Enflame": Case(
        "S60-DRS",
        {"enflame.com/drs-gcu": "6"},
        {"enflame.com/drs-gcu": "6"},
        {"enflame.com/gcu-assigned": "true", "enflame.com/gcu-request-size": "6"},
    ),
    "Enflame-VGCU": Case(
        "S60-shared",
        {"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": "100"},
        {"enflame.com/shared-gcu": "6", "enflame.com/gcu-count": "1"},
        {"enflame.com/gcu-assigned": "true", "enflame.com/gcu-assigned-id": "0"},
    ),
    "AMD": Case("MI210", {"amd.com/gpu": "1"}, {"amd.com/gpu": "10"}),
    "MR-V100": Case(
        "MR-V100", {"iluvatar.ai/MR-V100-vgpu": "1"}, {"iluvatar.ai/MR-V100-vgpu": "10"}
    ),
    "Biren": Case("BR104", {"birentech.com/gpu": "1"}, {"birentech.com/gpu": "1"}),
}
VALUES: Mapping[str, Any] = {
    "devices": {"iluvatar": {"enabled": True}},
    "enflameResourceNameVGCU": "enflame.com/vgcu",
    "enflameResourceNameVGCUPercentage": "enflame.com/vgcu-percentage",
    "devicePlugin": {"enabled": False},
    "simulatedDevices": {
        "enabled": True,
        "nodes": [
            {"names": [NODE], "devices": [{"model": case.model} for case in CASES.values()]},
        ],
    },
}


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with releases.installed(cluster, more=VALUES) as release:

        def offered() -> bool:
            there = release.client.get(nodes_path(NODE))["status"]["allocatable"]
            return all(case.offers.items() <= there.items() for case in CASES.values())

        wait_for("the node to offer every vendor's cards", offered, OFFERED_S)
        yield release
    with cluster.joined_network(), cluster.client as client:
        left = annotations_of(client.get(nodes_path(NODE))).keys() & table.node_lists(ROWS.values())
    assert not left, f"of the simulated cards {', '.join(left)} stayed on {NODE}"


def pod(name: str, *limits: Mapping[str, str]) -> Object:
    """Describe a pod with one container for each of the limits."""
    made = pods.pod(name)
    (first,) = made["spec"]["containers"]
    made["spec"]["containers"] = [
        {**first, "name": f"c{index}", "resources": {"limits": dict(each)}}
        for index, each in enumerate(limits)
    ]
    return made


def annotations_of(found: Object) -> dict[str, str]:
    kept: dict[str, str] = found["metadata"].get("annotations", {})
    return kept


def has_ended(found: Object, vendor: str) -> bool:
    """Whether a pod is at the end of its vendor's protocol."""
    kept, flags = annotations_of(found), CASES[vendor].flags
    if flags is not None:
        return flags.items() <= kept.items()
    left = kept.get(ROWS[vendor].annotations.to_allocate, "")
    return kept.get(annotation_keys.BIND_PHASE) == "success" and set(left) == {";"}


def await_end(client: Client, namespace: str, name: str, *vendors: str) -> Object:
    found = pods.await_phase(client, namespace, name)

    def ended() -> Object | None:
        now = client.get(pods_path(namespace, name))
        return now if all(has_ended(now, vendor) for vendor in vendors) else None

    try:
        return wait_for(f"the end of the protocol for pod {name}", ended, ENDED_S)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {annotations_of(found)}") from None


def await_no_locks(client: Client) -> None:
    keys = {row.annotations.lock for row in ROWS.values() if row.annotations.lock}

    def none() -> bool:
        return not keys & annotations_of(client.get(nodes_path(NODE))).keys()

    wait_for("the node's locks to be released", none, ENDED_S)


def is_refused(client: Client, namespace: str, name: str) -> bool:
    conditions = client.get(pods_path(namespace, name))["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)


def test_a_pod_of_every_vendor_runs_is_counted_and_is_freed(
    client: Client, namespace: str, release: Release
) -> None:
    first = {vendor: f"first-{vendor.lower()}" for vendor in CASES}
    for vendor, name in first.items():
        pods.create(client, namespace, pod(name, CASES[vendor].limits))
    for vendor, name in first.items():
        found = await_end(client, namespace, name, vendor)
        assert found["spec"]["nodeName"] == NODE
        assert annotations_of(found)[ROWS[vendor].annotations.allocated].count(",") == 3
    await_no_locks(client)

    second = {vendor: f"second-{vendor.lower()}" for vendor in CASES}
    for vendor, name in second.items():
        pods.create(client, namespace, pod(name, CASES[vendor].limits))
    for name in second.values():
        refused = functools.partial(is_refused, client, namespace, name)
        wait_for(f"pod {name} to find no card", refused, REFUSED_S)
    for name in first.values():
        client.delete(pods_path(namespace, name))
    for vendor, name in second.items():
        await_end(client, namespace, name, vendor)
    await_no_locks(client)


def test_a_pod_with_two_vendors_gets_the_cards_of_both(
    client: Client, namespace: str, release: Release
) -> None:
    both = {**CASES["NVIDIA"].limits, **CASES["DCU"].limits}
    pods.create(client, namespace, pod("one-container", both))
    await_end(client, namespace, "one-container", "NVIDIA", "DCU")
    await_no_locks(client)
    client.delete(pods_path(namespace, "one-container"))
    two = (CASES["DCU"].limits, CASES["NVIDIA"].limits)
    pods.create(client, namespace, pod("two-containers", *two))
    found = await_end(client, namespace, "two-containers", "NVIDIA", "DCU")
    await_no_locks(client)
    kept = annotations_of(found)
    assert kept[ROWS["DCU"].annotations.allocated].endswith(":;;")
    assert kept[ROWS["NVIDIA"].annotations.allocated].startswith(";")
