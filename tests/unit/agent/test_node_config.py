"""Settings by node: what is written counts, and errors are told to those they concern."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hami.agent.cards import node_config
from hami.agent.cards.node_config import NodeConfig
from hami.vendors.config_file import ConfigError
from hami.vendors.device_config import NvidiaSettings

HAMI_SAMPLE = """{"nodeconfig": [
  {"name": "node-a", "operatingmode": "hami-core", "devicesplitcount": 10,
   "devicememoryscaling": 1.8, "devicecorescaling": 1, "preconfigureddevicememory": 0,
   "libcudaloglevel": "1", "enablenumatopology": false, "migstrategy": "none",
   "filterdevices": {"uuid": ["GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"], "index": [0]},
   "enablegetpreferredallocation": false}
]}"""

OTHERS = NvidiaSettings(
    device_split_count=4,
    device_memory_scaling=2.0,
    device_core_scaling=3.0,
    pre_configured_device_memory=8000,
    lib_cuda_log_level=3,
    enable_numa_topology=True,
    disable_core_limit=True,
    gpu_core_policy="force",
)


def parse(text: str, *, node: str = "node-a", **base: Any) -> NodeConfig:
    return node_config.parse(text, source="config.json", node=node, base=NodeConfig(**base))


def entry(**values: Any) -> str:
    return json.dumps({"nodeconfig": [{"name": "node-a", **values}]})


def test_hamis_sample_is_understood() -> None:
    config = parse(HAMI_SAMPLE, nvidia=OTHERS, mig_strategy="mixed")
    assert config.nvidia == NvidiaSettings(
        device_split_count=10,
        device_memory_scaling=1.8,
        device_core_scaling=1.0,
        pre_configured_device_memory=0,
        lib_cuda_log_level=1,
        enable_numa_topology=False,
        # What no node can change stays.
        disable_core_limit=True,
        gpu_core_policy="force",
    )
    assert config.operating_mode == "hami-core"
    assert config.mig_strategy == "none"
    assert config.filter_uuids == {"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"}
    assert config.filter_indexes == {0}
    assert config.preferred_allocation is False
    assert config.warnings == ()


def test_zero_and_false_count_as_they_are_written() -> None:
    config = parse(
        entry(
            devicesplitcount=0,
            preconfigureddevicememory=0,
            libcudaloglevel=0,
            enablenumatopology=False,
        ),
        nvidia=OTHERS,
    )
    assert config.nvidia.device_split_count == 0
    assert config.nvidia.pre_configured_device_memory == 0
    assert config.nvidia.lib_cuda_log_level == 0
    assert config.nvidia.enable_numa_topology is False


@pytest.mark.parametrize("text", ["{}", '{"nodeconfig": null}', '{"nodeconfig": []}', entry()])
def test_what_is_not_written_is_as_on_all_nodes(text: str) -> None:
    config = parse(text, nvidia=OTHERS, mig_strategy="single")
    assert config == NodeConfig(nvidia=OTHERS, mig_strategy="single")
    assert config.preferred_allocation is True


def test_null_is_not_written() -> None:
    nothing = dict.fromkeys(["operatingmode", "devicesplitcount", "filterdevices", "migstrategy"])
    assert parse(entry(**nothing), nvidia=OTHERS) == NodeConfig(nvidia=OTHERS)
    assert parse(entry(filterdevices={"uuid": None, "index": []})) == NodeConfig()


def test_keys_count_without_regard_to_case() -> None:
    ours = {"Name": "node-a", "deviceSplitCount": 3, "filterDevices": {"UUID": ["x"]}}
    config = parse(json.dumps({"NodeConfig": [ours]}))
    assert config.nvidia.device_split_count == 3
    assert config.filter_uuids == {"x"}


def test_mps_is_a_label() -> None:
    assert parse(entry(operatingmode="mps")).operating_mode == "mps"


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": (
        {"devicesplitcont": 3},
        ("nodeconfig[0].devicesplitcont", "3", "did you mean devicesplitcount?"),
    ),
    "unknown filter": (
        {"filterdevices": {"uuids": ["x"]}},
        ("nodeconfig[0].filterdevices.uuids", "did you mean uuid?"),
    ),
    "half a share": ({"devicesplitcount": 1.5}, ("devicesplitcount", "1.5", "whole number")),
    "negative": ({"devicesplitcount": -1}, ("-1", "from 0")),
    "no memory": ({"devicememoryscaling": 0}, ("devicememoryscaling", "0.01", "write 1")),
    "no cores": ({"devicecorescaling": 0}, ("devicecorescaling", "0.01")),
    "a word": ({"enablenumatopology": "perhaps"}, ("perhaps", "true or false")),
    "an object": ({"devicesplitcount": {"a": 1}}, ("devicesplitcount", "whole number")),
    "dynamic MIG": ({"operatingmode": "mig"}, ("operatingmode", "not do yet", "mixed")),
    "unknown mode": ({"operatingmode": "hami"}, ("hami", "hami-core, mps")),
    "unknown strategy": ({"migstrategy": "all"}, ("all", "none, single, mixed")),
    "filter is a list": ({"filterdevices": ["x"]}, ("nodeconfig[0].filterdevices", "uuid, index")),
    "uuid is a text": ({"filterdevices": {"uuid": "x"}}, ("filterdevices.uuid", "list")),
    "uuid is a number": ({"filterdevices": {"uuid": [1]}}, ("filterdevices.uuid", "texts")),
    "index is a text": ({"filterdevices": {"index": ["0"]}}, ("filterdevices.index", "whole")),
    "index is a switch": ({"filterdevices": {"index": [True]}}, ("filterdevices.index", "whole")),
    "index below 0": ({"filterdevices": {"index": [-1]}}, ("filterdevices.index", "from 0")),
}


@pytest.mark.parametrize(("values", "told"), WRONG.values(), ids=WRONG)
def test_an_error_in_our_entry_is_named(values: dict[str, Any], told: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(entry(**values))
    message = str(caught.value)
    assert message.startswith("config.json: nodeconfig[0]")
    for part in told:
        assert part in message


@pytest.mark.parametrize(("values", "_told"), WRONG.values(), ids=WRONG)
def test_an_error_in_anothers_entry_does_not_hurt_us(values: dict[str, Any], _told: object) -> None:
    text = json.dumps(
        {"nodeconfig": [{"name": "node-b", **values}, {"name": "node-a", "devicesplitcount": 7}]}
    )
    config = parse(text)
    assert config.nvidia.device_split_count == 7
    assert config.warnings == ()


@pytest.mark.parametrize("other", ["7", "null", '"node-a"', "{}", '{"name": 3}', "[]"])
def test_an_entry_of_nobody_is_passed_over_and_told(other: str) -> None:
    text = f'{{"nodeconfig": [{other}, {{"name": "node-a", "devicesplitcount": 7}}]}}'
    config = parse(text)
    assert config.nvidia.device_split_count == 7
    assert config.warnings == ("config.json: nodeconfig[0]: has no name, so no node reads it",)


@pytest.mark.parametrize("number", ["1e999", "9" * 5000, "-1e999", "NaN", "Infinity"])
def test_a_number_beyond_measure_is_an_error_where_it_is_ours_only(number: str) -> None:
    text = f'{{"nodeconfig": [{{"name": "node-b", "devicesplitcount": {number}}}]}}'
    assert parse(text) == NodeConfig()
    with pytest.raises(ConfigError, match=r"nodeconfig\[0\]\.devicesplitcount: .*whole number"):
        parse(text, node="node-b")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"nodeconfig": [{"name": "node-a"}, {"name": "node-a"}]}', "more than one entry"),
        (
            '{"nodeconfig": [{"name": "node-a", "devicesplitcount": 1, "DeviceSplitCount": 2}]}',
            r"nodeconfig\[0\]\.devicesplitcount: is written twice",
        ),
        ('{"nodeconfig": [], "NodeConfig": []}', "nodeconfig: is written twice"),
        ('{"nodeconfigs": []}', "nodeconfigs: .*did you mean nodeconfig?"),
        ('{"nodeconfig": {"name": "node-a"}}', "must be a list"),
        ("[]", "is not a JSON object"),
        ("", "line 1, column 1: the file is not JSON"),
        ('{"nodeconfig": [\n  {"name": "node-a",}\n]}', "line 2, column"),
        ('{"nodeconfig": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_understood_is_an_error(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse(text)


def test_a_key_beside_the_list_is_told() -> None:
    config = parse('{"nodeconfig": [], "version": 1}')
    assert config.warnings == ("config.json: version: no such key, ignored",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@hypothesis.given(st.dictionaries(st.sampled_from(node_config.KEYS), JSON), st.integers(0, 2))
def test_whatever_stands_there_it_is_taken_or_a_config_error(
    values: dict[str, Any], place: int
) -> None:
    others = [{"name": f"other-{number}", **values} for number in range(place)]
    text = json.dumps({"nodeconfig": [*others, {**values, "name": "node-a"}]})
    try:
        config = parse(text)
    except ConfigError as error:
        assert f"nodeconfig[{place}]" in str(error)  # noqa: PT017 - it may be taken as well
    else:
        assert config.nvidia.device_split_count >= 0


@hypothesis.given(st.text() | st.text(alphabet='{}[]",:nodecfig "'))
def test_any_text_is_taken_or_a_config_error(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert str(error).startswith("config.json: ")  # noqa: PT017 - it may be taken as well


# From disk.


def load(path: str | pathlib.Path, **more: Any) -> NodeConfig:
    values = {"node": "node-a", "defaults": OTHERS, "mig_strategy": "single", **more}
    return node_config.load(path, **values)


def test_without_a_file_all_nodes_are_alike(tmp_path: pathlib.Path) -> None:
    alike = NodeConfig(nvidia=OTHERS, mig_strategy="single")
    assert load("") == alike
    assert load(tmp_path / "config.json") == alike


def test_the_file_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(HAMI_SAMPLE)
    assert load(path).nvidia.device_memory_scaling == 1.8
    assert load(path, node="node-b").nvidia.device_memory_scaling == 2.0


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "dangling")


def test_an_unknown_strategy_is_an_error_of_its_flag() -> None:
    with pytest.raises(ConfigError, match="--mig-strategy: 'both' is not known; write one of none"):
        load("", mig_strategy="both")
