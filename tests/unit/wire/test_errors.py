"""Errors and encoding: messages name value, rule and remedy, and stay short."""

from __future__ import annotations

import pytest

from hami.wire import codec, errors, objects


def test_a_message_names_thing_value_rule_and_remedy() -> None:
    error = errors.WireError("count", "1.5", "is not a whole number", "write 1 or 2")
    assert str(error) == "count: '1.5' is not a whole number; write 1 or 2"
    assert str(errors.WireError("count", 7, "is odd")) == "count: 7 is odd"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("value", ["x" * 10**6, list(range(10**5))])
def test_a_long_value_is_cut_and_its_length_shown(value: object) -> None:
    shown = errors.shorten(value)
    assert len(shown) < 120
    assert shown.endswith(" characters)")


def test_a_value_of_just_the_length_shown_is_whole() -> None:
    assert errors.shorten("x" * 80) == repr("x" * 80)
    assert "81 characters" in errors.shorten("x" * 81)


def test_of_a_document_only_the_length_is_shown() -> None:
    secret = b'{"spec":{"containers":[{"env":[{"name":"TOKEN","value":"hunter2"}],"resources":5}]}}'
    with pytest.raises(errors.WireError) as caught:
        codec.decode(secret, objects.Pod, what="pod a/b")
    assert str(caught.value).startswith(f"pod a/b: {len(secret)} bytes does not decode: ")
    assert "hunter2" not in str(caught.value)


def test_an_annotation_value_is_quoted() -> None:
    with pytest.raises(errors.WireError, match=r"^cards: '\[5' does not decode: "):
        codec.decode("[5", list[int], what="cards")


def test_a_value_that_no_terminal_shows_is_escaped() -> None:
    assert errors.shorten("\ud800\n") == r"'\ud800\n'"


def test_what_has_no_json_is_an_error_of_ours() -> None:
    for value in ("\ud800", 10**6000):
        with pytest.raises(errors.WireError, match=r"^JSON: .* does not encode"):
            codec.encode(value)


def test_annotation_json_is_sorted_and_other_json_is_not() -> None:
    assert codec.encode_text({"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert codec.encode({"b": 1, "a": 2}) == b'{"b":1,"a":2}'
