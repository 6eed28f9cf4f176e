"""The auditor's own decoders: accepted and refused input, one error class."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.serving.grant_signature import SigningKey
from hami.wire import grant
from tests.e2e.auditor import (
    claims,
    malformed,
    node_annotations,
    peaks,
    pod_annotations,
    pods,
    timeline,
)
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.node_annotations import NVIDIA_REGISTER, Card, Lock
from tests.e2e.auditor.pod_annotations import ALLOCATED, Grant
from tests.e2e.auditor.pods import Container, ContainerKind
from tests.unit.e2e_tools import auditor_sample as sample

COLON = "hami.io/node-dcu-register"


def test_registers_of_the_protocol_page_decode() -> None:
    """The examples of docs/designs/006-hami-protocol.md, byte for byte."""
    json_example = (
        '[{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","count":10,"devmem":40960,'
        '"devcore":100,"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true},'
        '{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","index":1,"count":10,"devmem":40960,'
        '"devcore":100,"type":"NVIDIA A100-SXM4-40GB","numa":1,"mode":"hami-core","health":true}]'
    )
    colon_example = (
        "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4,10,7680,100,NVIDIA-Tesla P4,0,true,1,hami-core:"
    )
    cards = node_annotations.register(NVIDIA_REGISTER, json_example)
    assert cards is not None
    assert [(card.count, card.memory, card.cores, card.index) for card in cards] == [
        (10, 40960, 100, 0),
        (10, 40960, 100, 1),
    ]
    assert node_annotations.register(COLON, colon_example) == (
        Card("GPU-ebe7c3f7-303d-558d-435e-99a160631fe4", 10, 7680, 100, "hami-core", 1),
    )
    assert node_annotations.register(COLON, "a,1,2,3,t,0,f:b,1,2,3,t,0,T:") == (
        Card("a", 1, 2, 3),
        Card("b", 1, 2, 3),
    )
    assert node_annotations.register(COLON, ":") == ()


def test_keys_that_are_no_register_are_left_alone() -> None:
    assert node_annotations.register("hami.io/device-cordon", "[{") is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{}",
        "[1]",
        "null",
        "[{}]",
        '[{"id":""}]',
        '[{"id":"a","count":-1}]',
        '[{"id":"a","count":1.5}]',
        '[{"id":"a","count":true}]',
        '[{"id":"a","devmem":2147483648}]',
        '[{"id":"a","devcore":"100"}]',
        '[{"id":"a","health":"true"}]',
        '[{"id":"a","numa":-2}]',
        '[{"id":"a","mode":1}]',
        '[{"id":"a,b"}]',
        '[{"id":"a"},{"id":"a"}]',
        "GPU-a,10,7680,100,NVIDIA,0,true,1,hami-core:",
        "[" * 100_000,
    ],
)
def test_a_bad_json_register_is_refused(value: str) -> None:
    with pytest.raises(MalformedError):
        node_annotations.register(NVIDIA_REGISTER, value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a,1,2,3,t,0,true",
        "a,1,2,3,t,0:",
        "a,1,2,3,t,0,true,1:",
        "a,x,2,3,t,0,true:",
        "a,1,2,3,t,0,maybe:",
        "a,1,2,3,t,0,true,-1,m:",
        ",1,2,3,t,0,true:",
        "a,1,2,3,t,x,true:",
        "a,01,2,3,t,0,true:",
    ],
)
def test_a_bad_colon_register_is_refused(value: str) -> None:
    with pytest.raises(MalformedError):
        node_annotations.register(COLON, value)


def test_device_lists_of_the_protocol_page_decode() -> None:
    one, other = Grant("GPU-a", 3000, 30), Grant("GPU-b", 3000, 30)
    for value, slots in {
        "": (),
        "GPU-a,NVIDIA,3000,30:;": ((one,),),
        "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;": ((one, other),),
        ";GPU-a,NVIDIA,3000,30:;": ((), (one,)),
        ";;;": ((), (), ()),
    }.items():
        assert pod_annotations.device_list(ALLOCATED, value) == slots


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "GPU-a,NVIDIA,3000,30:",
        "GPU-a,NVIDIA,3000,30;",
        "GPU-a,NVIDIA,3000:;",
        "GPU-a,NVIDIA,3000,30,x:;",
        "GPU-a,AMD,3000,30:;",
        ",,0,0:;",
        "GPU-a,NVIDIA,-1,30:;",
        "GPU-a,NVIDIA,3000,101:;",
        "GPU-a,NVIDIA,2147483648,30:;",
        "GPU-a,NVIDIA,3000,3٣:;",
        "GPU-a,NVIDIA,3000,30::;",
    ],
)
def test_a_bad_device_list_is_refused(value: str) -> None:
    with pytest.raises(MalformedError):
        pod_annotations.device_list(ALLOCATED, value)


def test_locks_of_both_forms_decode() -> None:
    assert node_annotations.lock("2025-10-20T03:07:02Z,team-a,train-0") == Lock("team-a", "train-0")
    assert node_annotations.lock("2025-10-20T03:07:02.5+08:00") == Lock()


@pytest.mark.parametrize(
    "value", ["", "2025-10-20", "2025-13-20T03:07:02Z", "2025-10-20T03:07:02Z,a,", "t,a,b,c"]
)
def test_a_bad_lock_is_refused(value: str) -> None:
    with pytest.raises(MalformedError):
        node_annotations.lock(value)


def test_a_code_is_made_as_the_design_says() -> None:
    """The expected value was made with openssl dgst -sha256 -hmac, not with any code of ours."""
    code = pod_annotations.mac(b"k" * 32, uid="u", node="n", devices="GPU-a,NVIDIA,1,1:;")
    assert code == "v1:5e318f8c:n1Y90VJ5kScrAMTGTr8KrHFL4F4wCWAv20PI-WND6no"
    assert pod_annotations.mac_key_id(code) == "5e318f8c"
    assert pod_annotations.mac_holds(
        [b"x" * 32, b"k" * 32], code, uid="u", node="n", devices="GPU-a,NVIDIA,1,1:;"
    )
    for changed in ({"uid": "v"}, {"node": "m"}, {"devices": ""}):
        whole = {"uid": "u", "node": "n", "devices": "GPU-a,NVIDIA,1,1:;", **changed}
        assert not pod_annotations.mac_holds([b"k" * 32], code, **whole)


def test_a_code_of_form_v3_is_made_as_the_design_says() -> None:
    """The expected value was made with openssl dgst and pkeyutl, not with any code of ours."""
    granted = {"uid": "u", "node": "n", "devices": "GPU-a,NVIDIA,1,1:;"}
    code = pod_annotations.mac_v3(b"k" * 32, **granted)
    assert code == (
        "v3:e2e84879:"
        "dGV1KZOSYPjMVPCbus27lQZuyUTwrObk40dBTQedRtC2iQgJ6SSbxCSKvjWhk4oYiWw7B6vYJEdF2vwluB-CBg:"
        "HQQU1QRq1gjmSQluT30t-ssbn_n-M7PfjxwNhkO3s1c"
    )
    assert pod_annotations.mac_key_id(code) == "e2e84879"
    assert pod_annotations.mac_holds([b"x" * 32, b"k" * 32], code, **granted)
    value = grant.Grant(uid="u", node="n", devices={ALLOCATED: granted["devices"]})
    assert SigningKey(b"k" * 32).sign(value.text()) == code  # the product's own code
    for changed in ({"uid": "v"}, {"node": "m"}, {"devices": ""}):
        assert not pod_annotations.mac_holds([b"k" * 32], code, **{**granted, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"containerIndex": -1},
        {"gpuUUID": ""},
        {"profile": ""},
        {"placement": {"start": 0}},
        {"placement": []},
        {"migUUID": "MIG-1"},
    ],
)
def test_a_bad_mig_allocation_is_refused(changed: dict[str, object]) -> None:
    good = {"gpuUUID": "GPU-a", "profile": "1g.5gb", "placement": {"start": 6, "size": 1}}
    pod_annotations.mig_allocations(json.dumps([good]))
    runtime = {"migUUID": "MIG-1", "gpuInstanceID": 0, "computeInstanceID": 0}
    pod_annotations.mig_allocations(json.dumps([{**good, **runtime}]))
    with pytest.raises(MalformedError):
        pod_annotations.mig_allocations(json.dumps([{**good, **changed}]))
    with pytest.raises(MalformedError):
        pod_annotations.mig_allocations(json.dumps([good, good]))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (7, 7), ("4k", 4000), ("16Ki", 16384), ("2Mi", 2**21), ("1.5", 0), ("-1", 0)],
)
def test_amounts_that_are_asked_for_are_read(text: object, value: int) -> None:
    one = Container("c", ContainerKind.APP, {"r": text}, running=True, ended_well=False)
    assert one.ask("r") == value


def test_the_peak_is_that_of_the_page() -> None:
    """Sidecars and apps add up, init containers count beside what runs (docs/placement.md, 7)."""
    init, sidecar, app = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
    assert pods.peak([]) == 0
    assert pods.peak([(init, 7), (sidecar, 1), (init, 5), (app, 2), (app, 3)]) == 7
    assert pods.peak([(sidecar, 4), (init, 5), (app, 2)]) == 9
    assert pods.peak([(init, 1), (app, 2), (app, 3)]) == 5


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        sample.peak("", "", 0, 1).strip(),
        sample.peak("GPU-0", "x", 0, 1).strip(),
        sample.peak("GPU-0", "a/b/c", 0, 1).strip(),
        sample.peak("GPU-0", "", -1, 1).strip(),
        sample.peak("GPU-0", "", 0, -1).strip(),
        sample.peak("GPU-0", "", 0, 1, total=0).strip(),
        sample.peak("GPU-0", "", 0, 1).strip()[:-1] + ',"more":1}',
        sample.peak("GPU-0", "", 0, 1).replace("1785320000.25", '"now"').strip(),
        sample.peak("GPU-0", "", 0, 1).replace("1785320000.25", "NaN").strip(),
        sample.peak("GPU-" + "0" * 4096, "", 0, 1).strip(),
    ],
)
def test_a_bad_line_of_the_drivers_record_is_reported_and_the_others_count(line: str) -> None:
    good = sample.peak("GPU-0", "u/c", 1, 5)
    found, bad = peaks.read(f"{good}{line}\n{good}")
    assert [peak.bytes for peak in found] == [5]
    assert [number for number, _ in bad] == [2]


def test_the_highest_line_of_the_drivers_record_counts() -> None:
    lines = [sample.peak("GPU-0", "u/c", 1, size) for size in (1, 9, 3)]
    found, bad = peaks.read("".join(lines))
    assert [peak.bytes for peak in found] == [9]
    assert bad == []


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "1",
        '{"time": "x", "type": "ADDED", "object": {"kind": "Pod"}}',
        '{"time": 1, "type": "ERROR", "object": {"kind": "Status"}}',
        '{"time": 1, "type": "ADDED", "object": {}}',
        '{"time": 1, "type": "ADDED"}',
    ],
)
def test_a_bad_line_of_the_timeline_is_reported_and_the_others_count(line: str) -> None:
    good = timeline.line(1.0, "ADDED", {"kind": "Pod"})
    seen, bad = timeline.read(f"{good}{line}\n{good}")
    assert len(seen) == 2
    assert [number for number, _ in bad] == [2]


@given(st.text(max_size=60))
def test_nothing_but_malformed_escapes_the_readers_of_text(text: str) -> None:
    for read in (
        node_annotations.lock,
        node_annotations.handshake,
        node_annotations.pair_scores,
        node_annotations.binding_mark,
        node_annotations.closed,
        pod_annotations.unix_seconds,
        pod_annotations.mac_key_id,
        pod_annotations.mig_allocations,
    ):
        with contextlib.suppress(MalformedError):
            read(text)
    for key in (NVIDIA_REGISTER, COLON):
        with contextlib.suppress(MalformedError):
            node_annotations.register(key, text)
    for key in (ALLOCATED, "hami.io/dcu-devices-allocated"):
        with contextlib.suppress(MalformedError):
            pod_annotations.device_list(key, text)
    peaks.read(text)
    timeline.read(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "count", "uid", "pod", "devices", "kind", "cdiVersion", "containerEdits"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_nothing_but_malformed_escapes_the_readers_of_files(value: object) -> None:
    content = json.dumps(value).encode()
    for read in (claims.json_policy, claims.json_ledger):
        with contextlib.suppress(MalformedError):
            read(content)
    with contextlib.suppress(MalformedError):
        claims.spec_env(content, "kind", "token")
    with contextlib.suppress(MalformedError):
        node_annotations.register(NVIDIA_REGISTER, content.decode())


def test_a_spec_describes_one_device_only() -> None:
    spec = json.loads(sample.spec("k", "t", A="1"))
    assert claims.spec_env(json.dumps(spec).encode(), "k", "t") == {"A": "1"}
    spec["devices"] *= 2
    with pytest.raises(MalformedError, match="not just t"):
        claims.spec_env(json.dumps(spec).encode(), "k", "t")


def test_long_values_are_cut_in_messages() -> None:
    assert len(malformed.shown("x" * 500)) == 121
