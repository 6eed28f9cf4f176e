"""Families: reading, sizing, refusing, choosing and recording cards."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

import hami.cluster
import hami.placement
from hami.cluster.state import Cluster
from hami.vendors import config_sections, families, table
from hami.vendors.family import Amount, CardRequest, ChosenShare, Grant, OneCard, Plain, Reason
from hami.vendors.nvidia import Nvidia
from hami.wire import errors, node_register
from hami.wire.shares import Share
from tests import builders
from tests.builders import NVIDIA, card, container, node, pod

NO_GRANT = Grant((), {}, 0.0)
PLAIN = Plain(msgspec.structs.replace(NVIDIA, family=""))


class Columns:
    """Two equal cards as columns."""

    memory = np.array([8001, 8001])
    cores = np.array([100, 100])

    def by_mode(self, number: Callable[[str], int]) -> Any:
        return np.array([number(""), number("")])


class Modes:
    """Cards of which only the mode is known."""

    def __init__(self, *modes: str) -> None:
        self._modes = modes

    def in_mode(self, mode: str) -> list[bool] | None:
        return [each == mode for each in self._modes] if mode in self._modes else None

    def where_mode(self, accepts: Callable[[str], bool]) -> list[bool]:
        return [accepts(mode) for mode in self._modes]

    def lacks_slots(self, slots: Callable[[str], int]) -> list[bool]:
        return [slots(mode) > 1 for mode in self._modes]


def asked(memory: int = 0, percentage: int = 0, cores: int = 0) -> CardRequest:
    return CardRequest("NVIDIA", 1, memory, percentage, cores)


def test_every_built_in_vendor_has_its_family() -> None:
    found = {vendor.name: type(families.of(vendor)) for vendor in table.built_in()}
    assert found["NVIDIA"] is Nvidia
    assert {vendor.family for vendor in table.built_in()} <= families.FAMILIES.keys()


def test_a_vendor_without_a_family_is_plain() -> None:
    assert type(families.of(PLAIN.vendor)) is Plain


def test_cards_are_read_from_the_register_annotation_sorted_by_index_and_id() -> None:
    there = node("n", [card("c", index=1), card("b"), card("a", index=1)])
    assert [each.id for each in PLAIN.read_cards(there)] == ["b", "a", "c"]
    assert PLAIN.read_cards(node("n", "")) == ()
    with pytest.raises(errors.WireError, match=r"node n, hami\.io/node-nvidia-register"):
        PLAIN.read_cards(node("n", "cards"))


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        pytest.param(asked(memory=7, cores=30), Amount(7, 30), id="MiB as they are"),
        pytest.param(asked(percentage=50), Amount(4000, 0), id="a percentage rounded down"),
        pytest.param(asked(percentage=100), Amount(8001, 0), id="the whole card"),
    ],
)
def test_an_amount_is_the_same_for_one_card_and_for_a_column(
    request_: CardRequest, want: Amount[int]
) -> None:
    assert PLAIN.amounts(request_, OneCard(card("a", devmem=8001))) == want
    column = PLAIN.amounts(request_, Columns())
    assert np.array_equal(np.broadcast_to(column.memory, 2), [want.memory] * 2)
    assert column.cores == want.cores


def test_only_nvidia_refuses_cards_in_mig_mode() -> None:
    cards = Modes("hami-core", "mig")
    infeasible = Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
    assert Nvidia(NVIDIA).refuse(asked(), cards) == {infeasible: [False, True]}
    assert Nvidia(NVIDIA).refuse(asked(), Modes("hami-core", "")) == {}
    assert PLAIN.refuse(asked(), cards) == {}


def test_every_card_that_the_policy_took_is_shared() -> None:
    cards = [card("a", devmem=8000), card("b", devmem=4000)]
    assert PLAIN.choose(asked(percentage=25, cores=10), cards) == (
        ChosenShare("a", Amount(2000, 10), "NVIDIA"),
        ChosenShare("b", Amount(1000, 10), "NVIDIA"),
    )


def test_shares_are_recorded_for_the_plugin_and_for_good() -> None:
    devices = "a,NVIDIA,2000,10:;;"
    assert PLAIN.record(((Share("a", "NVIDIA", 2000, 10),), ()), NO_GRANT) == {
        "hami.io/vgpu-devices-to-allocate": devices,
        "hami.io/vgpu-devices-allocated": devices,
    }


def test_a_vendor_without_a_to_allocate_key_writes_no_empty_annotation() -> None:
    keys = msgspec.structs.replace(NVIDIA.annotations, to_allocate="")
    kept = Plain(msgspec.structs.replace(NVIDIA, family="", annotations=keys))
    assert kept.record(((Share("a", "NVIDIA", 2000, 10),),), NO_GRANT) == {
        "hami.io/vgpu-devices-allocated": "a,NVIDIA,2000,10:;",
    }


class TwoReasons(Plain):
    """Refuses the first two cards for one reason, the middle two for another."""

    def refuse(self, request: CardRequest, state: Any) -> Mapping[Reason, Any]:
        columns = np.broadcast_to(np.arange(state.used.shape[0])[:, None], state.used.shape)
        return {
            Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE: columns < 2,
            Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: (columns >= 1) & (columns < 3),
        }


def test_of_a_familys_own_reasons_the_first_is_reported_after_those_of_all_vendors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(families.FAMILIES, "two", TwoReasons)
    cluster = Cluster((msgspec.structs.replace(NVIDIA, family="two"),))
    cluster.observe_node(
        node("n", [card("a", health=False), *(card(name) for name in ("b", "c", "d"))])
    )
    refused = builders.ask(cluster, pod("p", container(gpu=2, memory=1))).explanation
    assert refused.failed_nodes() == {
        "n": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardMigTopologyInfeasible, "
        "1/4 CardNotFoundCustomFilterRule, 1/4 CardNotHealth"
    }
    found = builders.ask(cluster, pod("p", container(gpu=1, memory=1)))
    assert builders.winner(found) == ("n", [["d"]])


def test_reasons_of_a_later_container_are_those_of_its_own_vendor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The family of the first container's vendor refuses nothing, that of the second's does."""
    monkeypatch.setitem(families.FAMILIES, "two", TwoReasons)
    acme = msgspec.structs.replace(
        NVIDIA,
        name="ACME",
        section="acme",
        family="two",
        resources=table.ResourceNames(count="acme.test/card"),
        annotations=table.AnnotationKeys(register="acme.test/register"),
        bounded_by_ids=False,
    )
    cluster = Cluster((NVIDIA, acme))
    cards = [card("a"), card("b")]
    register = node_register.encode_json(cards)
    cluster.observe_node(node("n", cards, **{"acme.test/register": register}))
    second = {"name": "second", "resources": {"limits": {"acme.test/card": 1}}}
    refused = builders.ask(cluster, pod("p", container("first", gpu=1, memory=1), second))
    assert refused.explanation.failed_nodes() == {"n": "2/2 CardNotFoundCustomFilterRule"}


@pytest.mark.parametrize("package", [hami.cluster, hami.placement])
def test_no_core_module_names_a_vendor(package: types.ModuleType) -> None:
    names = {
        name.lower() for vendor in table.built_in() for name in (vendor.name, vendor.section)
    } | set(config_sections.NAMES)
    sources = list(pathlib.Path(package.__path__[0]).glob("*.py"))
    assert len(sources) > 4
    for source in sources:
        text = source.read_text().lower()
        assert [name for name in names if name in text] == [], source.name
