"""Bodies in protobuf, as real kubectl 1.36 sends them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver.schema import protobuf
from sandbox.tests.unit.schema.given import Object

_CONFIG_MAP = bytes.fromhex(
    "6b3873000a0f0a0276311209436f6e6669674d6170121b0a110a017812001a0022002a0032003800"
    "420012060a01611201621a002200"
)
_DEPLOYMENT = bytes.fromhex(
    "6b3873000a150a07617070732f7631120a4465706c6f796d656e7412a9010a1b0a016412001a0022"
    "002a003200380042005a080a03617070120164127c0800120a0a080a036170701201641a640a1a0a"
    "0012001a0022002a003200380042005a080a03617070120164124612280a01781203783a312a0032"
    "0a0a001000185022002a0042006a007200800100880100900100a201001a00320042004a00520058"
    "00600068008201008a01009a0100c2010022020a00280038001a0c0800100018002000280038001a"
    "002200"
)
_QUOTA = bytes.fromhex(
    "6b3873000a130a027631120d5265736f7572636551756f746112460a110a017112001a0022002a00"
    "320038004200122f0a0d0a0363707512060a043530306d0a1e0a1772657175657374732e6e766964"
    "69612e636f6d2f67707512030a01341a001a002200"
)
_BUDGET = bytes.fromhex(
    "6b3873000a200a09706f6c6963792f76311213506f6444697372757074696f6e4275646765741236"
    "0a110a016212001a0022002a0032003800420012150a09080110001a0335302512080a060a016112"
    "01621a0a080018002000280030001a002200"
)
_TOKEN = bytes.fromhex(
    "6b3873000a280a1861757468656e7469636174696f6e2e6b38732e696f2f7631120c546f6b656e52"
    "657175657374121d0a100a0012001a0022002a00320038004200120320d8041a040a0012001a0022"
    "00"
)
_SERVICE = bytes.fromhex(
    "6b3873000a0d0a02763112075365727669636512690a1f0a0373766312001a0022002a0032003800"
    "42005a0a0a03617070120373766312420a1b0a0738302d3830383012035443501850220708001090"
    "3f1a002800120a0a0361707012037376631a002209436c757374657249503a00420052005a006000"
    "68001a020a001a002200"
)
_SECRET = bytes.fromhex(
    "6b3873000a0c0a0276311206536563726574121d0a110a017312001a0022002a0032003800420012"
    "060a016b1201761a001a002200"
)


def test_a_config_map_is_read() -> None:
    assert protobuf.decode(_CONFIG_MAP) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x"},
        "data": {"a": "b"},
    }


def test_bytes_are_given_in_base64_as_in_json() -> None:
    assert protobuf.decode(_SECRET)["data"] == {"k": "dg=="}


def test_a_deployment_keeps_the_zero_that_was_meant_and_drops_the_others() -> None:
    spec = protobuf.decode(_DEPLOYMENT)["spec"]
    assert spec["replicas"] == 0
    assert "minReadySeconds" not in spec
    assert spec["template"]["spec"]["containers"] == [
        {"name": "x", "image": "x:1", "ports": [{"containerPort": 80}], "resources": {}}
    ]


@pytest.mark.parametrize(
    ("body", "part", "expected"),
    [
        (_QUOTA, "hard", {"cpu": "500m", "requests.nvidia.com/gpu": "4"}),
        (_BUDGET, "minAvailable", "50%"),
        (_TOKEN, "expirationSeconds", 600),
        (
            _SERVICE,
            "ports",
            [{"name": "80-8080", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        ),
    ],
    ids=["quantities", "text or number", "int64", "number or text"],
)
def test_values_are_as_in_json(body: bytes, part: str, expected: object) -> None:
    assert protobuf.decode(body)["spec"][part] == expected


def _field(number: int, data: bytes | int) -> bytes:
    if isinstance(data, int):
        return bytes([number << 3]) + _varint(data)
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    written = b""
    while value > 127:
        written += bytes([value & 127 | 128])
        value >>= 7
    return written + bytes([value])


def _body(api_version: str, kind: str, raw: bytes) -> bytes:
    named = _field(1, api_version.encode()) + _field(2, kind.encode())
    return b"k8s\0" + _field(1, named) + _field(2, raw)


def test_a_lease_keeps_its_microseconds() -> None:
    moment = _field(1, 1767323045) + _field(2, 123456000)
    spec = _field(1, b"me") + _field(4, moment)
    found = protobuf.decode(_body("coordination.k8s.io/v1", "Lease", _field(2, spec)))
    assert found["spec"] == {"holderIdentity": "me", "renewTime": "2026-01-02T03:04:05.123456Z"}


def test_a_message_that_json_does_not_show_is_unfolded() -> None:
    volume = _field(1, b"v") + _field(2, _field(2, b""))  # a volume's source: an emptyDir
    found = protobuf.decode(_body("v1", "Pod", _field(2, _field(1, volume))))
    assert found["spec"] == {"volumes": [{"name": "v", "emptyDir": {}}]}


def test_lists_within_a_map_are_read() -> None:
    values = _field(1, b"x") + _field(1, b"y")
    extra = _field(5, _field(1, b"k") + _field(2, values))
    body = _body("authorization.k8s.io/v1", "SubjectAccessReview", _field(2, extra))
    assert protobuf.decode(body)["spec"] == {"extra": {"k": ["x", "y"]}}


def test_a_negative_number_is_read() -> None:
    body = _body("scheduling.k8s.io/v1", "PriorityClass", _field(2, 2**64 - 5))
    assert protobuf.decode(body)["value"] == -5


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "does not appear to be a protobuf message"),
        (_CONFIG_MAP[:-1], "ends early"),
        (_body("v1", "Unicorn", b""), "as JSON only"),
        (_body("v1", "ConfigMap", _field(15, b"x")), "field number 15 is not known"),
        (_body("v1", "ConfigMap", _field(1, _field(1, 7))), "a number stands where"),
        (_body("v1", "ConfigMap", _field(1, _field(1, b"\xff"))), "makes no sense"),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(protobuf.ProtobufError, match=words):
        protobuf.decode(body)


@settings(max_examples=50)
@given(st.binary(max_size=60), st.sampled_from(["Pod", "Node", "Event", "Secret"]))
def test_whatever_comes_it_is_read_or_refused(raw: bytes, kind: str) -> None:
    found: Object = {}
    try:
        found = protobuf.decode(_body("v1", kind, raw))
    except protobuf.ProtobufError:
        return
    assert found["kind"] == kind
