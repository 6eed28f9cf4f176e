"""Stand-in nodes: reproducible, and clear errors for impossible ones."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from hami_sandbox import gpus
from hami_sandbox.errors import SandboxError
from hami_sandbox.gpu_models import MIB, MODELS


@pytest.fixture
def node(tmp_path: Path) -> Path:
    gpus.write_node(tmp_path / "node", [("H200", 2)], name="gpu-1")
    return tmp_path / "node"


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in gpus.LIBRARIES:
        (folder / name).touch()
    return folder


def test_a_node_has_the_cards_that_were_asked_for(tmp_path: Path) -> None:
    cards = gpus.write_node(tmp_path, [("H200", 2), ("T4", 1)], name="a")
    assert [(card.name, card.memory) for card in cards] == [
        ("NVIDIA H200", 143771 * MIB),
        ("NVIDIA H200", 143771 * MIB),
        ("Tesla T4", 15360 * MIB),
    ]
    assert gpus.read_node(tmp_path) == cards
    assert len({card.uuid for card in cards}) == len({card.bus for card in cards}) == 3


def test_uuids_belong_to_the_node_and_the_place(tmp_path: Path) -> None:
    first = gpus.write_node(tmp_path / "1", [("H200", 2)], name="a")
    again = gpus.write_node(tmp_path / "2", [("H200", 2)], name="a")
    other = gpus.write_node(tmp_path / "3", [("H200", 2)], name="b")
    assert first == again
    assert not {card.uuid for card in first} & {card.uuid for card in other}


def test_cards_lie_in_two_halves_and_behind_switches_in_pairs(tmp_path: Path) -> None:
    cards = gpus.write_node(tmp_path, [("V100", 5)], name="a")
    assert [card.numa for card in cards] == [0, 0, 0, 1, 1]
    assert [card.fields["switch"] for card in cards] == ["0", "0", "1", "1", "2"]
    assert [set(card.fields.get("nvlink", "").split(",")) for card in cards] == [
        {cards[1].bus},
        {cards[0].bus},
        {cards[3].bus},
        {cards[2].bus},
        {""},
    ]


@pytest.mark.parametrize("model", MODELS)
def test_sixteen_of_every_model_with_all_its_parts_can_be_read(tmp_path: Path, model: str) -> None:
    mig = {index: ["1g.10gb"] * 7 for index in range(16)} if MODELS[model].mig else {}
    cards = gpus.write_node(tmp_path, [(model, 16)], name="n" * 200, mig=mig)
    assert len({card.bus for card in cards}) == 16
    longest = max(len(line) for line in (tmp_path / "devices").read_bytes().splitlines())
    assert longest < 2048  # native/fakegpu/store.h


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ([("H300", 1)], "model 'H300': is not in the table; take one of B200, H200"),
        ([("H200", 0)], "0 cards H200: is less than one; leave the model out"),
        ([], "0 cards: is not from 1 to 16"),
        ([("H200", 9), ("T4", 8)], "17 cards: is not from 1 to 16"),
    ],
)
def test_cards_that_cannot_be(tmp_path: Path, cards: list[tuple[str, int]], words: str) -> None:
    with pytest.raises(SandboxError) as caught:
        gpus.write_node(tmp_path / "node", cards, name="a")
    assert words in str(caught.value)
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    ("mig", "words"),
    [
        ({2: ["1g.10gb"]}, "MIG on card 2: the node has 2; indexes start at 0"),
        ({1: ["1g.10gb"]}, "MIG on card 1: NVIDIA L4 has none; take an A100 or newer"),
        ({0: ["small"]}, "MIG profiles small: must read as 1g.10gb"),
        ({0: ["4g.40gb", "4g.40gb"]}, "7 slices together at most"),
    ],
)
def test_mig_that_cannot_be(tmp_path: Path, mig: dict[int, list[str]], words: str) -> None:
    with pytest.raises(SandboxError) as caught:
        gpus.write_node(tmp_path, [("A100-80GB", 1), ("L4", 1)], name="a", mig=mig)
    assert words in str(caught.value)


def test_a_folder_that_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"is no stand-in node .*make it with write_node"):
        gpus.read_node(tmp_path)


def test_xids_are_appended(node: Path) -> None:
    uuids = [card.uuid for card in gpus.read_node(node)]
    gpus.inject_xid(node, uuids[0], 79)
    gpus.inject_xid(node, uuids[1], 48)
    assert (node / "xids").read_text() == f"{uuids[0]}\t79\n{uuids[1]}\t48\n"


def test_xids_of_no_card_and_no_xid(node: Path) -> None:
    uuid = gpus.read_node(node)[0].uuid
    with pytest.raises(SandboxError, match=rf"card 'GPU-x': is not in .*take one of {uuid}"):
        gpus.inject_xid(node, "GPU-x", 79)
    with pytest.raises(SandboxError, match="XID 0: is not from 1 to 999"):
        gpus.inject_xid(node, uuid, 0)
    assert not (node / "xids").exists()


def test_faults_replace_the_earlier_ones(node: Path) -> None:
    uuid = gpus.read_node(node)[0].uuid
    lines = [
        "cuMemAlloc_v2 3 2",
        "cuMemAlloc_v2 3+ 2",
        "nvmlInit_v2 delay 100",
        "missing cuMemPoolCreate",
        f"card {uuid} lost",
        f"card {uuid} hide 1048576",
        "pids outer",
        "pids shifted 7",
    ]
    gpus.set_faults(node, ["missing cuInit"])
    gpus.set_faults(node, lines)
    assert (node / "faults").read_text().splitlines() == lines
    gpus.set_faults(node, [])
    assert (node / "faults").read_text() == ""


@pytest.mark.parametrize(
    "line",
    ["cuInit", "cuInit 0 2", "cuInit 1 0", "init 1 2", "card GPU-x broken", "pids inner", "a;b"],
)
def test_faults_that_nobody_would_apply(node: Path, line: str) -> None:
    with pytest.raises(SandboxError, match="is not a fault of the stand-in driver; use"):
        gpus.set_faults(node, [line])


def test_faults_of_a_card_that_is_not_there(node: Path) -> None:
    with pytest.raises(SandboxError, match="card 'GPU-x': is not in"):
        gpus.set_faults(node, ["card GPU-x lost"])


def test_a_cdi_spec_names_cards_by_index_uuid_and_all(node: Path, libraries: Path) -> None:
    spec = gpus.cdi_spec(node, libraries)
    one, two = (card.uuid for card in gpus.read_node(node))
    assert spec["kind"] == "nvidia.com/gpu"
    assert {device["name"]: device["containerEdits"]["env"] for device in spec["devices"]} == {
        "0": [f"NVIDIA_VISIBLE_DEVICES={one}"],
        "1": [f"NVIDIA_VISIBLE_DEVICES={two}"],
        one: [f"NVIDIA_VISIBLE_DEVICES={one}"],
        two: [f"NVIDIA_VISIBLE_DEVICES={two}"],
        "all": ["NVIDIA_VISIBLE_DEVICES=all"],
    }
    assert json.loads(json.dumps(spec)) == spec


def test_a_cdi_spec_brings_the_folder_and_both_libraries(node: Path, libraries: Path) -> None:
    edits = gpus.cdi_spec(node, libraries)["containerEdits"]
    target = f"/usr/lib/{platform.machine()}-linux-gnu"
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "FAKEGPU_DIR=/run/fakegpu"]
    mounts = {mount["containerPath"]: mount for mount in edits["mounts"]}
    assert {path: mount["hostPath"] for path, mount in mounts.items()} == {
        f"{target}/libcuda.so.1": str(libraries / "libcuda.so.1"),
        f"{target}/libnvidia-ml.so.1": str(libraries / "libnvidia-ml.so.1"),
        "/run/fakegpu": str(node),
    }
    assert "ro" in mounts[f"{target}/libcuda.so.1"]["options"]
    assert "rw" in mounts["/run/fakegpu"]["options"]
    assert "deviceNodes" not in edits


def test_a_cdi_spec_has_the_mig_devices(tmp_path: Path, libraries: Path) -> None:
    [card] = gpus.write_node(tmp_path / "n", [("H200", 1)], name="a", mig={0: ["1g.18gb"]})
    [part] = gpus.mig_uuids(card)
    assert part.startswith("MIG-")
    assert part in {
        device["name"] for device in gpus.cdi_spec(tmp_path / "n", libraries)["devices"]
    }


def test_a_cdi_spec_needs_the_libraries(node: Path, tmp_path: Path, libraries: Path) -> None:
    (libraries / "libcuda.so.1").unlink()
    with pytest.raises(SandboxError, match=r"has no libcuda.so.1; build them with `make native`"):
        gpus.cdi_spec(node, libraries)
