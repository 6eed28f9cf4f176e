"""Signatures of form v3: who can make one, and what refuses it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hami.serving.grant_keys import Keyring
from hami.serving.grant_signature import PublicKey, SigningKey
from hami.wire import annotation_keys, errors, grant, signature

NVIDIA = annotation_keys.SIGNED_DEVICES
OTHER = "hami.io/other-devices-allocated"
KEY, OLDER = SigningKey(bytes(range(32))), SigningKey(b"o" * 32)
V1 = signature.GrantKeys(b"k" * 32)
GRANT = grant.Grant(
    uid="0b7c", node="gpu-1", devices={NVIDIA: "GPU-1,NVIDIA,4000,30:;", OTHER: "X,1:;"}
)
VALUE = KEY.sign(GRANT.text())
#: All that form v1 can sign.
NVIDIA_ALONE = msgspec.structs.replace(GRANT, devices={NVIDIA: GRANT.devices[NVIDIA]})
SCHEDULER = Keyring(V1, signing=(KEY, OLDER))
AGENT = Keyring(V1, public=(KEY.public, OLDER.public))
#: A node after v1 was switched off: all that is on its disk.
NODE = Keyring(public=(KEY.public,))


def test_the_library_computes_ed25519_as_rfc_8032_does() -> None:
    # RFC 8032, section 7.1, test 3.
    seed = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    public = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
    signed = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    key = Ed25519PrivateKey.from_private_bytes(seed)
    assert key.public_key().public_bytes_raw() == public
    assert key.sign(bytes.fromhex("af82")) == signed


def test_a_value_is_the_same_for_ever() -> None:
    """Pods run for years: later versions must compute the same bytes."""
    assert VALUE == (
        "v3:4759258e:"
        "ABQ4OA3DSL-EIpTmVj-KN2r_i5Dns1YboOJEcKwskAMbtc4-779EGST1EgL1v6ugUwTZ39ZscjTnfmOfG5MKBQ:"
        "__WP-osCXFf-YHwlOACj5x80d61C5DwSBTacyNS2I8s"
    )


def test_the_two_keys_are_derived_and_neither_is_the_other() -> None:
    seed = hmac.digest(KEY.secret, b"hami grant v3 ed25519", hashlib.sha256)
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert KEY.public == PublicKey(public)
    assert KEY.id == hashlib.sha256(public).hexdigest()[:8]


@pytest.mark.parametrize("ring", [SCHEDULER, AGENT, NODE], ids=["scheduler", "agent", "node"])
def test_a_key_of_either_kind_verifies(ring: Keyring) -> None:
    assert ring.verify(VALUE, GRANT)
    assert not ring.verify(SigningKey(b"f" * 32).sign(GRANT.text()), GRANT)


CHANGED = {
    "another pod": msgspec.structs.replace(GRANT, uid="0b7d"),
    "another node": msgspec.structs.replace(GRANT, node="gpu-2"),
    "more memory": msgspec.structs.replace(
        GRANT, devices={**GRANT.devices, NVIDIA: "GPU-1,NVIDIA,9000,30:;"}
    ),
    "another vendor's": msgspec.structs.replace(GRANT, devices={**GRANT.devices, OTHER: "Y,1:;"}),
    "a list less": msgspec.structs.replace(GRANT, devices={NVIDIA: GRANT.devices[NVIDIA]}),
    "a list more": msgspec.structs.replace(GRANT, devices={**GRANT.devices, "more": "Z"}),
    "MIG placements": msgspec.structs.replace(GRANT, placements="[]"),
    "nobody": msgspec.structs.replace(GRANT, uid=""),
    "an order": grant.Resize(uid="0b7c", node="gpu-1", seq=1, devices=GRANT.devices[NVIDIA]),
}


@pytest.mark.parametrize("ring", [SCHEDULER, AGENT], ids=["scheduler", "agent"])
@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_a_signature_is_for_nothing_else(ring: Keyring, changed: grant.Signed) -> None:
    assert not ring.verify(VALUE, changed)


@pytest.mark.parametrize("seq", [6, 8, 0])
def test_an_order_is_for_its_number_alone(seq: int) -> None:
    order = grant.Resize(uid="u", node="n", seq=7, devices="d")
    value = SCHEDULER.sign(order, AGENT_READS)
    other = msgspec.structs.replace(order, seq=seq)
    assert AGENT.verify(value, order)
    assert not AGENT.verify(value, other)
    assert not SCHEDULER.verify(value, other)


AGENT_READS = frozenset(AGENT.ids())
_HEAD, KEY_ID, SIGNATURE, MAC = VALUE.split(":")
#: One bit of it changed.
BROKEN = ("B" if SIGNATURE[0] == "A" else "A") + SIGNATURE[1:]
MALFORMED = [
    "",
    "v3",
    f"v3:{KEY_ID}",
    f"v3:{KEY_ID}:{SIGNATURE}",
    f"v3:{KEY_ID}:{BROKEN}:{MAC}",
    f"v3:{KEY_ID}::{MAC}",
    f"v3:{KEY_ID}:{SIGNATURE}==:{MAC}",
    f"v3:{KEY_ID}:{SIGNATURE[:-1]}:{MAC}",
    f"v3:{KEY_ID}:{SIGNATURE[:-1]}é:{MAC}",
    f"v3:{KEY_ID}:{SIGNATURE}:{MAC}:",
    f"v3:00000000:{SIGNATURE}:{MAC}",
    f"v3:{OLDER.id}:{SIGNATURE}:{MAC}",
    f"v1:{KEY_ID}:{SIGNATURE}:{MAC}",
    f"v4:{KEY_ID}:{SIGNATURE}:{MAC}",
    f" {VALUE}",
    VALUE + "\ud800",
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_scheduler_takes_no_other_value(value: str) -> None:
    # With the HMAC of another text or signature: that must not count either.
    assert not SCHEDULER.verify(value, msgspec.structs.replace(GRANT, uid="else"))
    if not value.endswith("\ud800"):
        assert not SCHEDULER.verify(value, GRANT)


@pytest.mark.parametrize("value", MALFORMED[:-1])
def test_an_agent_takes_no_other_value(value: str) -> None:
    assert not AGENT.verify(value, GRANT)


def test_a_valid_hmac_beside_a_broken_signature_cannot_be_made_without_the_key() -> None:
    """The HMAC covers the signature: what a scheduler accepts, agents accept, too."""
    value = f"v3:{KEY_ID}:{BROKEN}:{MAC}"
    assert not SCHEDULER.verify(value, GRANT)
    assert not AGENT.verify(value, GRANT)


def test_the_signature_decides_where_the_hmac_was_damaged() -> None:
    damaged = f"v3:{KEY_ID}:{SIGNATURE}:{'A' * 43}"
    assert SCHEDULER.verify(damaged, GRANT)
    assert AGENT.verify(damaged, GRANT)


def test_nothing_on_a_node_signs() -> None:
    assert NODE.sign(GRANT, frozenset(NODE.ids())) == ""
    material = NODE.public[0].content
    forged = [
        SigningKey(material).sign(GRANT.text()),
        signature.sign(
            signature.GrantKeys(material), uid=GRANT.uid, node=GRANT.node, devices="GPU-1"
        ),
        # The public key as the key of an HMAC, behind the id that readers look for.
        f"v3:{KEY.id}:{'A' * 86}:" + SigningKey(material)._mac(f"v3:{KEY.id}:{'A' * 86}", b"x"),
    ]
    strict = Keyring(signing=(KEY, OLDER))
    for value in forged:
        assert not strict.verify(value, GRANT)
        assert not NODE.verify(value, GRANT)


def test_a_key_of_v1_that_a_node_still_has_signs_nothing_once_v1_is_off() -> None:
    devices = GRANT.devices[NVIDIA]
    value = signature.sign(V1, uid=GRANT.uid, node=GRANT.node, devices=devices)
    assert SCHEDULER.verify(value, NVIDIA_ALONE)
    assert AGENT.verify(value, NVIDIA_ALONE)
    assert not dataclasses.replace(SCHEDULER, v1=None).verify(value, NVIDIA_ALONE)
    assert not NODE.verify(value, NVIDIA_ALONE)


def test_the_same_bytes_as_keys_of_both_forms_do_not_mix_the_forms() -> None:
    same = SigningKey(V1.current)
    both = Keyring(V1, signing=(same,))
    granted = NVIDIA_ALONE
    for value in (same.sign(granted.text()), both.sign(granted, frozenset([("v1", "")]))):
        form, key_id, rest = value.split(":", 2)
        assert both.verify(value, granted)
        other = "v1" if form == "v3" else "v3"
        assert not both.verify(f"{other}:{key_id}:{rest}", granted)


def test_keys_are_never_shown() -> None:
    assert "o" * 8 not in repr(Keyring(signing=(OLDER,)))


@pytest.mark.parametrize("kind", [SigningKey, PublicKey])
def test_a_key_has_32_bytes(kind: type[SigningKey | PublicKey]) -> None:
    with pytest.raises(errors.WireError, match="31 bytes long, must be 32"):
        kind(b"x" * 31)


CURRENT_V1 = ("v1", signature.key_id(V1.current))
CURRENT, PREVIOUS = ("v3", KEY.id), ("v3", OLDER.id)
CHOICES = {
    # name: (what the node's agent reads, the key that signs)
    "an older agent": ((), CURRENT_V1),
    "an agent of v1 alone": ((CURRENT_V1,), CURRENT_V1),
    "both forms": ((CURRENT_V1, CURRENT), CURRENT),
    "both keys": ((CURRENT, PREVIOUS), CURRENT),
    "a new key has not reached it": ((PREVIOUS, ("v3", "00000000")), PREVIOUS),
    "no key of v3 is known there, but v1": ((("v3", "00000000"), CURRENT_V1), CURRENT_V1),
    "no key is known there": ((("v3", "00000000"),), CURRENT),
    "its key of v1 is another": ((("v1", "00000000"),), CURRENT_V1),
    "a later form beside ours": ((("v9", "x"), CURRENT), CURRENT),
    "a later form alone": ((("v9", "x"),), CURRENT),
}


@pytest.mark.parametrize(("reads", "chosen"), CHOICES.values(), ids=CHOICES)
def test_a_grant_is_signed_with_the_newest_key_that_its_node_has(
    reads: tuple[tuple[str, str], ...], chosen: tuple[str, str]
) -> None:
    value = SCHEDULER.sign(NVIDIA_ALONE, frozenset(reads))
    assert tuple(value.split(":")[:2]) == chosen
    assert AGENT.verify(value, NVIDIA_ALONE)


def test_without_a_key_of_v1_every_node_gets_v3() -> None:
    fresh = dataclasses.replace(SCHEDULER, v1=None)
    assert fresh.sign(GRANT, frozenset()).startswith(f"v3:{KEY.id}:")
    assert fresh.sign(GRANT, frozenset([CURRENT_V1])).startswith(f"v3:{KEY.id}:")


def test_a_grant_without_nvidia_cards_has_no_form_v1() -> None:
    other = grant.Grant(uid="u", node="n", devices={OTHER: "X"})
    assert Keyring(V1).sign(other, frozenset()) == ""
    value = SCHEDULER.sign(other, frozenset())
    assert SCHEDULER.verify(value, other)


def test_form_v1_proves_no_device_list_of_another_vendor() -> None:
    """It covers NVIDIA's alone: a list that was added or changed beside it would count."""
    value = SCHEDULER.sign(NVIDIA_ALONE, frozenset())
    assert value.startswith("v1:")
    for ring in (SCHEDULER, AGENT):
        assert ring.verify(value, NVIDIA_ALONE)
        assert not ring.verify(value, GRANT)
    assert SCHEDULER.sign(GRANT, frozenset([CURRENT_V1])).startswith("v3:")
    assert Keyring(V1).sign(GRANT, frozenset()) == ""
