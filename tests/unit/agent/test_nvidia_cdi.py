"""Cards come into containers by what NVIDIA's own spec says of them, and of no other card.

cdi/ holds specs in the shape that NVIDIA's tools of several versions give them, written by hand and
cut to one entry of each sort; none was recorded on a node. expected-<spec>.json is what becomes of
them. To change those on purpose, run with HAMI_GOLDEN=write and read the diff.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hami.agent.containers.nvidia_cdi import NvidiaCdiError, NvidiaSpecs
from hami.agent.containers.prepare import PrepareError
from hami_sandbox import gpus
from tests.unit.agent.preparing import ALLOCATION_ID, FIRST, MIG, SECOND, Desk, grant

GOLDEN = Path(__file__).parent / "cdi"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, injection="cdi")


def take(desk: Desk, *specs: str) -> None:
    for spec in specs:
        shutil.copy(GOLDEN / spec, desk.nvidia)


def nodes(desk: Desk) -> list[str]:
    return [node["path"] for node in desk.edits().get("deviceNodes", [])]


@pytest.mark.parametrize(
    ("spec", "cards"),
    [
        ("toolkit-1.17.yaml", [SECOND, FIRST]),
        ("toolkit-1.18.yaml", [FIRST, SECOND]),
        ("toolkit-1.12.yaml", [SECOND]),
        ("toolkit-1.17-mig.yaml", [MIG]),
        ("device-plugin.json", [FIRST]),
    ],
)
def test_each_shape_of_spec(desk: Desk, spec: str, cards: list[str]) -> None:
    take(desk, spec)
    desk.preparer.prepare(desk.share(*(grant(card) for card in cards)), cdi=True)
    found = json.dumps(desk.spec(), indent=2) + "\n"
    golden = GOLDEN / f"expected-{Path(spec).stem}.json"
    if os.environ.get("HAMI_GOLDEN") == "write":
        golden.write_text(found)
    assert json.loads(found) == json.loads(golden.read_text())


def test_the_runtime_adds_nothing_to_what_was_merged(desk: Desk) -> None:
    """Also where the spec is so old that it does not say so, and the image says `all`."""
    take(desk, "toolkit-1.12.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_whole_cards_get_the_drivers_edits_only(desk: Desk) -> None:
    take(desk, "toolkit-1.17.yaml")
    desk.preparer.prepare(desk.share(exempt=True), cdi=True)
    assert desk.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "/dev/nvidia0" in nodes(desk)
    assert "/dev/nvidia1" not in nodes(desk)
    inside = [mount["containerPath"] for mount in desk.edits()["mounts"]]
    assert "/etc/ld.so.preload" not in inside
    assert "/usr/bin/nvidia-smi" in inside


def test_where_cards_edits_name_them_all_are_named(desk: Desk, tmp_path: Path) -> None:
    """As the stand-in driver's spec does."""
    cards = gpus.write_node(tmp_path / "gpus", [("A10", 2)], name="node")
    place = gpus.driver_folder()
    spec = gpus.cdi_spec(tmp_path / "gpus", place)
    (desk.nvidia / "nvidia.json").write_text(json.dumps(spec))
    for index, card in enumerate(cards):
        desk.devices[card.uuid] = desk.devices[FIRST].__class__(id=card.uuid, index=index)
    shares = [grant(card.uuid) for card in reversed(cards)]
    desk.preparer.prepare(desk.share(*shares), cdi=True)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == f"{cards[1].uuid},{cards[0].uuid}"
    assert desk.env()["FAKEGPU_DIR"] == gpus.IN_CONTAINER


def test_our_limits_go_before_nvidias_variables(desk: Desk) -> None:
    spec = json.loads((GOLDEN / "device-plugin.json").read_text())
    spec["containerEdits"]["env"].append("CUDA_DEVICE_MEMORY_LIMIT_0=999999m")
    (desk.nvidia / "spec.json").write_text(json.dumps(spec))
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.env()["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


def test_a_mig_device_is_never_taken_for_the_card_of_that_index(desk: Desk) -> None:
    take(desk, "toolkit-1.12.yaml")
    desk.devices[MIG] = desk.devices[FIRST]
    with pytest.raises(PrepareError, match=MIG):
        desk.preparer.prepare(desk.share(grant(MIG)), cdi=True)


def test_a_card_that_came_after_the_spec_is_not_taken_for_another(desk: Desk) -> None:
    """The spec has index 0 and 1, but it names their UUIDs too, and this is neither."""
    take(desk, "toolkit-1.17.yaml")
    desk.devices["GPU-new"] = desk.devices[FIRST]
    with pytest.raises(PrepareError, match="GPU-new") as error:
        desk.preparer.prepare(desk.share(grant("GPU-new")), cdi=True)
    assert "nvidia-ctk cdi generate" in error.value.remedy
    assert not desk.layout.spec(ALLOCATION_ID).exists()


def test_nvidias_own_kind_goes_first_and_management_specs_never_count(desk: Desk) -> None:
    take(desk, "management.json")
    with pytest.raises(PrepareError, match=FIRST):
        desk.preparer.prepare(desk.share(), cdi=True)
    take(desk, "device-plugin.json")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.edits()["hooks"][0]["path"] == "/usr/local/nvidia/toolkit/nvidia-ctk"
    take(desk, "toolkit-1.18.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.edits()["hooks"][0]["args"][1] == "disable-device-node-modification"
    assert desk.spec()["cdiVersion"] == "0.7.0"


def test_a_spec_with_all_cards_goes_before_one_with_some(desk: Desk) -> None:
    take(desk, "device-plugin.json")
    spec = json.loads((GOLDEN / "device-plugin.json").read_text())
    spec |= {"kind": "nvidia.com/gpu", "devices": spec["devices"][:1]}
    spec["devices"][0]["containerEdits"] = {"deviceNodes": [{"path": "/dev/other"}]}
    (desk.nvidia / "stale.json").write_text(json.dumps(spec))
    desk.preparer.prepare(desk.share(grant(FIRST), grant(SECOND)), cdi=True)
    assert "/dev/other" not in nodes(desk)
    desk.preparer.prepare(desk.share(grant(FIRST)), cdi=True)
    assert "/dev/other" in nodes(desk)


def test_cards_of_two_specs_come_with_what_both_make_for_all(desk: Desk) -> None:
    whole: dict[str, Any] = json.loads((GOLDEN / "device-plugin.json").read_text())
    for number, device in enumerate(whole["devices"]):
        common = {"deviceNodes": [{"path": "/dev/common"}, {"path": f"/dev/only{number}"}]}
        spec = {**whole, "devices": [device], "containerEdits": common}
        (desk.nvidia / f"{number}.json").write_text(json.dumps(spec))
    desk.preparer.prepare(desk.share(grant(FIRST), grant(SECOND)), cdi=True)
    assert nodes(desk) == [
        *("/dev/common", "/dev/only0", "/dev/nvidia0"),
        *("/dev/only1", "/dev/nvidia1"),
    ]


def test_a_spec_that_changes_is_read_again(desk: Desk) -> None:
    take(desk, "toolkit-1.12.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.spec()["cdiVersion"] == "0.5.0"
    take(desk, "toolkit-1.18.yaml")
    (desk.nvidia / "toolkit-1.12.yaml").unlink()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.spec()["cdiVersion"] == "0.7.0"
    (desk.nvidia / "toolkit-1.18.yaml").unlink()
    with pytest.raises(PrepareError):
        desk.preparer.prepare(desk.share(), cdi=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json", b'{"cdiVersion": "0.5.0", "kind"'),
        ("text.yaml", b"- just\n- text\n"),
        ("tabs.yaml", b"kind:\n\t- x"),
        ("bytes.yaml", b"\xff\xfe\x00"),
        ("deep.yaml", b"[" * 5000),
        ("no-kind.yaml", b"cdiVersion: 0.5.0\ndevices: []\n"),
        ("empty.yaml", b""),
    ],
)
def test_a_bad_file_hurts_no_other_and_is_named(desk: Desk, name: str, content: bytes) -> None:
    (desk.nvidia / name).write_bytes(content)
    with pytest.raises(PrepareError, match=name):
        desk.preparer.prepare(desk.share(), cdi=True)
    take(desk, "toolkit-1.17.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert "/dev/nvidia0" in nodes(desk)


def test_links_to_nowhere_folders_and_drafts_are_passed_over(desk: Desk) -> None:
    take(desk, "toolkit-1.17.yaml")
    (desk.nvidia / "gone.json").symlink_to("nowhere")
    (desk.nvidia / ".draft.json").write_text("{")
    (desk.nvidia / f"hami.io-vgpu-{ALLOCATION_ID}.json").write_text("{")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert "/dev/nvidia0" in nodes(desk)


def test_the_last_folder_goes_first_and_none_need_be_there(tmp_path: Path) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    specs = NvidiaSpecs([etc, run])
    with pytest.raises(NvidiaCdiError, match=f"{etc}, {run}"):
        specs.merged([(FIRST, 0)])
    for folder, spec in ((etc, "toolkit-1.17.yaml"), (run, "toolkit-1.18.yaml")):
        folder.mkdir()
        shutil.copy(GOLDEN / spec, folder / "nvidia.yaml")
    assert specs.merged([(FIRST, 0)]).cdi_version == "0.7.0"


def test_by_itself_the_runtime_is_told_where_no_spec_has_the_card(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == FIRST
    take(desk, "toolkit-1.17.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_where_the_runtime_is_wanted_specs_are_not_asked(tmp_path: Path) -> None:
    desk = Desk(tmp_path, injection="runtime")
    take(desk, "toolkit-1.17.yaml")
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == FIRST
    assert nodes(desk) == []


def test_without_cdi_nothing_is_merged(desk: Desk, tmp_path: Path) -> None:
    """What kubelet's answer can carry is no hook: NVIDIA's runtime brings the card."""
    take(desk, "toolkit-1.17.yaml")
    with pytest.raises(PrepareError, match="driver-injection=cdi"):
        desk.preparer.prepare(desk.share(), cdi=False)
    (tmp_path / "either").mkdir()
    either = Desk(tmp_path / "either", injection="auto")
    take(either, "toolkit-1.17.yaml")
    edits = either.preparer.prepare(either.share(), cdi=False)
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == FIRST
    assert (edits.device_nodes, edits.hooks, edits.driver_mounts) == ((), (), ())


def test_a_device_can_be_asked_for_by_its_full_name(desk: Desk) -> None:
    specs = NvidiaSpecs([desk.nvidia])
    assert specs.qualified_name(MIG) == ""
    take(desk, "toolkit-1.17-mig.yaml", "device-plugin.json")
    assert specs.qualified_name(MIG) == f"nvidia.com/gpu={MIG}"
    assert specs.qualified_name(FIRST) == f"k8s.device-plugin.nvidia.com/gpu={FIRST}"
    assert specs.qualified_name("GPU-other") == ""
