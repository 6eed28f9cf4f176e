"""The text that a signature of form v3 covers has one reading."""

from __future__ import annotations

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.wire import annotation_keys, codec, errors, grant, objects

NVIDIA = annotation_keys.SIGNED_DEVICES
OTHER = "hami.io/other-devices-allocated"
SLICE = {
    "containerIndex": 0,
    "deviceIndex": 1,
    "gpuUUID": "GPU-1",
    "profile": "1g.10gb",
    "placement": {"start": 2, "size": 1},
}
SECOND = {**SLICE, "deviceIndex": 0, "placement": {"start": 4, "size": 1}}
INSTANCE = {"migUUID": "MIG-1", "gpuInstanceID": 3, "computeInstanceID": 0}


def pod(**annotations: str) -> objects.Pod:
    body = {"metadata": {"uid": "u", "annotations": annotations}, "spec": {"nodeName": "n"}}
    return codec.decode(json.dumps(body).encode(), objects.Pod, what="pod")


def of(**annotations: str) -> grant.Grant:
    return grant.of_pod(pod(**annotations), "n", (OTHER, NVIDIA))


def test_the_text_of_a_grant() -> None:
    found = of(**{NVIDIA: "GPU-1,NVIDIA,1,0:;", OTHER: "é"})
    assert found.text() == (
        b"5:grant,1:u,1:n,0:,31:hami.io/other-devices-allocated,2:\xc3\xa9,"
        b"30:hami.io/vgpu-devices-allocated,18:GPU-1,NVIDIA,1,0:;,"
    )
    assert found.text_v1() is None
    assert of(**{NVIDIA: "GPU-1,NVIDIA,1,0:;"}).text_v1() == "GPU-1,NVIDIA,1,0:;"


def test_the_text_of_an_order() -> None:
    order = grant.Resize(uid="u", node="n", seq=7, devices="d")
    assert order.text() == b"6:resize,1:u,1:n,1:7,1:d,"
    assert order.text_v1() is None


def test_an_order_without_a_number_is_of_form_v1() -> None:
    order = grant.Resize(uid="u", node="n", devices="d")
    assert order.text_v1() == "resize\nd"
    with pytest.raises(errors.WireError, match="has no sequence number"):
        order.text()


def test_placements_are_covered_and_the_instance_that_is_made_from_one_is_not() -> None:
    bare, made = json.dumps([SLICE, SECOND]), json.dumps([SECOND, {**SLICE, **INSTANCE}])
    moved = json.dumps([{**SLICE, "placement": {"start": 3, "size": 1}}, SECOND])
    key = annotation_keys.MIG_ALLOCATIONS
    granted = of(**{NVIDIA: "d", key: bare}).text()
    assert of(**{NVIDIA: "d", key: made}).text() == granted
    assert of(**{NVIDIA: "d", key: moved}).text() != granted
    assert of(**{NVIDIA: "d"}).text() != granted
    assert of(**{NVIDIA: "d", key: "nonsense"}).text() != of(**{NVIDIA: "d"}).text()


_TEXT = st.text(st.sampled_from("a1:,\n;é"), max_size=4)
_GRANT = st.builds(
    grant.Grant,
    uid=_TEXT.filter(bool),
    node=_TEXT.filter(bool),
    placements=_TEXT,
    devices=st.dictionaries(_TEXT, _TEXT, max_size=2),
)
_ORDER = st.builds(
    grant.Resize,
    uid=_TEXT.filter(bool),
    node=_TEXT.filter(bool),
    seq=st.integers(1, 20),
    devices=_TEXT,
)


@hypothesis.given(_GRANT | _ORDER, _GRANT | _ORDER)
def test_no_two_have_the_same_text(one: grant.Signed, another: grant.Signed) -> None:
    assert (one.text() == another.text()) == (one == another)


@pytest.mark.parametrize(("uid", "node"), [("", "n"), ("u", "")])
def test_nothing_is_signed_without_a_pod_and_a_node(uid: str, node: str) -> None:
    with pytest.raises(errors.WireError, match="is empty"):
        grant.Grant(uid=uid, node=node, devices={}).text()


def test_text_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(errors.WireError, match="is not valid text"):
        grant.Grant(uid="u", node="n", devices={NVIDIA: "\ud800"}).text()


@pytest.mark.parametrize("seq", [1, 999_999_999_999_999_999])
def test_an_order_is_read_as_it_was_written(seq: int) -> None:
    assert grant.decode_order(grant.encode_order(seq, "a;b"), what="order") == (seq, "a;b")


@pytest.mark.parametrize("value", ["GPU-1,NVIDIA,1,0:;", ";", "22;1;d", "x"])
def test_an_order_of_the_first_form_has_no_number(value: str) -> None:
    assert grant.decode_order(value, what="order") == (0, value)


@pytest.mark.parametrize(
    "value", ["2;", "2;0;d", "2;-1;d", "2;01;d", "2;x;d", "2;٣;d", "2;;d", f"2;{10**18};d"]
)
def test_an_order_with_a_wrong_number_is_refused(value: str) -> None:
    with pytest.raises(errors.WireError, match="is not 2;<sequence number>;<device list>"):
        grant.decode_order(value, what="order")


def test_forms_that_an_agent_announces() -> None:
    announced = [("v3", "0a0b0c0d"), ("v1", "01020304")]
    value = grant.encode_forms(announced)
    assert value == "v3:0a0b0c0d,v1:01020304"
    assert grant.decode_forms(value) == frozenset(announced)
    assert grant.decode_forms("") == frozenset()
    assert grant.decode_forms("v1, v9:x:y,") == {("v1", ""), ("v9", "x:y")}
