"""XIDs that count, and their descriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent.cards import xids
from hami.agent.cards.xids import Kind, ignored
from hami.wire.errors import WireError

APPLICATION = [13, 31, 43, 45, 68, 109]
LISTS = st.lists(st.integers(1, 200)).map(lambda numbers: ",".join(map(str, numbers)))


@pytest.mark.parametrize("code", APPLICATION)
def test_a_program_s_error_does_not_count(code: int) -> None:
    assert xids.of(code).kind is Kind.APPLICATION
    assert code in ignored("")


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 154, 999])
def test_what_needs_a_reset_or_is_unknown_counts(code: int) -> None:
    assert code not in ignored("")


def test_those_that_need_a_restart_of_the_machine_say_so() -> None:
    assert xids.of(79).kind is Kind.REBOOT
    assert "reboot" in xids.describe(79)


def test_an_unknown_error_says_where_to_look_and_how_to_silence_it() -> None:
    assert xids.of(998).kind is Kind.UNKNOWN
    assert "XID 998" in xids.describe(998)
    assert xids.DISABLE in xids.describe(998)


@given(st.integers(1, 999))
def test_every_error_has_a_text_and_a_remedy(code: int) -> None:
    meaning = xids.of(code)
    assert meaning.text
    assert meaning.remedy


def test_named_numbers_are_added_to_what_is_ignored() -> None:
    found = ignored(" 48, 79 ,")
    assert 48 in found
    assert 79 in found
    assert 13 in found
    assert 62 not in found
    assert found.probing


@pytest.mark.parametrize("word", ["xids", "all", "XIDS", "All", "48,xids"])
def test_all_can_be_ignored(word: str) -> None:
    found = ignored(word)
    assert 79 in found
    assert 999 in found
    assert found.everything


def test_only_all_stops_probing() -> None:
    assert ignored("xids").probing
    assert not ignored("all").probing
    assert ignored("all", "all").probing


def test_what_is_enabled_goes_before_what_is_disabled() -> None:
    found = ignored("all", "79,13")
    assert 79 not in found
    assert 13 not in found
    assert 48 in found
    assert not found.everything
    assert 31 not in ignored("31", "31")


def test_enabling_all_takes_in_programs_errors_but_not_those_disabled_by_number() -> None:
    found = ignored("43", "all")
    assert 13 not in found
    assert 999 not in found
    assert 43 in found


@pytest.mark.parametrize("entry", ["seventy-nine", "-1", "0", "7 9", "0x4f", "79;48", "\u0663"])
@pytest.mark.parametrize("setting", [xids.DISABLE, xids.ENABLE])
def test_what_is_no_list_is_refused_by_name(entry: str, setting: str) -> None:
    texts = {xids.DISABLE: "", xids.ENABLE: "", setting: f"48,{entry}"}
    with pytest.raises(WireError) as caught:
        ignored(texts[xids.DISABLE], texts[xids.ENABLE])
    message = str(caught.value)
    assert setting in message
    assert repr(entry) in message
    assert "48,79" in message


@given(LISTS, LISTS, st.integers(1, 250))
def test_a_number_is_judged_by_the_lists_first(off: str, on: str, code: int) -> None:
    expected = not xids.of(code).critical
    if str(code) in off.split(","):
        expected = True
    if str(code) in on.split(","):
        expected = False
    assert (code in ignored(off, on)) is expected
