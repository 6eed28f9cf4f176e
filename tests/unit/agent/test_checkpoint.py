"""kubelet's checkpoint is read as kubelet writes it; where it is anything else, it is refused."""

from __future__ import annotations

import base64
import json
import os
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError, Kind
from hami.agent.kubelet.kubelet_api import AllocateResponse
from tests.e2e.kubelet_api import checkpoint as theirs
from tests.e2e.kubelet_api import checksum
from tests.unit.e2e_tools.test_bare_plugin_checkpoint import EMPTY, FULL

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.none() | st.lists(TEXTS, max_size=4)
ENTRIES = st.fixed_dictionaries(
    {
        "PodUID": TEXTS,
        "ContainerName": TEXTS,
        "ResourceName": st.sampled_from(["nvidia.com/gpu", "a.com/x", "ü/<&>"]),
        "DeviceIDs": st.none()
        | st.dictionaries(st.integers(-(2**63), 2**63 - 1).map(str), IDS, max_size=3),
        "AllocResp": st.none()
        | st.binary(max_size=300).map(lambda data: base64.b64encode(data).decode()),
    }
)
DATA = st.fixed_dictionaries(
    {
        "PodDeviceEntries": st.none() | st.lists(ENTRIES, max_size=4),
        "RegisteredDevices": st.none() | st.dictionaries(TEXTS, IDS, max_size=3),
    }
)
ALLOCATION_ID = "0123456789abcdef" * 2


def written(data: dict[str, Any]) -> bytes:
    """Return the file that kubelet would write, by the tests' own checksum."""
    whole: dict[str, Any] = {"Data": data, "Checksum": 0}
    whole["Checksum"] = checksum.of(whole)
    return json.dumps(whole).encode()


def entry(**fields: Any) -> dict[str, Any]:
    usual = {
        "PodUID": "uid-1",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"-1": ["a"]},
        "AllocResp": "",
    }
    return {**usual, **fields}


def data_of(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}


@given(DATA)
def test_every_file_with_kubelets_checksum_is_read(data: dict[str, Any]) -> None:
    content = written(data)
    read, expected = checkpoint.parse(content), theirs.parse(content)
    assert [(e.pod_uid, e.container, e.resource, e.device_ids, e.answer) for e in read.entries] == [
        (e.pod_uid, e.container, e.resource, e.device_ids, e.answer) for e in expected.entries
    ]
    assert read.registered == {name: frozenset(ids) for name, ids in expected.registered.items()}


@given(DATA, st.integers(0, 2**64 - 1))
def test_another_checksum_is_refused(data: dict[str, Any], wrong: int) -> None:
    whole: dict[str, Any] = {"Data": data, "Checksum": 0}
    if wrong == checksum.of(whole):
        wrong += 1
    with pytest.raises(CheckpointError, match=rf"checksum {wrong}, but") as caught:
        checkpoint.parse(json.dumps({**whole, "Checksum": wrong}).encode())
    assert caught.value.kind is Kind.SHAPE


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | TEXTS,
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["Data", "Checksum", "PodDeviceEntries", "RegisteredDevices"]),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_a_shape_that_we_do_not_know(content: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.parse(content)
    assert caught.value.kind is Kind.SHAPE


@pytest.mark.parametrize(
    ("old", "new"),
    [("uid-1", "uid-9"), ('"x","y"', '"y","x"'), ('"example.com/other":[]', '"b.com/y":[]')],
)
def test_kubelets_own_files_are_read_and_a_change_in_them_is_seen(old: str, new: str) -> None:
    first, second = checkpoint.parse(FULL.encode()).entries
    assert (first.pod_uid, first.container) == ("uid-1", "init")
    assert first.device_ids == {"vgpu-001", "vgpu-002"}
    assert first.response().cdi_devices == ("bare.hami.io/vgpu=t1",)
    assert second.container == "<ma&in>ü"
    assert second.device_ids == {"x", "y", "z"}
    assert checkpoint.parse(EMPTY.encode()).entries == ()
    changed = FULL.replace(old, new)
    assert changed != FULL
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.parse(changed.encode())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"PodUID": None}, "PodDeviceEntries"),
        ({"DeviceIDs": ["a"]}, "DeviceIDs"),  # as kubelet wrote it before 1.20
        ({"DeviceIDs": {"x": ["a"]}}, "DeviceIDs"),
        ({"DeviceIDs": {"0": [1]}}, "DeviceIDs"),
        ({"AllocResp": "%"}, "AllocResp"),
        ({"Claim": "new"}, "unknown field `Claim`"),
    ],
)
def test_an_entry_of_another_shape_is_refused_with_its_place(
    changes: dict[str, Any], complaint: str
) -> None:
    whole = {"Data": data_of(entry(**changes)), "Checksum": 1}
    with pytest.raises(CheckpointError, match=complaint) as caught:
        checkpoint.parse(json.dumps(whole).encode())
    assert caught.value.kind is Kind.SHAPE


def test_a_broken_answer_harms_only_its_own_entry() -> None:
    broken = entry(AllocResp="/w==", PodUID="uid-7", ContainerName="odd")
    read = checkpoint.parse(written(data_of(broken, entry())))
    with pytest.raises(CheckpointError, match=r"container 'odd' of pod uid-7") as caught:
        read.entries[0].response()
    assert caught.value.kind is Kind.ANSWER
    assert read.entries[1].response() == AllocateResponse()


def test_a_file_that_is_missing_or_cannot_be_read_is_told_apart(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    with pytest.raises(CheckpointError, match=rf"{path}: does not exist") as caught:
        checkpoint.read(path)
    assert caught.value.kind is Kind.MISSING
    path.mkdir()
    with pytest.raises(CheckpointError, match=rf"{path}: cannot be read") as caught:
        checkpoint.read(path)
    assert caught.value.kind is Kind.UNREADABLE


def test_a_file_is_judged_once_and_a_new_one_is_always_seen(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    first, second = (written(data_of(entry(PodUID=uid))) for uid in ("uid-1", "uid-2"))
    path.write_bytes(first)
    read = checkpoint.read(path)
    assert checkpoint.read(path) is read
    times = path.stat()
    path.write_bytes(second)  # the same inode and size
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert checkpoint.read(path).entries[0].pod_uid == "uid-2"
    path.write_bytes(b"{}")
    with pytest.raises(CheckpointError):
        checkpoint.read(path)
    path.write_bytes(first)
    assert checkpoint.read(path).entries[0].pod_uid == "uid-1"


@pytest.mark.parametrize(
    ("response", "allocation_id"),
    [
        (AllocateResponse(annotations={"hami.io/vgpu-token": ALLOCATION_ID}), ALLOCATION_ID),
        (AllocateResponse(cdi_devices=(f"hami.io/vgpu={ALLOCATION_ID}",)), ALLOCATION_ID),
        (
            AllocateResponse(
                annotations={"hami.io/vgpu-token": ALLOCATION_ID},
                cdi_devices=("nvidia.com/gpu=0", f"hami.io/vgpu={ALLOCATION_ID}"),
            ),
            ALLOCATION_ID,
        ),
        (
            AllocateResponse(
                annotations={"hami.io/vgpu-token": ALLOCATION_ID},
                cdi_devices=(f"hami.io/vgpu={ALLOCATION_ID[::-1]}",),
            ),
            None,
        ),
        (AllocateResponse(annotations={"hami.io/vgpu-token": "../../etc"}), None),
        (AllocateResponse(cdi_devices=(f"bare.hami.io/vgpu={ALLOCATION_ID}",)), None),
        (AllocateResponse(), None),
    ],
)
def test_an_answer_names_its_allocation_id_once(
    response: AllocateResponse, allocation_id: str | None
) -> None:
    assert checkpoint.allocation_id_of(response) == allocation_id
