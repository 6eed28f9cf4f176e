"""Registers of every vendor: a bad one costs that vendor's cards on that node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami.cluster.state import Cluster
from hami.vendors import table
from hami.wire import node_register
from tests import builders
from tests.builders import card, pod
from tests.unit.vendors import fleets
from tests.unit.vendors.fleets import container

NVIDIA = {"hami.io/node-nvidia-register": node_register.encode_json([card("GPU-a")])}
PROFILES = {"1g.8gb": "7"}


def drs(**changes: Any) -> dict[str, str]:
    register = {"devices": [{"index": "0", "capacity": 6}], "profiles": PROFILES, **changes}
    return {"enflame.com/gcu-drs-capacity": json.dumps(register)}


def amd(**changes: Any) -> dict[str, str]:
    cards = [{"id": "amd-0", "count": 1, "devmem": 1, "devcore": 1, "type": "AMD", **changes}]
    return {"hami.io/node-amd-register": json.dumps(cards)}


@pytest.mark.parametrize(
    ("resource", "annotations", "capacity", "want"),
    [
        (
            "hygon.com/dcunum",
            {"hami.io/node-dcu-register": "DCU-1,4"},
            {},
            "hami.io/node-dcu-register",
        ),
        ("hygon.com/dcunum", {"hami.io/node-dcu-register": "a,1,1,1,t,0,true,-1,m:"}, {}, "index"),
        ("iluvatar.ai/BI-V100-vgpu", {"hami.io/node-BI-V100-register": "a,1:"}, {}, "2 fields"),
        (
            "birentech.com/gpu",
            {"hami.io/node-biren-register": "{"},
            {},
            "hami.io/node-biren-register",
        ),
        ("amd.com/gpu", amd(id=""), {}, "is no card id"),
        ("amd.com/gpu", amd(type="AMD:MI210"), {}, "no device list can carry"),
        ("enflame.com/drs-gcu", drs(profiles={}), {}, "names no profile"),
        ("enflame.com/drs-gcu", drs(profiles={"big": "1"}), {}, "names no profile"),
        ("enflame.com/drs-gcu", drs(profiles={"1g.8gb,2g": "1"}), {}, "names no profile"),
        ("enflame.com/drs-gcu", drs(devices=[{"index": "0", "capacity": "x"}]), {}, "slices"),
        (
            "enflame.com/drs-gcu",
            drs(devices=[{"index": "0", "capacity": 1}] * 2),
            {},
            "there twice",
        ),
        ("enflame.com/drs-gcu", {"enflame.com/gcu-drs-capacity": "[]"}, {}, "does not decode"),
        ("cambricon.com/vmlu", {}, {"cambricon.com/mlu.smlu.vcore": "1.5"}, "whole number"),
        ("cambricon.com/vmlu", {}, {"cambricon.com/mlu.smlu.vcore": 10**6}, "more than the 256"),
        ("enflame.com/gcu", {}, {"enflame.com/gcu": -1}, "less than the smallest"),
        ("enflame.com/vgcu", {}, {"enflame.com/gcu-count": "many"}, "enflame.com/gcu-count"),
    ],
)
def test_a_malformed_register_is_named_and_other_vendors_cards_stay(
    resource: str, annotations: dict[str, str], capacity: dict[str, Any], want: str
) -> None:
    offered = {"nvidia.com/gpu": 10, resource: 10, **capacity}
    cluster = fleets.cluster_of(fleets.node("n", offered, **NVIDIA, **annotations))

    refused = fleets.ask(cluster, pod("p", container(**{resource: 1}))).explanation
    assert refused.failed_nodes() == {"n": "Device type not found"}
    assert want in refused.problems["n"]
    assert fleets.ask(cluster, pod("q", builders.container(gpu=1, memory=1))).winner is not None


ROW = """
[[vendor]]
name = "Acme"
section = "acme"
register_codec = "colon"
default_cores = 100
bounded_by_ids = false

[vendor.resources]
count = "acme.test/card"
memory = "acme.test/memory"

[vendor.annotations]
register = "acme.test/register"
lock = "hami.io/mutex.lock"
to_allocate = "hami.io/acme-devices-to-allocate"
allocated = "hami.io/acme-devices-allocated"
use_type = "acme.test/use-type"
"""


def test_a_vendor_of_data_alone_is_one_row() -> None:
    (acme,) = table.parse(ROW, source="rows.toml")
    cluster = Cluster((*table.built_in(), acme))
    register = {"acme.test/register": "x,4,1000,100,Acme One,0,true:y,4,1000,100,Acme Two,0,true:"}
    cluster.observe_node(fleets.node("n", {"nvidia.com/gpu": 10}, **register, **NVIDIA))
    asked = container(**{"acme.test/card": 1, "acme.test/memory": 600})
    two = {"acme.test/use-type": "two"}

    assert fleets.written(cluster, pod("p", asked, annotations=two)) == {
        "hami.io/acme-devices-to-allocate": "y,Acme,600,100:;",
        "hami.io/acme-devices-allocated": "y,Acme,600,100:;",
    }
    cluster.observe_pod(fleets.bound(cluster, "p", asked, annotations=two))
    assert fleets.held(cluster, "n")["y"] == (1, 600, 100)
    assert fleets.refusal(cluster, pod("q", asked, annotations=two)) == (
        "1/2 CardInsufficientMemory, 1/2 CardTypeMismatch"
    )


def test_two_rows_that_claim_one_resource_are_an_error_that_names_it() -> None:
    doubled = ROW + ROW.replace("Acme", "Other")
    with pytest.raises(table.TableError, match=r"'acme\.test/card' is written twice"):
        table.parse(doubled, source="rows.toml")


def test_cards_of_capacity_need_their_description() -> None:
    with pytest.raises(table.TableError, match=r"\[vendor\.capacity\]"):
        table.parse(ROW.replace('"colon"', '"capacity"'), source="rows.toml")


def test_a_pod_with_cards_of_two_vendors_gets_both_on_one_node() -> None:
    dcu = {"hami.io/node-dcu-register": "DCU-1,4,32768,100,DCU-Z100,0,true:"}
    cluster = fleets.cluster_of(
        fleets.node("both", {"nvidia.com/gpu": 10, "hygon.com/dcunum": 4}, **NVIDIA, **dcu),
        fleets.node("nvidia", {"nvidia.com/gpu": 10}, **NVIDIA),
        fleets.node("hygon", {"hygon.com/dcunum": 4}, **dcu),
    )
    mixed = (
        container("a", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
        container("b", **{"hygon.com/dcunum": 1, "hygon.com/dcumem": 100}),
    )

    placed = fleets.bound(cluster, "p", *mixed)
    assert placed.node_name == "both"
    assert placed.annotation("hami.io/vgpu-devices-allocated") == "GPU-a,NVIDIA,1000,0:;;"
    assert placed.annotation("hami.io/dcu-devices-allocated") == ";DCU-1,DCU,100,100:;"
    cluster.observe_pod(placed)
    assert fleets.held(cluster, "both") == {"GPU-a": (1, 1000, 0), "DCU-1": (1, 100, 100)}
    refused = fleets.ask(cluster, pod("q", *mixed)).explanation.failed_nodes()
    assert refused == {
        "both": "1/1 CardInsufficientCore",
        "nvidia": "Device type not found",
        "hygon": "Device type not found",
    }
    cluster.forget_pod("p")
    assert set(fleets.held(cluster, "both").values()) == {(0, 0, 0)}
