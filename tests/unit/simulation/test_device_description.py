"""The description of simulated devices: what it says, and each mistake named."""

from __future__ import annotations

import pytest

from hami.simulation import catalogue, description
from hami.vendors import table
from hami.vendors.config_file import ConfigError

VENDORS = table.built_in()


def parse(text: str) -> description.Description:
    return description.parse(text, VENDORS, source="devices.yaml")


def one(**fields: object) -> str:
    return f"nodes:\n- devices:\n  - {fields}"


def test_the_first_entry_that_matches_a_node_counts() -> None:
    found = parse(
        """
nodes:
- names: [gpu-a, big-*]
  devices:
  - {model: A100-40GB, cards: 2, unhealthy: [1], numaNodes: 2}
  - {vendor: DCU, model: DCU-X, memory: 1000, cores: 50, shares: 3}
- devices: [{model: T4}]
"""
    )
    first, second = found.of_node("big-7")
    assert (first.vendor, first.type, first.cards) == ("NVIDIA", "NVIDIA A100-SXM4-40GB", 2)
    assert (first.memory, first.cores, first.shares, first.unhealthy) == (40960, 100, 10, (1,))
    assert (second.vendor, second.type, second.cards) == ("DCU", "DCU-X", 1)
    assert (second.memory, second.cores, second.shares) == (1000, 50, 3)
    assert found.of_node("gpu-a") == (first, second)
    assert [each.type for each in found.of_node("other")] == ["NVIDIA-Tesla T4"]


def test_a_node_that_no_entry_names_has_no_cards() -> None:
    assert parse("nodes:\n- names: [a]\n  devices: [{model: T4}]").of_node("b") == ()


def test_every_vendor_has_a_model() -> None:
    known = catalogue.built_in()
    assert {each.vendor for each in known.model} == {each.name for each in VENDORS}
    assert {each.vendor for each in known.plugin} <= {each.name for each in VENDORS}
    for each in known.model:
        assert len(parse(one(model=each.name, cards=2)).of_node("n")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "",
            "devices.yaml: nodes: null must be a list of at least one entry; write at least\nno",
        ),
        ("nodes: []", "devices.yaml: nodes: [] must be a list of at least one entry"),
        (
            "nodes: [{devices: [{model: T4}]}]\nnode: 1",
            "node: no such key; did you mean nodes?; correct its name",
        ),
        ("nodes: [3]", r"nodes[0]: 3 must be a mapping"),
        ("nodes: [{names: [a]}]", "nodes[0].devices: null must be a list of at least one entry"),
        ("nodes: [{names: a, devices: [{model: T4}]}]", "nodes[0].names: 'a' must be a list of at"),
        (
            "nodes: [{name: a, devices: [{model: T4}]}]",
            "nodes[0].name: no such key; correct its name",
        ),
        (
            one(model="T5"),
            "devices[0].model: 'T5' is no model that we know, and the entry names no",
        ),
        (one(model="MLU370-X9"), "did you mean MLU370-X"),
        (one(model="T5", vendor="nvidia"), "has it off; write one of NVIDIA, MLU"),
        (one(model="T5", vendor="nvidia"), "did you mean NVIDIA?"),
        (
            one(model="T4", vendor="DCU"),
            "vendor: 'DCU' is not the vendor of model T4, which is NVI",
        ),
        (one(vendor="DCU"), "devices[0].model: null must be a name of 1 to 256"),
        (one(vendor="DCU", model="a,b", memory=1), "model: 'a,b' must be a name"),
        (one(vendor="DCU", model="X"), "memory: null must be given, because X is no model"),
        (one(vendor="DCU", model="X"), "write the MiB of one card, or one of Z100, K100-AI"),
        (one(model="T4", memory=0), "memory: 0 must be a whole number from 1"),
        (one(model="T4", cards=0), "cards: 0 must be a whole number from 1 to 256"),
        (one(model="T4", cards="many"), "cards: 'many' must be a whole number"),
        (one(model="T4", shares=20001), "shares: 20001 must be a whole number from 1 to 20000"),
        (one(model="T4", cards=200, shares=200), "200 cards of NVIDIA with 40000 shares"),
        (one(model="T4", cards=2, unhealthy=[2]), "unhealthy: [2] must be a list of whole numbers"),
        (one(model="T4", cards=2, numaNodes=3), "numaNodes: 3 must be a whole number from 1 to 2"),
        (
            one(model="T4", card=2),
            "devices[0].card: no such key; did you mean cards?",
        ),
        ("nodes: [{devices: [{model: MLU370-X8}, {model: MLU370-X4}]}]", "have 2 kinds of MLU"),
        (one(model="MLU370-X8", cores=50), "cards of MLU with 50 cores; these always have 100"),
        ("nodes: [{devices: [{model: T4, model: T4}]}]", "key 'model' is written twice"),
    ],
)
def test_a_mistake_is_named_with_file_field_value_rule_and_remedy(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert str(raised.value).startswith("devices.yaml: ")
    assert says in str(raised.value)
    assert "; " in str(raised.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: object) -> None:
    with pytest.raises(
        ConfigError, match=r"devices.yaml: the file cannot be read: .*--devices-file"
    ):
        description.load(f"{tmp_path}/devices.yaml", VENDORS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[model]]\nname = 'x'", "missing required field"),
        ("[[plugin]]\nvendor = 'x'\nflag = []", "unknown field"),
        ("[[plugin]]\nvendor = 'x'\n[[plugin]]\nvendor = 'x'", "'x' is written twice"),
        ("nonsense", "catalogue.toml"),
    ],
)
def test_a_broken_catalogue_is_refused(text: str, says: str) -> None:
    with pytest.raises(catalogue.CatalogueError, match=says):
        catalogue.parse(text)
