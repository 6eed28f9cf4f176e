"""MIG slices of a pod: five fields from the scheduler, three more from the plugin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, mig, node_register

FIVE = (
    '{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb",'
    '"placement":{"start":2,"size":2}'
)
RESERVED = f"[{FIVE}}}]"
RUNNING = f'[{FIVE},"migUUID":"MIG-1","gpuInstanceID":4,"computeInstanceID":0}}]'


def test_a_reservation_is_read_and_written_byte_for_byte() -> None:
    (slice_,) = mig.decode_allocations(RESERVED)
    assert slice_ == mig.Allocation(
        container_index=0,
        device_index=0,
        gpu_uuid="GPU-a",
        profile="2g.10gb",
        placement=node_register.MigPlacement(start=2, size=2),
    )
    assert mig.encode_allocations([slice_]) == RESERVED


def test_a_running_slice_keeps_its_zero_ids() -> None:
    (slice_,) = mig.decode_allocations(RUNNING)
    assert (slice_.mig_uuid, slice_.gpu_instance, slice_.compute_instance) == ("MIG-1", 4, 0)
    assert mig.encode_allocations([slice_]) == RUNNING


def test_missing_and_null_numbers_are_zero() -> None:
    text = (
        '[{"containerIndex":null,"gpuUUID":"a","profile":"p","placement":{"start":null,"size":1},'
        '"migUUID":null,"gpuInstanceID":null,"computeInstanceID":null}]'
    )
    (slice_,) = mig.decode_allocations(text)
    assert (slice_.container_index, slice_.device_index, slice_.placement.start) == (0, 0, 0)
    assert slice_.mig_uuid is None


def test_a_pod_without_slices_is_an_empty_list() -> None:
    assert mig.decode_allocations("[]") == ()
    assert mig.encode_allocations([]) == "[]"


REJECTED = {
    "no JSON": ("GPU-a", "does not decode"),
    "null": ("null", "does not decode"),
    "null entry": ("[null]", "names no GPU"),
    "negative container": (RESERVED.replace('containerIndex":0', 'containerIndex":-1'), "outside"),
    "negative device": (RESERVED.replace('deviceIndex":0', 'deviceIndex":-1'), "outside"),
    "negative start": (RESERVED.replace('start":2', 'start":-2'), "outside"),
    "negative size": (RESERVED.replace('size":2', 'size":-2'), "outside"),
    "endless container": (
        RESERVED.replace('containerIndex":0', f'containerIndex":{10**40}'),
        "out",
    ),
    "no GPU": (RESERVED.replace("GPU-a", ""), "names no GPU"),
    "no profile": (RESERVED.replace("2g.10gb", ""), "names no profile"),
    "size 0": (RESERVED.replace('size":2', 'size":0'), "size 0"),
    "no placement": ('[{"gpuUUID":"a","profile":"p"}]', "size 0"),
    "only the MIG uuid": (f'[{FIVE},"migUUID":"MIG-1"}}]', "only some of"),
    "no MIG uuid": (f'[{FIVE},"gpuInstanceID":4,"computeInstanceID":0}}]', "only some of"),
    "empty MIG uuid": (RUNNING.replace("MIG-1", ""), "only some of"),
    "no compute instance": (f'[{FIVE},"migUUID":"MIG-1","gpuInstanceID":4}}]', "only some of"),
    "negative instance": (RUNNING.replace('InstanceID":4', 'InstanceID":-4'), "outside"),
    "same device twice": (f"[{FIVE}}},{FIVE}}}]", "device index of another entry"),
}


@pytest.mark.parametrize(("text", "rule"), REJECTED.values(), ids=REJECTED)
def test_one_bad_slice_rejects_the_annotation(text: str, rule: str) -> None:
    with pytest.raises(errors.WireError, match=rule):
        mig.decode_allocations(text)


def test_what_could_not_be_read_back_is_not_written() -> None:
    (slice_,) = mig.decode_allocations(RESERVED)
    with pytest.raises(errors.WireError, match="another entry"):
        mig.encode_allocations([slice_, slice_])


_INT32 = st.integers(0, 2**31 - 1)
_WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
_SLICES = st.builds(
    lambda identity, **fields: mig.Allocation(**fields, **identity),
    identity=st.just({})
    | st.fixed_dictionaries(
        {"mig_uuid": _WORD, "gpu_instance": _INT32, "compute_instance": _INT32}
    ),
    container_index=_INT32,
    device_index=_INT32,
    gpu_uuid=_WORD,
    profile=_WORD,
    placement=st.builds(node_register.MigPlacement, start=_INT32, size=st.integers(1, 2**31 - 1)),
)


@settings(deadline=None)
@given(st.lists(_SLICES, max_size=3, unique_by=lambda one: (one.container_index, one.device_index)))
def test_any_slices_survive(slices: list[mig.Allocation]) -> None:
    assert mig.decode_allocations(mig.encode_allocations(slices)) == tuple(slices)
