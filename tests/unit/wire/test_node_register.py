"""Register annotations in both formats, byte for byte, and refused ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, node_register

TWO_A100 = (
    '[{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","count":10,"devmem":40960,"devcore":100,'
    '"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true},'
    '{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","index":1,"count":10,"devmem":40960,'
    '"devcore":100,"type":"NVIDIA A100-SXM4-40GB","numa":1,"mode":"hami-core","health":true}]'
)
MIG_PROFILE = (
    '{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":6,"size":1}]}'
)
P4 = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4,10,7680,100,NVIDIA-Tesla P4,0,true,1,hami-core:"


class TestJson:
    def test_the_documented_annotation_is_read_and_written_byte_for_byte(self) -> None:
        devices = node_register.decode_json(TWO_A100)
        assert devices[1] == node_register.RegisteredCard(
            id="GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec",
            index=1,
            count=10,
            devmem=40960,
            devcore=100,
            type="NVIDIA A100-SXM4-40GB",
            numa=1,
            mode="hami-core",
            health=True,
        )
        assert (devices[0].index, devices[0].numa) == (0, 0)
        assert node_register.encode_json(devices) == TWO_A100

    def test_a_mig_card_is_read_and_written_byte_for_byte(self) -> None:
        text = f'[{{"id":"GPU-a","mode":"mig","migProfiles":[{MIG_PROFILE}],"health":true}}]'
        (device,) = node_register.decode_json(text)
        assert device.mig_profiles == (
            node_register.MigProfile(
                name="1g.5gb",
                memory=4864,
                core=15,
                slice_count=1,
                placements=(node_register.MigPlacement(start=6, size=1),),
            ),
        )
        assert node_register.encode_json([device]) == text

    def test_a_mig_placement_keeps_its_zero(self) -> None:
        profile = node_register.MigProfile(placements=(node_register.MigPlacement(0, 2),))
        text = node_register.encode_json(
            [node_register.RegisteredCard(id="g", mig_profiles=(profile,))]
        )
        assert '"placements":[{"start":0,"size":2}]' in text
        assert '{"name":"","memoryMB":0,"core":0,"sliceCount":0,' in text

    def test_every_field_is_in_hamis_order(self) -> None:
        device = node_register.RegisteredCard(
            id="i",
            index=1,
            count=2,
            devmem=3,
            devcore=4,
            type="t",
            numa=5,
            mode="m",
            mig_profiles=(node_register.MigProfile(),),
            health=True,
            devicevendor="v",
            custominfo={"b": 1, "a": "x"},
        )
        assert node_register.encode_json([device]) == (
            '[{"id":"i","index":1,"count":2,"devmem":3,"devcore":4,"type":"t","numa":5,"mode":"m",'
            '"migProfiles":[{"name":"","memoryMB":0,"core":0,"sliceCount":0,"placements":[]}],'
            '"health":true,"devicevendor":"v","custominfo":{"a":"x","b":1}}]'
        )

    def test_text_is_escaped_as_go_escapes_it(self) -> None:
        text = node_register.encode_json(
            [node_register.RegisteredCard(id="g", type='<a&b>\u2028"ü\n')]
        )
        assert text == '[{"id":"g","type":"\\u003ca\\u0026b\\u003e\\u2028\\"ü\\n"}]'
        assert node_register.decode_json(text)[0].type == '<a&b>\u2028"ü\n'

    def test_an_empty_list_is_a_node_without_cards(self) -> None:
        assert node_register.decode_json("[]") == ()
        assert node_register.encode_json([]) == "[]"

    def test_a_trailing_line_break_is_accepted(self) -> None:
        assert node_register.decode_json(TWO_A100 + "\n") == node_register.decode_json(TWO_A100)

    def test_missing_and_null_fields_are_zero(self) -> None:
        nulls = ",".join(
            f'"{key}":null'
            for key in (
                *("index", "count", "devmem", "devcore", "type", "numa", "mode", "migProfiles"),
                *("health", "devicevendor", "custominfo"),
            )
        )
        want = (node_register.RegisteredCard(id="GPU-a"),)
        assert node_register.decode_json('[{"id":"GPU-a"}]') == want
        assert node_register.decode_json(f'[{{"id":"GPU-a",{nulls}}}]') == want
        assert want[0].health is False

    def test_null_within_mig_profiles_is_zero(self) -> None:
        (device,) = node_register.decode_json(
            '[{"id":"a","migProfiles":[null,{"name":null,"placements":[null,{"start":null}]}]}]'
        )
        empty = node_register.MigPlacement()
        assert device.mig_profiles == (
            node_register.MigProfile(),
            node_register.MigProfile(placements=(empty, empty)),
        )

    def test_unknown_fields_are_skipped(self) -> None:
        text = '[{"id":"a","migtemplate":[{"x":[1]}],"new":{"deep":[[]]}}]'
        assert node_register.decode_json(text) == (node_register.RegisteredCard(id="a"),)

    def test_a_negative_numa_node_means_unknown_and_is_kept(self) -> None:
        assert node_register.decode_json('[{"id":"a","numa":-1}]')[0].numa == -1

    REJECTED = {  # noqa: RUF012  a table, read once
        "empty text": ("", "does not decode"),
        "no JSON": ("GPU-a,10,7680", "does not decode"),
        "the other format": (P4, "does not decode"),
        "null": ("null", "does not decode"),
        "an object": ('{"id":"GPU-a"}', "does not decode"),
        "two documents": ("[][]", "does not decode"),
        "cut": (TWO_A100[:-1], "does not decode"),
        "null card": ("[null]", "must have one"),
        "no id": ('[{"count":1}]', "must have one"),
        "empty id": ('[{"id":""}]', "must have one"),
        "same id twice": ('[{"id":"GPU-a"},{"id":"GPU-a"}]', "'GPU-a' is there twice"),
        "id with comma": ('[{"id":"GPU,a"}]', "no pod can be given it"),
        "negative count": ('[{"id":"GPU-a","count":-1}]', "card 'GPU-a', count: -1 is negative"),
        "negative memory": ('[{"id":"GPU-a","devmem":-1}]', "card 'GPU-a', devmem: -1"),
        "negative cores": ('[{"id":"GPU-a","devcore":-1}]', "card 'GPU-a', devcore: -1"),
        "negative index": ('[{"id":"GPU-a","index":-1}]', "card 'GPU-a', index: -1"),
        "count of 33 bits": ('[{"id":"GPU-a","count":2147483648}]', "count: 2147483648 .* 32 bits"),
        "memory of 70 bits": ('[{"id":"GPU-a","devmem":999999999999999999999}]', "32 bits"),
        "numa of 17 bits": ('[{"id":"GPU-a","numa":32768}]', "card 'GPU-a', numa: 32768"),
        "numa below": ('[{"id":"GPU-a","numa":-32769}]', "16 bits"),
        "fractional count": ('[{"id":"GPU-a","count":1.5}]', "does not decode"),
        "count as text": ('[{"id":"GPU-a","count":"1"}]', "does not decode"),
        "health as text": ('[{"id":"GPU-a","health":"true"}]', "does not decode"),
        "negative MIG start": (
            '[{"id":"GPU-a","migProfiles":[{"name":"1g","placements":[{"start":-1}]}]}]',
            "card 'GPU-a', MIG profile '1g', start: -1 is negative",
        ),
        "MIG memory of 33 bits": (
            '[{"id":"GPU-a","migProfiles":[{"name":"1g","memoryMB":2147483648}]}]',
            "memoryMB: 2147483648 .* 32 bits",
        ),
    }

    @pytest.mark.parametrize(("text", "rule"), REJECTED.values(), ids=REJECTED)
    def test_one_bad_card_rejects_the_annotation(self, text: str, rule: str) -> None:
        with pytest.raises(errors.WireError, match=rule) as caught:
            node_register.decode_json(text, what="node n1")
        assert str(caught.value).startswith("node n1")

    def test_a_megabyte_of_id_makes_no_megabyte_of_message(self) -> None:
        with pytest.raises(errors.WireError) as caught:
            node_register.decode_json(f'[{{"id":"{"x" * 1_000_000}","count":-1}}]')
        assert len(str(caught.value)) < 400


class TestColon:
    def test_the_documented_annotation_is_read_and_written_byte_for_byte(self) -> None:
        (device,) = node_register.decode_colon(P4)
        assert device == node_register.RegisteredCard(
            id="GPU-ebe7c3f7-303d-558d-435e-99a160631fe4",
            index=1,
            count=10,
            devmem=7680,
            devcore=100,
            type="NVIDIA-Tesla P4",
            mode="hami-core",
            health=True,
        )
        assert node_register.encode_colon([device]) == P4

    def test_seven_fields_mean_index_zero_and_mode_hami_core(self) -> None:
        (device,) = node_register.decode_colon("DCU-0,4,16384,100,DCU-Z100,1,false:")
        assert device == node_register.RegisteredCard(
            id="DCU-0",
            count=4,
            devmem=16384,
            devcore=100,
            type="DCU-Z100",
            numa=1,
            mode="hami-core",
        )
        assert node_register.encode_colon([device]) == (
            "DCU-0,4,16384,100,DCU-Z100,1,false,0,hami-core:"
        )

    def test_cards_of_old_and_new_writers_stand_side_by_side(self) -> None:
        devices = node_register.decode_colon("a,1,2,3,t,0,T:b,1,2,3,t,0,0,7,mig:")
        assert [(d.id, d.index, d.mode, d.health) for d in devices] == [
            ("a", 0, "hami-core", True),
            ("b", 7, "mig", False),
        ]

    @pytest.mark.parametrize("text", [":", ":::"])
    def test_only_terminators_are_a_node_without_cards(self, text: str) -> None:
        assert node_register.decode_colon(text) == ()

    def test_the_last_terminator_may_be_missing_if_there_is_another(self) -> None:
        assert len(node_register.decode_colon(":a,1,2,3,t,0,true")) == 1

    REJECTED = {  # noqa: RUF012  a table, read once
        "empty": ("", "no colon"),
        "no terminator": ("a,1,2,3,t,0,true", "no colon"),
        "no separator": ("GPU-a:", "1 fields"),
        "line break after the end": ("a,1,2,3,t,0,true:\n", "1 fields"),
        "empty fields": (",,,,,,:", "count"),
        "six fields": ("a,1,2,3,t,0:", "6 fields"),
        "eight fields": ("a,1,2,3,t,0,true,1:", "8 fields"),
        "ten fields": ("a,1,2,3,t,0,true,1,m,x:", "10 fields"),
        "bad count": ("a,x,2,3,t,0,true:", "card 'a', count: 'x'"),
        "bad memory": ("a,1,x,3,t,0,true:", "memory"),
        "bad cores": ("a,1,2,x,t,0,true:", "cores"),
        "bad numa": ("a,1,2,3,t,x,true:", "numa"),
        "bad health": ("a,1,2,3,t,0,yes:", "health: 'yes' is not a boolean"),
        "bad index": ("a,1,2,3,t,0,true,x,m:", "index"),
        "negative index": ("a,1,2,3,t,0,true,-1,m:", "index: -1 is negative"),
        "negative count": ("a,-1,2,3,t,0,true:", "count: -1 is negative"),
        "33 bits": ("a,2147483648,2,3,t,0,true:", "32 bits"),
        "numa of 17 bits": ("a,1,2,3,t,32768,true:", "16 bits"),
        "spaces": ("a, 1,2,3,t,0,true:", "whole number"),
        "empty id": (",1,2,3,t,0,true:", "must have one"),
        "same id twice": ("a,1,2,3,t,0,true:a,1,2,3,t,0,true:", "twice"),
        "second card bad": ("a,1,2,3,t,0,true:b,1,2,3,t,0,maybe:", "card 'b'"),
        "endless number": (f"a,{'1' * 5000},2,3,t,0,true:", "whole number"),
    }

    @pytest.mark.parametrize(("text", "rule"), REJECTED.values(), ids=REJECTED)
    def test_one_bad_card_rejects_the_annotation(self, text: str, rule: str) -> None:
        with pytest.raises(errors.WireError, match=rule):
            node_register.decode_colon(text)

    @pytest.mark.parametrize("field", ["id", "type", "mode"])
    @pytest.mark.parametrize("character", [",", ":"])
    def test_a_separator_inside_a_field_cannot_be_written(self, field: str, character: str) -> None:
        values: dict[str, Any] = {"id": "GPU-a", field: f"x{character}y"}
        with pytest.raises(errors.WireError, match="holds one of , : ;"):
            node_register.encode_colon([node_register.RegisteredCard(**values)])


UNWRITABLE: dict[str, tuple[list[node_register.RegisteredCard], str]] = {
    "empty id": ([node_register.RegisteredCard()], "must have one"),
    "same id twice": (
        [node_register.RegisteredCard(id="a"), node_register.RegisteredCard(id="a")],
        "twice",
    ),
    "separator": ([node_register.RegisteredCard(id="a;b")], "no pod can be given it"),
    "negative": (
        [node_register.RegisteredCard(id="a", devmem=-1)],
        "card 'a', devmem: -1 is negative",
    ),
    "33 bits": ([node_register.RegisteredCard(id="a", count=2**31)], "count: .* 32 bits"),
    "numa": ([node_register.RegisteredCard(id="a", numa=2**15)], "numa: 32768 is outside 16 bits"),
    "long type": ([node_register.RegisteredCard(id="a", type="t" * 257)], "257 characters"),
    "MIG profile": (
        [
            node_register.RegisteredCard(
                id="a", mig_profiles=(node_register.MigProfile("1g", core=-1),)
            )
        ],
        "card 'a', MIG profile '1g', core: -1 is negative",
    ),
}


@pytest.mark.parametrize(("devices", "rule"), UNWRITABLE.values(), ids=UNWRITABLE)
@pytest.mark.parametrize("encode", [node_register.encode_json, node_register.encode_colon])
def test_what_could_not_be_read_back_is_not_written(
    encode: Callable[[list[node_register.RegisteredCard]], str],
    devices: list[node_register.RegisteredCard],
    rule: str,
) -> None:
    with pytest.raises(errors.WireError, match=rule):
        encode(devices)


@pytest.mark.parametrize("field", ["id", "type", "mode"])
def test_a_text_of_more_than_256_characters_is_refused(field: str) -> None:
    card = {"id": "GPU-a", field: "x" * 256}
    assert len(node_register.decode_json(json.dumps([card]))) == 1
    card[field] += "x"
    with pytest.raises(errors.WireError, match=f", {field}: .* has 257 characters, at most 256"):
        node_register.decode_json(json.dumps([card]))


def _devices(text: st.SearchStrategy[str], **more: st.SearchStrategy[Any]) -> Any:
    int32 = st.integers(0, 2**31 - 1)
    ids = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=",:;"), min_size=1, max_size=8
    )
    device = st.builds(
        node_register.RegisteredCard,
        id=ids,
        index=int32,
        count=int32,
        devmem=int32,
        devcore=int32,
        type=text,
        numa=st.integers(-(2**15), 2**15 - 1),
        mode=text,
        health=st.booleans(),
        **more,
    )
    return st.lists(device, max_size=4, unique_by=lambda d: d.id)


_INT32 = st.integers(0, 2**31 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_PROFILES = st.lists(
    st.builds(
        node_register.MigProfile,
        name=_TEXT,
        memory=_INT32,
        core=_INT32,
        slice_count=_INT32,
        placements=st.lists(
            st.builds(node_register.MigPlacement, start=_INT32, size=_INT32), max_size=2
        ).map(tuple),
    ),
    max_size=2,
).map(tuple)


@settings(deadline=None)
@given(
    _devices(
        _TEXT,
        mig_profiles=_PROFILES,
        devicevendor=_TEXT,
        custominfo=st.dictionaries(_TEXT, _INT32 | _TEXT | st.booleans() | st.none(), max_size=2),
    )
)
def test_any_cards_survive_the_json_format(devices: list[node_register.RegisteredCard]) -> None:
    text = node_register.encode_json(devices)
    assert node_register.decode_json(text) == tuple(devices)
    assert node_register.encode_json(node_register.decode_json(text)) == text


@settings(deadline=None)
@given(
    _devices(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",:;"), max_size=8)
    )
)
def test_any_cards_survive_the_colon_format(devices: list[node_register.RegisteredCard]) -> None:
    assert node_register.decode_colon(node_register.encode_colon(devices)) == tuple(devices)
