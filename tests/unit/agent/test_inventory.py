"""The cards that a node offers, and notes about those that it does not."""

from __future__ import annotations

from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from hami.agent.cards import inventory
from hami.agent.cards.inventory import CardInventory
from hami.agent.cards.node_config import NodeConfig
from hami.node.nvml_cards import Card, Problem
from hami.vendors import table
from hami.vendors.device_config import NvidiaSettings
from hami.wire import node_register
from tests.unit.agent.node_cards import GIB, card, cut, part, uuid

NVIDIA = table.nvidia(table.built_in())


def build(*cards: Card, ill: frozenset[str] = frozenset(), **changes: Any) -> CardInventory:
    names = NvidiaSettings.__struct_fields__
    nvidia = {key: changes.pop(key) for key in list(changes) if key in names}
    config = NodeConfig(nvidia=NvidiaSettings(**nvidia), **changes)
    return inventory.build(cards, (), config, lambda uuid: uuid not in ill)


def test_two_cards_make_the_bytes_that_hami_writes() -> None:
    first = card(0, uuid="GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448")
    second = card(1, uuid="GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec", numa=1)
    offered = build(second, first)
    assert offered.register() == (
        '[{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","count":10,"devmem":40960,'
        '"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true},'
        '{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","index":1,"count":10,"devmem":40960,'
        '"devcore":100,"type":"NVIDIA A100-SXM4-40GB","numa":1,"mode":"hami-core","health":true}]'
    )
    assert offered.notes == ()
    assert offered.static_mig == {}


def test_an_unknown_numa_node_is_zero_for_hami_and_unknown_for_kubelet() -> None:
    offered = build(card(0, numa=None), card(1, numa=1), cut(2, 1), mig_strategy="single")
    assert [device.numa for device in offered.devices] == [0, 1, 0]
    assert offered.numa == {uuid(1): 1, uuid(201, "MIG"): 0}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA-SMI", "NVIDIA-SMI"),
        ("Tesla P4", "NVIDIA-Tesla P4"),
        ("nvidia a10", "NVIDIA-nvidia a10"),
    ],
)
def test_the_type_begins_with_nvidia(name: str, kind: str) -> None:
    assert build(card(0, name=name)).devices[0].type == kind


def test_scaled_amounts_are_cut_off() -> None:
    (device,) = build(
        card(0, memory=23028 * 1024**2 + 999),
        device_memory_scaling=1.3,
        device_core_scaling=0.29,
        device_split_count=3,
        operating_mode="mps",
    ).devices
    assert device.devmem == 29936  # of 29936.4
    assert device.devcore == 28  # of 28.999…
    assert (device.count, device.mode) == (3, "mps")


def test_an_ill_card_stays_registered_as_ill() -> None:
    offered = build(card(0), card(1), ill=frozenset([uuid(0)]))
    assert [device.health for device in offered.devices] == [False, True]


def test_a_card_of_unknown_memory_is_offered_with_the_amount_that_is_set() -> None:
    (device,) = build(
        card(0, memory=0), pre_configured_device_memory=8000, device_memory_scaling=1.5
    ).devices
    assert device.devmem == 12000


def test_the_set_amount_is_for_cards_of_unknown_memory_only() -> None:
    (device,) = build(card(0), pre_configured_device_memory=8000).devices
    assert device.devmem == 40960


def test_a_card_of_unknown_memory_is_left_out_with_a_note() -> None:
    offered = build(card(0, memory=0), card(1))
    assert [device.id for device in offered.devices] == [uuid(1)]
    (note,) = offered.notes
    assert note.startswith(f"GPU 0 ({uuid(0)}): ")
    assert "preconfigureddevicememory" in note


def test_filtered_cards_are_not_there_at_all() -> None:
    cards = [card(0), card(1), card(2), cut(3, 7, 8)]
    for strategy in ("single", "mixed"):
        offered = build(
            *cards,
            mig_strategy=strategy,
            filter_uuids=frozenset([uuid(1)]),
            filter_indexes=frozenset([2, 3]),
        )
        assert [device.id for device in offered.devices] == [uuid(0)]
        assert (offered.static_mig, offered.notes) == ({}, ())


@pytest.mark.parametrize("strategy", ["single", "mixed"])
@pytest.mark.parametrize(
    "filtered",
    [
        {"filter_uuids": frozenset([uuid(7, "MIG")])},
        {"filter_indexes": frozenset([10700])},
    ],
    ids=["uuid", "index"],
)
def test_a_mig_device_can_be_filtered(strategy: str, filtered: dict[str, Any]) -> None:
    offered = build(cut(0, 7, 8), mig_strategy=strategy, **filtered)
    left = [device.id for device in offered.devices] or [
        found.uuid for parts in offered.static_mig.values() for found in parts
    ]
    assert left == [uuid(8, "MIG")]


def test_the_drivers_problems_are_noted() -> None:
    problem = Problem(subject="GPU 3", rule="does not answer", remedy="reset it")
    offered = inventory.build([card(0)], [problem], NodeConfig(), lambda _: True)
    assert offered.notes == ("GPU 3: does not answer; reset it",)
    assert len(offered.devices) == 1


def test_a_split_count_of_zero_offers_nothing_and_says_so() -> None:
    offered = build(card(0), device_split_count=0)
    assert offered.devices == ()
    assert offered.register() == "[]"
    assert any("devicesplitcount is 0" in note for note in offered.notes)


def test_a_card_that_cannot_be_registered_does_not_hurt_the_others() -> None:
    bad = [card(1, uuid=""), card(2, uuid="GPU,2"), card(3, uuid=uuid(0)), card(4, name="x" * 300)]
    offered = build(card(0), *bad, card(5))
    assert [device.index for device in offered.devices] == [0, 5]
    assert node_register.decode_json(offered.register()) == offered.devices
    assert len(offered.notes) == 4
    assert all(f"GPU {n} is not offered" in note for n, note in enumerate(offered.notes, start=1))


# MIG.


def test_without_a_strategy_a_card_with_mig_is_left_out() -> None:
    offered = build(cut(0, 7, 8), card(1))
    assert [device.id for device in offered.devices] == [uuid(1)]
    assert offered.static_mig == {}
    (note,) = offered.notes
    assert "MIG is on" in note
    assert "single or mixed" in note
    assert "nvidia-smi -i 0 -mig 0" in note


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_a_card_with_mig_and_no_mig_device_is_noted(strategy: str) -> None:
    offered = build(cut(0), mig_strategy=strategy)
    assert (offered.devices, offered.static_mig) == ((), {})
    (note,) = offered.notes
    assert "it has no MIG device" in note


def test_single_registers_mig_devices_as_cards() -> None:
    whole = cut(1, 8, 7)
    offered = build(
        whole,
        mig_strategy="single",
        device_split_count=4,
        device_memory_scaling=2,
        device_core_scaling=2,
    )
    first, second = offered.devices
    assert first == node_register.RegisteredCard(
        id=whole.mig[1].uuid,
        index=20700,
        count=4,
        devmem=4864,  # the hardware keeps them apart: nothing to scale
        devcore=100,
        type="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        mode="hami-core",
        health=True,
    )
    assert (second.id, second.index) == (whole.mig[0].uuid, 20800)
    assert offered.notes == ()


def test_single_mig_devices_are_as_healthy_as_their_card() -> None:
    offered = build(cut(0, 7), cut(1, 7), mig_strategy="single", ill=frozenset([uuid(0)]))
    assert [device.health for device in offered.devices] == [False, True]


def test_single_says_where_things_are_not_alike() -> None:
    whole = card(0)
    parts = part(whole, 1, "2g.10gb"), part(whole, 2, "1g.5gb")
    offered = build(card(0, mig_enabled=True, mig=parts), card(1), mig_strategy="single")
    assert len(offered.devices) == 3
    profiles, beside = offered.notes
    assert "1g.5gb, 2g.10gb" in profiles
    assert beside.startswith(f"GPU 1 ({uuid(1)}): is offered whole beside MIG devices")


def test_single_has_nothing_to_say_where_no_card_is_cut() -> None:
    assert build(card(0), card(1), mig_strategy="single").notes == ()


def test_a_mig_device_of_unknown_memory_is_left_out_with_a_note() -> None:
    whole = card(0)
    parts = part(whole, 1, memory=0), part(whole, 2)
    offered = build(card(0, mig_enabled=True, mig=parts), mig_strategy="single")
    assert [device.id for device in offered.devices] == [parts[1].uuid]
    assert parts[0].uuid in offered.notes[0]


def test_the_index_of_a_mig_device_stays_when_others_go() -> None:
    many = build(card(0), cut(1, 7, 8, 9), cut(2, 7), mig_strategy="single")
    few = build(cut(1, 9), cut(2, 7), mig_strategy="single")
    before = {device.id: device.index for device in many.devices}
    assert {device.id: before[device.id] for device in few.devices} == {
        device.id: device.index for device in few.devices
    }


def test_mixed_offers_each_profile_as_a_resource() -> None:
    whole = card(0)
    parts = part(whole, 9), part(whole, 1, "3g.20gb"), part(whole, 7)
    offered = build(card(0, mig_enabled=True, mig=parts), card(1), mig_strategy="mixed")
    assert offered.static_mig == {
        "nvidia.com/mig-1g.5gb": (parts[2], parts[0]),
        "nvidia.com/mig-3g.20gb": (parts[1],),
    }
    assert [device.id for device in offered.devices] == [uuid(1)]
    assert offered.notes == ()


def test_mixed_leaves_out_what_no_resource_can_be_named_after() -> None:
    whole = card(0)
    parts = part(whole, 9), part(whole, 1, "1g.5gb+me")
    offered = build(card(0, mig_enabled=True, mig=parts), mig_strategy="mixed")
    assert list(offered.static_mig) == ["nvidia.com/mig-1g.5gb"]
    assert "1g.5gb+me" in offered.notes[0]


# Sums.


def test_shares_are_the_sums_of_healthy_cards() -> None:
    offered = build(card(0), card(1, memory=10 * GIB), card(2), ill=frozenset([uuid(2)]))
    assert offered.shares(NVIDIA) == {"nvidia.com/gpumem": 51200, "nvidia.com/gpucores": 200}


def test_shares_are_in_the_units_and_under_the_names_of_the_vendor() -> None:
    names = msgspec.structs.replace(NVIDIA.resources, memory="example.com/mem", cores="")
    vendor = msgspec.structs.replace(NVIDIA, resources=names, memory_factor=1000)
    assert build(card(0)).shares(vendor) == {"example.com/mem": 40}


@hypothesis.given(
    st.lists(
        st.builds(
            card,
            st.integers(0, 20),
            uuid=st.text(max_size=4),
            name=st.text(max_size=5),
            memory=st.integers(0, 2**40),
            mig_enabled=st.booleans(),
            mig=st.lists(
                st.builds(
                    part,
                    st.just(card(0)),
                    st.integers(0, 20),
                    uuid=st.text(max_size=3),
                    profile=st.sampled_from(["1g.5gb", "2g.10gb", "odd"]),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=5,
    ),
    st.sampled_from(["none", "single", "mixed"]),
    st.randoms(),
)
def test_whatever_the_driver_lists_can_be_written_and_has_one_order(
    cards: list[Card], strategy: str, random: Any
) -> None:
    offered = build(*cards, mig_strategy=strategy)
    assert node_register.decode_json(offered.register()) == offered.devices
    indexes = [device.index for device in offered.devices]
    assert indexes == sorted(indexes)
    unique = len({(c.index, c.uuid) for c in cards}) == len(cards)
    hypothesis.assume(
        unique and len({c.uuid for c in cards}) == len(cards) and strategy != "single"
    )
    random.shuffle(cards)
    assert build(*cards, mig_strategy=strategy).register() == offered.register()
