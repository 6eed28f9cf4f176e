"""kubelet 1.36.3's own checkpoint is read; anything else is an error."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.e2e.kubelet_api import checkpoint, checksum
from tests.e2e.kubelet_api.checkpoint import CheckpointError
from tests.e2e.kubelet_api.device_plugin import Mount

# Both as kubelet's code writes them, checksum included.
FULL = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1","ContainerName":"init","ResourceName":'
    '"example.com/vgpu","DeviceIDs":{"-1":["vgpu-002","vgpu-001"]},"AllocResp":"CgYKAUESATEKBwoBQhIC'
    "w7wSCgoCL2MSAi9oGAEaFAoGL2Rldi9hEgYvZGV2L2IaAnJ3IgYKAWsSAXYqFgoUYmFyZS5oYW1pLmlvL3ZncHU9dDE="
    '"},{"PodUID":"uid-2","ContainerName":"\\u003cma\\u0026in\\u003eü","ResourceName":'
    '"example.com/other","DeviceIDs":{"0":["x","y"],"10":["z"],"2":["x"]},"AllocResp":""}],'
    '"RegisteredDevices":{"a.com/x":null,"example.com/other":[],"example.com/vgpu":["vgpu-002",'
    '"vgpu-001"]}},"Checksum":2760632938}'
)
EMPTY = '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}'


def test_a_checkpoint_says_which_container_holds_what() -> None:
    read = checkpoint.parse(FULL)
    init, other = read.entries
    assert (init.pod_uid, init.container, init.resource) == ("uid-1", "init", "example.com/vgpu")
    assert init.device_ids == {"vgpu-001", "vgpu-002"}
    assert init.ids_by_numa_node == {checkpoint.NO_NUMA_NODE: ("vgpu-002", "vgpu-001")}
    assert init.allocation().cdi_devices == ("bare.hami.io/vgpu=t1",)
    assert init.allocation().mounts == (Mount("/c", "/h", read_only=True),)
    assert other.container == "<ma&in>ü"
    assert other.device_ids == {"x", "y", "z"}
    assert other.allocation().cdi_devices == ()
    assert read.of_resource("example.com/other") == (other,)
    assert read.registered == {
        "a.com/x": (),
        "example.com/other": (),
        "example.com/vgpu": ("vgpu-002", "vgpu-001"),
    }


@pytest.mark.parametrize("text", [FULL, EMPTY])
def test_the_checksum_is_the_one_that_kubelet_computes(text: str) -> None:
    assert checksum.of(json.loads(text)) == checkpoint.parse(text).checksum


@pytest.mark.parametrize(
    ("old", "new"),
    [("uid-1", "uid-9"), ('"x","y"', '"y","x"'), ('"example.com/other":[]', '"b.com/y":[]')],
)
def test_a_changed_checkpoint_has_another_checksum(old: str, new: str) -> None:
    changed = FULL.replace(old, new)
    assert changed != FULL
    assert checksum.of(json.loads(changed)) != checkpoint.parse(FULL).checksum


def test_a_node_without_devices_has_no_entries() -> None:
    assert checkpoint.parse(EMPTY) == checkpoint.Checkpoint((), {}, 3467439661)


def changed(**fields: Any) -> str:
    """Return the checkpoint with fields of its first entry changed; `...` leaves one out."""
    whole = json.loads(FULL)
    entry = whole["Data"]["PodDeviceEntries"][0]
    entry.update(fields)
    for name in [name for name, value in fields.items() if value is ...]:
        del entry[name]
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is no JSON"),
        ("[]", r"the checkpoint is \[\] where kubelet writes an object with Data"),
        ('{"Checksum":1}', r"the checkpoint has no Data, only \['Checksum'\]"),
        ('{"Data":{"PodDeviceEntries":{},"RegisteredDevices":{}},"Checksum":1}', "writes a list"),
        ('{"Data":{"PodDeviceEntries":[],"RegisteredDevices":[]},"Checksum":1}', "an object"),
        ('{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":"1"}', "a number"),
        ('{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":true}', "a number"),
        (changed(PodUID=...), r"PodDeviceEntries\[0\] has no PodUID"),
        (changed(PodUID=None), r"PodDeviceEntries\[0\].PodUID is null"),
        (changed(DeviceIDs=["a"]), r"DeviceIDs is \[\"a\"\] where kubelet writes an object"),
        (changed(DeviceIDs={"x": ["a"]}), "key 'x' is no NUMA node"),
        (changed(DeviceIDs={"0": "a"}), r"DeviceIDs\['0'\] is \"a\" .* a list of device ids"),
        (changed(DeviceIDs={"0": [1]}), r"\[1\] where kubelet writes a list of device ids"),
        (changed(AllocResp="%"), "AllocResp is no base64"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        checkpoint.parse(text)


def test_a_broken_answer_harms_only_its_own_entry() -> None:
    broken, other = checkpoint.parse(changed(AllocResp="/w==")).entries
    with pytest.raises(CheckpointError, match=r"AllocResp of container 'init' of pod uid-1"):
        broken.allocation()
    assert other.allocation().envs == {}


def test_a_file_that_is_missing_or_wrong_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    with pytest.raises(CheckpointError, match=r"cannot be read: .*kubelet_internal_checkpoint"):
        checkpoint.read(path)
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"kubelet_internal_checkpoint: .* has no Data"):
        checkpoint.read(path)
