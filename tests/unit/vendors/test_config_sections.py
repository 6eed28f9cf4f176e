"""All sections of device-config.yaml: files of HAMi, other names, mistakes."""

from __future__ import annotations

import copy
import logging
from typing import Any

import msgspec
import pytest
import yaml

from hami.vendors import config_sections, device_config, table
from hami.vendors.device_config import DeviceConfig
from tests.unit.vendors import hami_files

SOURCE = "device-config.yaml"
ROWS = {row.name: row for row in table.built_in()}
#: Of vendors that no row serves yet.
UNSERVED = {"metax", "mthreads", "kunlun", "awsneuron", "vastai", "vnpus"}


def parse(data: Any, **options: Any) -> DeviceConfig:
    text = data if isinstance(data, str) else yaml.safe_dump(data)
    return device_config.parse(text, source=SOURCE, **options)


def error_of(data: Any, **options: Any) -> str:
    with pytest.raises(device_config.ConfigError) as caught:
        parse(data, **options)
    return str(caught.value)


def names(config: DeviceConfig) -> list[str]:
    return [vendor.name for vendor in config.vendors]


def only(config: DeviceConfig) -> table.Vendor:
    """Return the vendor beside NVIDIA."""
    _, vendor = config.vendors
    return vendor


class TestAFileOfHami:
    @pytest.mark.parametrize("version", hami_files.VERSIONS)
    def test_is_accepted_as_it_is_and_leaves_the_rows_as_they_are(
        self, version: hami_files.Version
    ) -> None:
        config = parse(hami_files.text(version))

        assert config.warnings == ()
        for vendor in config.vendors:
            assert vendor == ROWS[vendor.name]

    def test_of_2_10_serves_every_vendor_but_for_the_way_of_2_8_to_share_enflame(self) -> None:
        config = parse(hami_files.text("2.10"))

        assert names(config) == [name for name in ROWS if name != "Enflame-VGCU"]
        assert set(config.unserved) == UNSERVED

    def test_of_2_8_serves_what_2_8_knew(self) -> None:
        config = parse(hami_files.text("2.8"))

        assert names(config) == [name for name in ROWS if name not in ("Enflame", "Biren")]
        assert set(config.unserved) == UNSERVED - {"vastai"}

    def test_of_2_8_allows_the_same_mig_profiles(self) -> None:
        old, new = (parse(hami_files.text(version)).nvidia for version in hami_files.VERSIONS)

        assert len(old.mig_profile_allowlist) == len(hami_files.MIG)
        assert old.mig_profile_allowlist == new.mig_profile_allowlist[: len(hami_files.MIG)]

    def test_with_both_ways_to_allow_mig_profiles_warns_of_the_older(self) -> None:
        data = hami_files.sections("2.10")
        data["nvidia"]["knownMigGeometries"] = hami_files.sections("2.8")["nvidia"][
            "knownMigGeometries"
        ]

        config = parse(data)

        assert config.nvidia == parse(hami_files.text("2.10")).nvidia
        [warning] = config.warnings
        assert "nvidia.knownMigGeometries: has no effect beside migProfileAllowlist" in warning

    @pytest.mark.parametrize(
        ("value", "place", "rule"),
        [
            ("5", "", "must be a list"),
            ("[{models: [A30]}]", "[0].allowedGeometries", "at least one"),
            ("[{allowedGeometries: [[{name: 1g.6gb}]]}]", "[0].models", "at least one text"),
            ("[{models: [A], allowedGeometries: [{name: 1g.6gb}]}]", "[0].allowedGeometries[0]",
             "must be a list"),
            ("[{models: [A], allowedGeometries: [[{name: x}]]}]",
             "[0].allowedGeometries[0][0].name", "not a MIG profile"),
            ("[{models: [A], allowedGeometries: [[{name: 1g.6gb, core: a}]]}]",
             "[0].allowedGeometries[0][0].core", "whole number"),
            ("[{models: [A], allowedGeometries: [[{name: 1g.6gb, cores: 1}]]}]",
             "[0].allowedGeometries[0][0].cores", "no such key; did you mean core?"),
            ("[{models: [A], allowedGeometries: [[{name: 1g.6gb}]], model: b}]",
             "[0].model", "no such key; did you mean models?"),
        ],
    )  # fmt: skip
    def test_with_a_mistake_in_its_mig_geometries_is_refused(
        self, value: str, place: str, rule: str
    ) -> None:
        message = error_of(f"nvidia: {{knownMigGeometries: {value}}}")

        assert f"nvidia.knownMigGeometries{place}: " in message
        assert rule in message


class TestVendorsThatAreServed:
    def test_without_a_file_all_are(self) -> None:
        config = device_config.load_or_built_in("")

        assert config.vendors == table.built_in()
        assert config.unserved == ()

    def test_a_file_for_nvidia_alone_takes_over_no_pods_of_other_vendors(self) -> None:
        assert names(parse("nvidia: {resourceCountName: nvidia.com/gpu}")) == ["NVIDIA"]

    def test_another_vendor_alone_is_enough_for_a_file(self) -> None:
        assert names(parse("hygon: {resourceCountName: hygon.com/dcunum}")) == ["NVIDIA", "DCU"]

    @pytest.mark.parametrize(
        ("section", "given", "name"),
        [
            ("cambricon", {"resourceCountName": "a.io/n", "resourceMemoryName": "a.io/m",
                           "resourceCoreName": "a.io/c"}, "MLU"),
            ("hygon", {"resourceCountName": "a.io/n", "resourceMemoryName": "a.io/m",
                       "resourceCoreName": "a.io/c"}, "DCU"),
            ("amd", {"resourceCountName": "a.io/n", "resourceMemoryName": "a.io/m",
                     "resourceCoreName": "a.io/c"}, "AMD"),
            ("biren", {"resourceCountName": "a.io/n"}, "Biren"),
            ("enflame", {"resourceNameGCU": "a.io/n"}, "GCU"),
            ("enflame", {"resourceNameDRSGCU": "a.io/n", "resourceNameGCUMemory": "a.io/m",
                         "resourceNameGCUCore": "a.io/c"}, "Enflame"),
            ("enflame", {"resourceNameVGCU": "a.io/n", "resourceNameVGCUPercentage": "a.io/m"},
             "Enflame-VGCU"),
        ],
    )  # fmt: skip
    def test_have_the_names_of_their_section(
        self, section: str, given: dict[str, str], name: str
    ) -> None:
        vendor = only(parse({section: given}))

        assert vendor.name == name
        assert vendor.resources.named() == tuple(given.values())
        assert vendor == msgspec.structs.replace(ROWS[name], resources=vendor.resources)

    def test_keep_the_names_that_the_section_does_not_give(self) -> None:
        vendor = only(parse("amd: {resourceCountName: a.io/gpu, resourceCoreName: ''}"))

        assert vendor.resources == table.ResourceNames(count="a.io/gpu", memory="amd.com/gpumem")

    @pytest.mark.parametrize(("written", "factor"), [("512", 512), ("0", 1), ("~", 1)])
    def test_count_memory_in_the_sections_unit(self, written: str, factor: int) -> None:
        vendor = only(parse(f"hygon: {{resourceCountName: a.io/n, memoryFactor: {written}}}"))

        assert vendor.memory_factor == factor

    @pytest.mark.parametrize("name", ["''", "~", "'  '"])
    def test_an_empty_name_of_the_count_switches_a_vendor_off(self, name: str) -> None:
        text = f"nvidia: {{memoryFactor: 1}}\namd: {{resourceCountName: {name}}}"

        assert names(parse(text)) == ["NVIDIA"]

    def test_one_that_a_row_adds_has_a_section_of_its_own(self) -> None:
        added = table.Vendor(
            name="ACME",
            section="acme",
            resources=table.ResourceNames(count="acme.test/card", memory="acme.test/memory"),
            annotations=table.AnnotationKeys(register="acme.test/register"),
            config_keys={"count": "resourceCards", "memory": "resourceMemoryName"},
        )
        rows = (*table.built_in(), added)

        config = parse("acme: {resourceCards: acme.test/other, memoryFactor: 4}", rows=rows)

        vendor = only(config)
        assert vendor.resources.named() == ("acme.test/other", "acme.test/memory")
        assert vendor.memory_factor == 4
        assert "did you mean resourceCards?" in error_of("acme: {resourceCard: a.io/b}", rows=rows)
        assert "acme: no such section" in error_of("acme: {resourceCards: a.io/b}")


class TestIluvatarsCards:
    def test_only_those_in_the_list_are_served_in_its_order(self) -> None:
        listed = [hami_files.sections("2.10")["iluvatars"][index] for index in (2, 0)]

        config = parse({"iluvatars": listed})

        assert names(config) == ["NVIDIA", "BI-V150", "MR-V100"]
        assert config.vendors[1:] == (ROWS["BI-V150"], ROWS["MR-V100"])

    def test_a_word_that_no_row_has_is_a_vendor_with_keys_of_its_own(self) -> None:
        entry = {"chipName": "TG-V200", "commonWord": "TG-V200", "resourceCountName": "a.io/n"}

        vendor = only(parse({"iluvatars": [entry]}))

        assert vendor.name == vendor.type_word == "TG-V200"
        assert vendor.resources.named() == (
            "a.io/n",
            "iluvatar.ai/TG-V200.vMem",
            "iluvatar.ai/TG-V200.vCore",
        )
        assert vendor.annotations.register == "hami.io/node-TG-V200-register"
        assert vendor.annotations.handshake == "hami.io/node-handshake-TG-V200"
        assert vendor.annotations.allocated == "hami.io/TG-V200-devices-allocated"
        assert vendor.annotations.lock == "hami.io/mutex.lock"
        assert vendor.family == ROWS["MR-V100"].family

    @pytest.mark.parametrize("word", ["nvidia", "NVIDIA", "dcu", "Biren", "mr-v100"])
    def test_a_word_whose_name_or_annotations_another_vendor_has_is_refused(
        self, word: str
    ) -> None:
        message = error_of(f"iluvatars: [{{commonWord: {word}, resourceCountName: a.io/n}}]")

        assert f"iluvatars[0].commonWord: '{word}' is taken: " in message

    @pytest.mark.parametrize("word", ["", "a b", "-a", "a/b", "a" * 33, "ä"])
    def test_a_word_that_no_annotation_could_have_is_refused(self, word: str) -> None:
        message = error_of({"iluvatars": [{"commonWord": word, "resourceCountName": "a.io/n"}]})

        assert message.startswith(f"{SOURCE}: iluvatars[0].commonWord: ")
        assert "must be 1 to 32 letters" in message

    @pytest.mark.parametrize("section", ["iluvatars", "vnpus"])
    def test_two_entries_with_one_word_are_refused(self, section: str) -> None:
        message = error_of({section: [{"commonWord": "a"}, {"commonWord": "a"}]})

        assert f"{section}[1].commonWord: 'a' names a second entry of this list" in message


class TestSectionsThatNoFamilyServes:
    @pytest.mark.parametrize("version", hami_files.VERSIONS)
    def test_are_named_in_one_line_at_start(
        self, version: hami_files.Version, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = parse(hami_files.text(version))
        with caplog.at_level(logging.INFO):
            config.log_to(logging.getLogger("hami.test"))

        [record] = caplog.records
        assert record.levelno == logging.INFO
        assert "does not serve the vendors of these sections" in record.getMessage()
        assert vars(record)["sections"] == ", ".join(config.unserved)

    def test_are_not_named_where_they_say_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        config = parse(
            "nvidia: {memoryFactor: 1}\nmetax: {}\nkunlun:\nvnpus: {configs: []}\n"
            "vastai: {resourceCountName: ''}"
        )
        with caplog.at_level(logging.INFO):
            config.log_to(logging.getLogger("hami.test"))

        assert caplog.records == []


#: Each key of each section of HAMi's files: the place of its value, and the value.
VALUES = [
    (version, path)
    for version in hami_files.VERSIONS
    for section, data in hami_files.sections(version).items()
    if section != "nvidia"
    for path in (
        [(section, key) for key in data]
        if section in config_sections.MAPPINGS
        else [(section, 0, key) for key in data[0]]
        if isinstance(data, list)
        else [(section, "configs", 0, key) for key in data["configs"][0]]
    )
]


def changed(version: hami_files.Version, path: tuple[Any, ...], value: object) -> Any:
    data = {path[0]: copy.deepcopy(hami_files.sections(version)[path[0]])}
    place: Any = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


def written(path: tuple[Any, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]


class TestAMistake:
    @pytest.mark.parametrize(("version", "path"), VALUES)
    def test_in_the_kind_of_any_value_is_named_with_its_place(
        self, version: hami_files.Version, path: tuple[Any, ...]
    ) -> None:
        message = error_of(changed(version, path, {"a": 1}))

        assert message.startswith(f"{SOURCE}: {written(path)}: ")
        assert "{'a': 1} must be " in message

    @pytest.mark.parametrize(("version", "path"), VALUES)
    def test_in_the_name_of_any_key_is_named_with_the_right_one(
        self, version: hami_files.Version, path: tuple[Any, ...]
    ) -> None:
        *place, key = path

        message = error_of(changed(version, (*place, f"{key}s"), 1))

        assert message.startswith(f"{SOURCE}: {written(path)}s: no such key; did you mean {key}?")

    @pytest.mark.parametrize("section", sorted(config_sections.MAPPINGS))
    @pytest.mark.parametrize("value", ["5", "[a]", "text", "true"])
    def test_a_section_that_is_no_mapping_is_refused(self, section: str, value: str) -> None:
        message = error_of(f"{section}: {value}")

        assert message.startswith(f"{SOURCE}: {section}: ")
        assert "must be a mapping" in message

    @pytest.mark.parametrize(
        ("text", "place", "rule"),
        [
            ("iluvatars: {a: 1}", "iluvatars", "must be a list"),
            ("iluvatars: 5", "iluvatars", "must be a list"),
            ("iluvatars: [5]", "iluvatars[0]", "must be a mapping"),
            ("iluvatars: [{}]", "iluvatars[0].commonWord", "must be 1 to 32 letters"),
            ("vnpus: 5", "vnpus", "must be a mapping"),
            ("vnpus: {configs: 5}", "vnpus.configs", "must be a list"),
            ("vnpus: {config: []}", "vnpus.config", "did you mean configs?"),
            ("vnpus: {hamiVnpuCore: maybe}", "vnpus.hamiVnpuCore", "true or false"),
            ("vnpus: [{commonWord: a, templates: [{memory: 1}]}]", "vnpus[0].templates[0].name",
             "must not be empty"),
            ("vnpus: [{commonWord: a, templates: [{name: a, memory: -1}]}]",
             "vnpus[0].templates[0].memory", "whole number"),
            ("vnpus: [{commonWord: a, templates: [{name: a, aiCpu: 1}]}]",
             "vnpus[0].templates[0].aiCpu", "did you mean aiCPU?"),
            ("vnpus: [{commonWord: a, runtimeClassName: A B}]", "vnpus[0].runtimeClassName",
             "not a name of a Kubernetes object"),
            ("amd: {resourceCountName: gpu}", "amd.resourceCountName", "domain before a slash"),
            ("kunlun: {resourceVCountName: KUNLUN.com/a}", "kunlun.resourceVCountName",
             "lower-case"),
            ("hygon: {memoryFactor: 1.5}", "hygon.memoryFactor", "whole number"),
            ("cambricon: {memoryFactor: 1}", "cambricon.memoryFactor", "no such key"),
            ("awsneuron: {resourceMemoryName: a.io/b}", "awsneuron.resourceMemoryName",
             "no such key"),
            ("iluvatar: {resourceCountName: a.io/b}", "iluvatar", "did you mean iluvatars?"),
        ],
    )  # fmt: skip
    def test_elsewhere_is_named_with_its_place_and_rule(
        self, text: str, place: str, rule: str
    ) -> None:
        message = error_of(text)

        assert message.startswith(f"{SOURCE}: {place}: ")
        assert rule in message

    @pytest.mark.parametrize(
        ("text", "places"),
        [
            ("amd: {resourceCountName: nvidia.com/gpu}",
             "nvidia.resourceCountName and amd.resourceCountName"),
            ("hygon: {resourceCountName: amd.com/gpumem}\namd: {resourceCountName: amd.com/gpu}",
             "hygon.resourceCountName and amd.resourceMemoryName"),
            ("enflame: {resourceNameGCU: a.io/g, resourceNameDRSGCU: a.io/g}",
             "enflame.resourceNameGCU and enflame.resourceNameDRSGCU"),
            ("""iluvatars:
             - {commonWord: MR-V50, resourceCountName: a.io/g}
             - {commonWord: MR-V100, resourceCountName: a.io/g}""",
             "iluvatars[0].resourceCountName and iluvatars[1].resourceCountName"),
            ("vnpus: {configs: [{commonWord: a, resourceName: nvidia.com/gpu}]}",
             "nvidia.resourceCountName and vnpus.configs[0].resourceName"),
            ("kunlun: {resourceCountName: a.io/g}\nvastai: {resourceCountName: a.io/g}",
             "kunlun.resourceCountName and vastai.resourceCountName"),
        ],
    )  # fmt: skip
    def test_two_vendors_that_claim_one_resource_are_both_named(
        self, text: str, places: str
    ) -> None:
        message = error_of(text)

        assert message.startswith(f"{SOURCE}: {places}: ")
        assert "names more than one resource; give each resource a name of its own" in message
