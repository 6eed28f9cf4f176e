"""Late binding mark and grant signature hold for exactly their values."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.wire import errors, node_marks, signature

REGISTER = '[{"id":"GPU-a","count":10,"type":"NVIDIA H200","health":true}]'


class TestLateBinding:
    def test_the_mark_is_a_hash_of_the_registers_exact_bytes(self) -> None:
        digest = hashlib.sha256(REGISTER.encode()).hexdigest()
        assert node_marks.late_binding_mark(REGISTER) == f"late,{digest[:16]}"
        # Known from elsewhere: SHA-256 of the empty text.
        assert node_marks.late_binding_mark("") == "late,e3b0c44298fc1c14"

    def test_a_mark_holds_for_the_register_it_was_written_with(self) -> None:
        assert node_marks.is_late(node_marks.late_binding_mark(REGISTER), REGISTER)
        assert node_marks.is_late(node_marks.late_binding_mark("ü"), "ü")

    MISFITS = {  # noqa: RUF012  a table, read once
        "no mark": (None, REGISTER),
        "no register": (node_marks.late_binding_mark(REGISTER), None),
        "neither": (None, None),
        "empty mark": ("", REGISTER),
        "register changed": (node_marks.late_binding_mark(REGISTER), REGISTER + "\n"),
        "only the word": ("late", REGISTER),
        "no hash": ("late,", REGISTER),
        "cut hash": (node_marks.late_binding_mark(REGISTER)[:-1], REGISTER),
        "longer hash": (node_marks.late_binding_mark(REGISTER) + "0", REGISTER),
        "upper case": (node_marks.late_binding_mark(REGISTER).upper(), REGISTER),
        "spaces": (node_marks.late_binding_mark(REGISTER) + " ", REGISTER),
        "other word": (node_marks.late_binding_mark(REGISTER).replace("late", "lock"), REGISTER),
        "text that has no bytes": ("late,0000000000000000", "\ud800"),
    }

    @pytest.mark.parametrize(("mark", "register"), MISFITS.values(), ids=MISFITS)
    def test_any_other_mark_means_lock(self, mark: str | None, register: str | None) -> None:
        assert node_marks.is_late(mark, register) is False

    def test_text_that_has_no_bytes_cannot_be_marked(self) -> None:
        with pytest.raises(errors.WireError, match="not valid text"):
            node_marks.late_binding_mark("\ud800")


CURRENT, PREVIOUS, FOREIGN = (bytes([n]) * 32 for n in (1, 2, 3))
KEYS = signature.GrantKeys(current=CURRENT, previous=PREVIOUS)
POD = {"uid": "0f3b", "node": "node-1", "devices": ";GPU-a,NVIDIA,3000,30:;"}


class TestGrant:
    def test_the_value_is_version_key_id_and_code(self) -> None:
        text = b"v1\n0f3b\nnode-1\n;GPU-a,NVIDIA,3000,30:;"
        code = base64.urlsafe_b64encode(hmac.new(CURRENT, text, hashlib.sha256).digest())
        key_id = hashlib.sha256(CURRENT).hexdigest()[:8]
        assert signature.sign(KEYS, **POD) == f"v1:{key_id}:{code.decode().rstrip('=')}"
        assert signature.key_id(CURRENT) == key_id

    def test_a_grant_verifies_for_its_pod_node_and_devices(self) -> None:
        assert signature.verify(KEYS, signature.sign(KEYS, **POD), **POD)

    @pytest.mark.parametrize("field", POD)
    def test_a_grant_does_not_verify_for_anything_else(self, field: str) -> None:
        value = signature.sign(KEYS, **POD)
        assert not signature.verify(KEYS, value, **{**POD, field: POD[field] + "x"})

    def test_a_grant_of_the_previous_key_still_verifies(self) -> None:
        old = signature.sign(signature.GrantKeys(PREVIOUS), **POD)
        assert signature.verify(KEYS, old, **POD)
        assert not signature.verify(signature.GrantKeys(CURRENT), old, **POD)

    def test_only_the_current_key_signs(self) -> None:
        assert signature.sign(KEYS, **POD) == signature.sign(signature.GrantKeys(CURRENT), **POD)

    def test_a_grant_of_a_foreign_key_does_not_verify(self) -> None:
        assert not signature.verify(
            KEYS, signature.sign(signature.GrantKeys(FOREIGN), **POD), **POD
        )

    GOOD = signature.sign(KEYS, **POD)
    MALFORMED = {  # noqa: RUF012  a table, read once
        "empty": "",
        "only colons": "::",
        "other version": GOOD.replace("v1", "v2"),
        "other key id": GOOD.replace(GOOD.split(":")[1], "00000000"),
        "padded": GOOD + "=",
        "cut": GOOD[:-1],
        "longer": GOOD + "A",
        "line break": GOOD + "\n",
        "no base64": "v1:01234567:!!!",
        "not ASCII": GOOD[:-1] + "ü",
        "no text": "\ud800",
        "a megabyte": "v1:" * 300_000,
    }

    @pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
    def test_a_malformed_value_does_not_verify_and_does_not_raise(self, value: str) -> None:
        assert signature.verify(KEYS, value, **POD) is False

    UNSIGNABLE = {  # noqa: RUF012  a table, read once
        "line break in uid": {**POD, "uid": "a\nb"},
        "line break in node": {**POD, "node": "a\nb"},
        "no uid": {**POD, "uid": ""},
        "no node": {**POD, "node": ""},
        "no text": {**POD, "devices": "\ud800"},
    }

    @pytest.mark.parametrize("parts", UNSIGNABLE.values(), ids=UNSIGNABLE)
    def test_what_has_two_readings_is_neither_signed_nor_verified(
        self, parts: dict[str, str]
    ) -> None:
        with pytest.raises(errors.WireError):
            signature.sign(KEYS, **parts)
        assert signature.verify(KEYS, self.GOOD, **parts) is False

    def test_a_line_cannot_move_from_one_part_to_the_next(self) -> None:
        # The signed bytes of both are the same; only one is a pod and a node.
        value = signature.sign(KEYS, uid="u", node="n", devices="m\nd")
        assert signature.verify(KEYS, value, uid="u", node="n", devices="m\nd")
        assert not signature.verify(KEYS, value, uid="u", node="n\nm", devices="d")
        assert not signature.verify(KEYS, value, uid="u\nn", node="m", devices="d")

    @pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
    def test_a_key_of_another_length_is_refused_without_being_shown(self, size: int) -> None:
        secret = b"s3cret" * 20
        for current, previous in ((secret[:size], None), (CURRENT, secret[:size])):
            with pytest.raises(errors.WireError, match=f"{size} bytes long, must be 32") as caught:
                signature.GrantKeys(current, previous)
            assert "s3c" not in str(caught.value)

    def test_keys_do_not_show_in_their_repr(self) -> None:
        keys = signature.GrantKeys(b"s3cret--" * 4, b"0lder---" * 4)
        assert "s3cret" not in repr(keys)
        assert "0lder" not in repr(keys)

    _TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    _NAME = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=9
    )

    @settings(deadline=None)
    @given(
        st.binary(min_size=32, max_size=32),
        st.tuples(_NAME, _NAME, _TEXT),
        st.tuples(_NAME, _NAME, _TEXT),
    )
    def test_a_grant_verifies_for_its_own_parts_only(
        self, key: bytes, mine: tuple[str, str, str], other: tuple[str, str, str]
    ) -> None:
        keys = signature.GrantKeys(key)
        value = signature.sign(keys, uid=mine[0], node=mine[1], devices=mine[2])
        assert signature.verify(keys, value, uid=mine[0], node=mine[1], devices=mine[2])
        same = signature.verify(keys, value, uid=other[0], node=other[1], devices=other[2])
        assert same is (mine == other)
