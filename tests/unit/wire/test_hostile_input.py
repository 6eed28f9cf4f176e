"""Hostile input: a decoder returns or raises WireError, soon and briefly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.serving.grant_keys import Keyring
from hami.serving.grant_signature import SigningKey
from hami.wire import (
    admission_review,
    codec,
    errors,
    extender_api,
    grant,
    mig,
    node_marks,
    node_register,
    objects,
    pod_marks,
    quantity,
    shares,
    signature,
    text_values,
)

KEYS = signature.GrantKeys(b"k" * 32)
SIGNING = SigningKey(b"s" * 32)
RING = Keyring(signing=(SIGNING,), public=(SIGNING.public,))
GRANT = grant.Grant(uid="u", node="n", devices={})

TEXT_DECODERS: dict[str, Callable[[str], object]] = {
    "quantity.parse": lambda text: quantity.parse(text, what="x"),
    "quantity.exact_integer": lambda text: quantity.exact_integer(text, what="x"),
    "quantity.rounded_up": lambda text: quantity.rounded_up(text, what="x"),
    "resource_names.check": lambda text: quantity.check_resource_name(text, what="x"),
    "resource_names.resource_of_quota_key": quantity.resource_of_quota_key,
    "comma_list.tokens": text_values.comma_list,
    "product_names.matches token": lambda text: text_values.matches_product(text, "NVIDIA H200"),
    "product_names.matches product": lambda text: text_values.matches_product("H200", text),
    "product_names.matches both": lambda text: text_values.matches_product(text * 2, text[:256]),
    "pod_devices.salvage": shares.salvage,
    "go_values.parse_bool": lambda text: text_values.parse_bool(text, what="x"),
    "go_values.parse_int32": lambda text: text_values.parse_int32(text, what="x"),
    "go_values.parse_duration": lambda text: text_values.parse_duration(text, what="x"),
    "pod_devices.decode": shares.decode,
    "node_register.decode_json": node_register.decode_json,
    "node_register.decode_colon": node_register.decode_colon,
    "handshake_answered": node_marks.handshake_answered,
    "node_lock.decode": node_marks.decode_lock,
    "pair_scores.decode": node_register.decode_scores,
    "late_binding.mark": node_marks.late_binding_mark,
    "late_binding.is_late mark": lambda text: node_marks.is_late(text, "[]"),
    "late_binding.is_late register": lambda text: node_marks.is_late("late,0", text),
    "grant.verify value": lambda text: signature.verify(KEYS, text, uid="u", node="n", devices="d"),
    "grant.verify uid": lambda text: signature.verify(KEYS, "v1", uid=text, node="n", devices="d"),
    "grant.sign": lambda text: signature.sign(KEYS, uid="u", node="n", devices=text),
    "grant.verify v3": lambda text: RING.verify(f"v3:{text}", GRANT),
    "grant.verify v3 signature": lambda text: RING.verify(f"v3:{RING.public[0].id}:{text}", GRANT),
    "grant.verify v3 node": lambda text: RING.verify(
        "v3:", grant.Resize(uid="u", node=text, devices="", seq=1)
    ),
    "grant.placements": grant.placements,
    "grant.decode_order": lambda text: grant.decode_order(f"2;{text}", what="x"),
    "grant.decode_forms": grant.decode_forms,
    "mig_allocations.decode": mig.decode_allocations,
    "pod_marks.decode_overuse": pod_marks.decode_overuse,
}
BYTE_DECODERS: dict[str, Callable[[bytes], object]] = {
    "pod": lambda data: codec.decode(data, objects.Pod, what="pod").init_done,
    "node": lambda data: codec.decode(data, objects.Node, what="node").allocatable,
    "quota": lambda data: codec.decode(data, objects.ResourceQuota, what="quota").hard,
    "lease": lambda data: codec.decode(data, objects.Lease, what="lease").name,
    "binding": lambda data: codec.decode(data, objects.Binding, what="binding").name,
    "admission_review.decode": lambda data: admission_review.decode(data).pod(),
    "extender_api.decode_args": extender_api.decode_args,
    "extender_api.decode_binding_args": extender_api.decode_binding_args,
}

NASTY_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400", "-0", "1" * 30, "9" * 5000, "1e99999999"]
NASTY_STRINGS = [
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '"\\x"',
    '"',
    '"\x00"',
    '"' + "x" * 10**6 + '"',
]
NASTY_DEPTHS = ["[" * 100_000, "[" * 5000 + "]" * 5000, '{"a":' * 100_000]
NASTY_VALUES = ["null", "true", "{}", "[]", "[null]", '""', "-1", "1.5", *NASTY_NUMBERS]
KEYS_OF_ALL = [
    *("id", "index", "count", "devmem", "numa", "health", "type", "migProfiles", "custominfo"),
    *("memoryMB", "placements", "start", "size", "uuid", "score", "containerIndex", "gpuUUID"),
    *("placement", "migUUID", "gpuInstanceID", "metadata", "annotations", "spec", "status", "hard"),
    *("containers", "initContainers", "resources", "limits", "allocatable", "name", "apiVersion"),
    *("kind", "request", "object", "uid", "Pod", "Nodes", "items", "NodeNames", "nodenames"),
    *("PodName", "PodUID", "Node", "initContainerStatuses", "state", "terminated", "exitCode"),
]


def documents() -> list[str]:
    """Every nasty value on its own, in a list, and under every key that some decoder knows."""
    values = [*NASTY_VALUES, *NASTY_STRINGS, *NASTY_DEPTHS]
    shapes = ["%s", "[%s]", '{"unknown":%s}', '[{"unknown":%s}]']
    plain = [shape % value for value in values for shape in shapes]
    shapes = [
        shape % key for key in KEYS_OF_ALL for shape in ('{"%s":%%s}', '[{"id":"a","%s":%%s}]')
    ]
    short = [value for value in values if len(value) < 10_000]
    return plain + [shape % value for value in short for shape in shapes]


LONG_TEXTS = {
    "digits": "1" * 10**6,
    "commas": "," * 10**6,
    "semicolons": ";" * 10**6,
    "colons": ":" * 10**6,
    "records": "a,b,1,1:;" * 30_000,
    "cards": ":".join(f"a{i},1,2,3,t,0,true" for i in range(30_000)) + ":",
    "spaces": " " * 10**6,
    "exponents": "1e" * 10**5,
    "dots": "a." * 10**5 + "/b",
    "dashes": "a" + "-" * 10**5 + "/b",
    "underscores": "Requesting_" * 10**5,
    "seconds": "2025-10-20T03:07:02." + "1" * 10**6 + "Z",
    "wishes": "H20," * 10**5,
    "numbers": "H2001" * 10**5,
    "surrogate": "\ud800",
    "surrogate in JSON": '["\ud800"]',
    "nul": "\x00",
    "byte order mark": "\ufeff[]",
}


def judge(decoder: Callable[[Any], object], data: str | bytes) -> None:
    try:
        decoder(data)
    except errors.WireError as error:
        assert len(str(error)) < 1000  # noqa: PT017  a refusal is optional, its brevity is not


@pytest.mark.parametrize("name", TEXT_DECODERS)
def test_text_decoders_survive_every_nasty_document(name: str) -> None:
    for text in documents():
        judge(TEXT_DECODERS[name], text)


@pytest.mark.parametrize("name", BYTE_DECODERS)
def test_byte_decoders_survive_every_nasty_document(name: str) -> None:
    for text in documents():
        judge(BYTE_DECODERS[name], text.encode())


@pytest.mark.parametrize("name", TEXT_DECODERS)
def test_long_texts_are_read_or_refused_in_time(name: str) -> None:
    # No clock here: what grows with the square of these lengths runs into pytest's timeout.
    for text in LONG_TEXTS.values():
        judge(TEXT_DECODERS[name], text)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"annotations":{"\xc3":"x"}}}',
        b"\x00",
    ],
)
@pytest.mark.parametrize("name", BYTE_DECODERS)
def test_bytes_that_are_no_text_are_refused_or_skipped(name: str, data: bytes) -> None:
    judge(BYTE_DECODERS[name], data)


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS_OF_ALL), inner, max_size=4)
    ),
    max_leaves=12,
).map(json.dumps)
_PIECES = st.lists(
    st.sampled_from(
        [",", ":", ";", "_", "-", ".", "/", "1", "99", "e", "Gi", "T", "Z", "m", " ", "ü"]
    )
    | st.sampled_from(
        ["Requesting", "2025-10-20", "03:07:02", "GPU-a", "NVIDIA", "true", "late", "v1"]
    )
    | st.text(max_size=2),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(_DOCUMENTS | _PIECES | st.text())
def test_no_text_makes_a_decoder_raise_anything_else(text: str) -> None:
    for decoder in TEXT_DECODERS.values():
        judge(decoder, text)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(_DOCUMENTS.map(str.encode) | st.binary())
def test_no_bytes_make_a_decoder_raise_anything_else(data: bytes) -> None:
    for decoder in BYTE_DECODERS.values():
        judge(decoder, data)


@settings(deadline=None)
@given(st.integers() | st.floats() | st.booleans() | st.integers(10**4000, 10**4400))
def test_no_number_makes_a_quantity_raise_anything_else(amount: float) -> None:
    for read in (quantity.parse, quantity.exact_integer, quantity.rounded_up):
        try:
            read(amount, what="x")
        except errors.WireError as error:
            assert len(str(error)) < 1000  # noqa: PT017  a refusal is optional, its brevity is not
