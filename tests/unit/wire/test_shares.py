"""Device lists of pods: written exactly, read liberally, by container index."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, shares

A = shares.Share(card="GPU-a", vendor="NVIDIA", memory_mib=3000, cores=30)
B = shares.Share(card="GPU-b", vendor="NVIDIA", memory_mib=3000, cores=30)

EXAMPLES: dict[str, tuple[shares.PodShares, str]] = {
    "no containers": ((), ""),
    "one container, no card": (((),), ";"),
    "one container, one card": (((A,),), "GPU-a,NVIDIA,3000,30:;"),
    "one container, two cards": (
        ((A, B),),
        "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;",
    ),
    "two containers, one card each": (
        ((A,), (B,)),
        "GPU-a,NVIDIA,3000,30:;GPU-b,NVIDIA,3000,30:;",
    ),
    "only the second has a card": (((), (A,)), ";GPU-a,NVIDIA,3000,30:;"),
    "only the third, after an init container": (((), (), (A,)), ";;GPU-a,NVIDIA,3000,30:;"),
    "only the first of two": (((A,), ()), "GPU-a,NVIDIA,3000,30:;;"),
}


@pytest.mark.parametrize(("pod_shares", "text"), EXAMPLES.values(), ids=EXAMPLES)
def test_shares_are_written_byte_for_byte_and_read_back(
    pod_shares: shares.PodShares, text: str
) -> None:
    assert shares.encode(pod_shares) == text
    assert shares.decode(text) == pod_shares


LIBERAL: dict[str, tuple[str, shares.PodShares]] = {
    "no last terminator": ("GPU-a,NVIDIA,3000,30:", ((A,),)),
    "erased by a plugin": (";;;;", ((), (), (), ())),
    "old writers' container without card": (",,0,0:;GPU-a,NVIDIA,3000,30:;", ((), (A,))),
    "more fields": ("GPU-a,NVIDIA,3000,30,new,fields:;", ((A,),)),
    "records without a comma": ("junk:GPU-a,NVIDIA,3000,30:;", ((A,),)),
    "no record terminator": ("GPU-a,NVIDIA,3000,30;", ((A,),)),
    "product name as type": (
        "GPU-a,NVIDIA A100-SXM4-40GB,3000,30:;",
        ((shares.Share("GPU-a", "NVIDIA A100-SXM4-40GB", 3000, 30),),),
    ),
}


@pytest.mark.parametrize(("text", "want"), LIBERAL.values(), ids=LIBERAL)
def test_what_other_writers_leave_is_understood(text: str, want: shares.PodShares) -> None:
    assert shares.decode(text) == want


REJECTED = {
    "three fields": ("GPU-a,NVIDIA,3000:;", "fewer than the four fields"),
    "memory is a word": ("GPU-a,NVIDIA,lots,30:;", "card 'GPU-a': .*'lots' is not a whole number"),
    "memory is empty": ("GPU-a,NVIDIA,,30:;", "card 'GPU-a'"),
    "cores are a word": ("GPU-a,NVIDIA,3000,some:;", "card 'GPU-a': .*'some' is not a whole"),
    "memory of 33 bits": ("GPU-a,NVIDIA,2147483648,30:;", "32 bits"),
    "endless cores": (f"GPU-a,NVIDIA,1,{'9' * 5000}:;", "whole number"),
    "negative memory": ("GPU-a,NVIDIA,-1,30:;", "negative"),
    "fraction": ("GPU-a,NVIDIA,1.5,30:;", "whole number"),
    "space": ("GPU-a,NVIDIA, 3000,30:;", "whole number"),
    "second container bad": ("GPU-a,NVIDIA,3000,30:;GPU-b,NVIDIA:;", "four fields"),
    "no card, bad number": (",,x,0:;", "card ''"),
}


@pytest.mark.parametrize(("text", "rule"), REJECTED.values(), ids=REJECTED)
def test_one_bad_record_rejects_the_list(text: str, rule: str) -> None:
    with pytest.raises(errors.WireError, match=rule):
        shares.decode(text)


def test_a_megabyte_of_uuid_makes_no_megabyte_of_message() -> None:
    with pytest.raises(errors.WireError) as caught:
        shares.decode(f"{'u' * 1_000_000},NVIDIA,x,0:;")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("character", ",:;")
def test_a_separator_inside_a_grant_cannot_be_written(character: str) -> None:
    for uuid, kind in ((f"GPU{character}a", "NVIDIA"), ("GPU-a", f"NV{character}")):
        grant = shares.Share(card=uuid, vendor=kind, memory_mib=1, cores=1)
        with pytest.raises(errors.WireError, match="cannot carry"):
            shares.encode([[grant]])


UNWRITABLE = {
    "empty id": (shares.Share("", "NVIDIA", 1, 1), "is no card id"),
    "negative memory": (shares.Share("GPU-a", "NVIDIA", -1, 1), "memory: -1 is negative"),
    "negative cores": (shares.Share("GPU-a", "NVIDIA", 1, -1), "cores: -1 is negative"),
    "33 bits": (shares.Share("GPU-a", "NVIDIA", 2**31, 1), "card 'GPU-a', memory: .* 32 bits"),
}


@pytest.mark.parametrize(("grant", "rule"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_back_is_not_written(grant: shares.Share, rule: str) -> None:
    with pytest.raises(errors.WireError, match=rule):
        shares.encode([[grant]])


_GOOD = "GPU-a,NVIDIA,3000,30:"
SALVAGED: dict[str, tuple[str, shares.PodShares, tuple[str, ...]]] = {
    "too few fields": (f"{_GOOD};GPU-b,NVIDIA:;", ((A,), ()), ("GPU-b",)),
    "bad amount in the same container": (f"GPU-b,NVIDIA,x,0:{_GOOD};", ((A,),), ("GPU-b",)),
    "two damaged": (f"b,N,1,-1:;{_GOOD};c,:", ((), (A,), ()), ("b", "c")),
    "an id is taken as it is": (" b ,N,1:;", ((),), (" b ",)),
    "no id to tell": (f",,x,0:{_GOOD};", ((A,),), ()),
    "no record": ("junk;", ((),), ()),
}


@pytest.mark.parametrize(("text", "pod_shares", "damaged"), SALVAGED.values(), ids=SALVAGED)
def test_a_damaged_record_costs_only_itself(
    text: str, pod_shares: shares.PodShares, damaged: tuple[str, ...]
) -> None:
    assert shares.salvage(text) == (pod_shares, damaged)


@settings(deadline=None)
@given(
    st.text()
    | st.lists(st.sampled_from(["GPU-a", ",", ":", ";", "1", "-", "x", _GOOD])).map("".join)
)
def test_salvage_never_raises_and_agrees_with_decode(text: str) -> None:
    found = shares.salvage(text)
    try:
        decoded = shares.decode(text)
    except errors.WireError:
        return
    assert found == (decoded, ())


_WORD = st.text(st.characters(exclude_characters=",:;"), min_size=1, max_size=8)
_INT32 = st.integers(0, 2**31 - 1)
_CONTAINERS = st.lists(
    st.lists(
        st.builds(shares.Share, card=_WORD, vendor=_WORD, memory_mib=_INT32, cores=_INT32),
        max_size=3,
    ),
    max_size=4,
)


@settings(deadline=None)
@given(_CONTAINERS)
def test_any_shares_survive(containers: list[list[shares.Share]]) -> None:
    assert shares.decode(shares.encode(containers)) == tuple(map(tuple, containers))
