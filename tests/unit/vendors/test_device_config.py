"""device-config.yaml: what it changes, and how each mistake is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.vendors import config_file, device_config, table

SOURCE = "device-config.yaml"


def nvidia(line: str) -> str:
    """Return a file whose NVIDIA section holds one line."""
    return f"nvidia:\n  {line}\n"


def parse(text: str) -> device_config.DeviceConfig:
    return device_config.parse(text, source=SOURCE)


def error_of(text: str) -> str:
    with pytest.raises(device_config.ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(f"{SOURCE}: ")
    return message


class TestWhatTheFileChanges:
    def test_the_defaults_are_hamis(self) -> None:
        settings = parse(nvidia("resourceCountName: nvidia.com/gpu")).nvidia

        assert settings.overwrite_env is False
        assert settings.device_split_count == 10
        assert (settings.device_memory_scaling, settings.device_core_scaling) == (1.0, 1.0)
        assert settings.pre_configured_device_memory == 0
        assert settings.lib_cuda_log_level == 1
        assert settings.enable_numa_topology is False
        assert settings.disable_core_limit is False
        assert settings.gpu_core_policy == "default"
        assert settings.runtime_class_name == ""
        assert settings.mig_profile_allowlist == ()

    def test_each_setting_arrives(self) -> None:
        settings = parse(
            """
nvidia:
  overwriteEnv: true
  deviceSplitCount: 4
  deviceMemoryScaling: 1.5
  deviceCoreScaling: 2
  preConfiguredDeviceMemory: 24576
  libCudaLogLevel: 4
  enableNumaTopology: true
  disableCoreLimit: true
  gpuCorePolicy: force
  runtimeClassName: nvidia
"""
        ).nvidia

        assert settings == device_config.NvidiaSettings(
            overwrite_env=True,
            device_split_count=4,
            device_memory_scaling=1.5,
            device_core_scaling=2.0,
            pre_configured_device_memory=24576,
            lib_cuda_log_level=4,
            enable_numa_topology=True,
            disable_core_limit=True,
            gpu_core_policy="force",
            runtime_class_name="nvidia",
        )

    def test_names_and_defaults_of_the_row_are_overridden(self) -> None:
        vendor, *_ = parse(
            """
nvidia:
  resourceCountName: acme.io/vgpu
  resourceMemoryName: acme.io/vgpu-memory
  resourceMemoryPercentageName: acme.io/vgpu-memory-percentage
  resourceCoreName: acme.io/vgpu-cores
  resourcePriorityName: acme.io/vgpu-priority
  memoryFactor: 256
  defaultMemory: 5000
  defaultCores: 30
  defaultGPUNum: 0
"""
        ).vendors

        assert vendor.resources.named() == (
            "acme.io/vgpu",
            "acme.io/vgpu-memory",
            "acme.io/vgpu-memory-percentage",
            "acme.io/vgpu-cores",
            "acme.io/vgpu-priority",
        )
        assert (vendor.memory_factor, vendor.default_memory) == (256, 5000)
        assert (vendor.default_cores, vendor.default_count) == (30, 0)
        assert vendor.annotations == table.built_in()[0].annotations

    def test_an_empty_name_switches_the_resource_off(self) -> None:
        resources = parse(nvidia('resourceMemoryPercentageName: ""')).vendors[0].resources

        assert resources.memory_percentage == ""
        assert resources.memory == "nvidia.com/gpumem"

    def test_null_is_the_default(self) -> None:
        config = parse("nvidia:\n  resourceCoreName:\n  deviceSplitCount: ~\n  memoryFactor: 2\n")

        assert config.vendors[0].resources.cores == "nvidia.com/gpucores"
        assert config.nvidia.device_split_count == 10

    def test_a_memory_factor_of_0_counts_as_1(self) -> None:
        assert parse(nvidia("memoryFactor: 0")).vendors[0].memory_factor == 1

    def test_an_empty_core_policy_is_the_default(self) -> None:
        assert parse(nvidia('gpuCorePolicy: ""')).nvidia.gpu_core_policy == "default"

    @pytest.mark.parametrize(
        "written", ["1000000", '"1000000"', "1e+06", '"1e+06"', "1000000.0", "+1000000"]
    )
    def test_a_whole_number_may_look_as_helm_renders_it(self, written: str) -> None:
        assert parse(nvidia(f"defaultMemory: {written}")).vendors[0].default_memory == 1_000_000

    @pytest.mark.parametrize("written", ["true", '"true"', "True", "yes", '"on"'])
    def test_a_switch_may_be_quoted(self, written: str) -> None:
        assert parse(nvidia(f"overwriteEnv: {written}")).nvidia.overwrite_env is True

    @pytest.mark.parametrize("written", ["1.8", '"1.8"', "18e-1"])
    def test_a_scaling_may_be_quoted(self, written: str) -> None:
        assert parse(nvidia(f"deviceMemoryScaling: {written}")).nvidia.device_memory_scaling == 1.8

    @pytest.mark.parametrize("bound", [0.01, 100])
    def test_a_scaling_reaches_its_bounds(self, bound: float) -> None:
        assert parse(nvidia(f"deviceCoreScaling: {bound}")).nvidia.device_core_scaling == bound


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("defaultMemry", "; did you mean defaultMemory?"),
            ("memoryfactor", "; did you mean memoryFactor?"),
            ("DEVICESPLITCOUNT", "; did you mean deviceSplitCount?"),
            ("qqq", ""),
        ],
    )
    def test_are_refused_with_the_nearest_key(self, key: str, meant: str) -> None:
        message = error_of(f"nvidia: {{memoryFactor: 3, {key}: 5}}")

        assert message.startswith(f"{SOURCE}: nvidia.{key}: no such key{meant}; ")

    def test_within_the_mig_allowlist_are_named_too(self) -> None:
        line = "migProfileAllowlist: [{models: [A30], profiles: [1g.6gb], profile: x}]"

        message = error_of(nvidia(line))

        assert "nvidia.migProfileAllowlist[0].profile: no such key" in message
        assert "did you mean profiles?" in message

    @pytest.mark.parametrize(
        ("name", "meant"), [("enflam", "; did you mean enflame?"), ("zzz", "")]
    )
    def test_as_sections_are_refused(self, name: str, meant: str) -> None:
        message = error_of(f"nvidia: {{memoryFactor: 1}}\n{name}: {{a: [1]}}\n")

        assert message.startswith(f"{SOURCE}: {name}: no such section{meant}; sections are nvidia,")


class TestAValueThatBreaksItsRule:
    @pytest.mark.parametrize(
        "value",
        ["-1", "2147483648", "1.5", "abc", '""', "true", "[1]", "{a: 1}", "010", "0x10", "1_000",
         "1:30", ".inf", "1e999", "9" * 5000, '"1 0"', "16Gi"],
    )  # fmt: skip
    def test_a_number_outside_32_bits_or_no_number_is_refused(self, value: str) -> None:
        message = error_of(nvidia(f"defaultMemory: {value}"))

        assert message.startswith(f"{SOURCE}: nvidia.defaultMemory: ")
        assert "must be a whole number from 0 to 2147483647; write" in message
        assert len(message) < 300

    @pytest.mark.parametrize(
        ("line", "rule"),
        [
            ("defaultCores: 101", "from 0 to 100"),
            ("deviceSplitCount: 0", "from 1 to 2147483647"),
            ("defaultGPUNum: -1", "from 0 to 2147483647"),
            ("memoryFactor: -1", "from 0 to 2147483647"),
            ("preConfiguredDeviceMemory: 1.5", "from 0 to 2147483647"),
            ("libCudaLogLevel: 5", "from 0 to 4"),
            ("deviceMemoryScaling: 0", "from 0.01 to 100"),
            ("deviceMemoryScaling: 0.0099", "from 0.01 to 100"),
            ("deviceMemoryScaling: 100.1", "from 0.01 to 100"),
            ("deviceMemoryScaling: -1.5", "from 0.01 to 100"),
            ("deviceCoreScaling: .inf", "from 0.01 to 100"),
            ("deviceCoreScaling: 1e999", "from 0.01 to 100"),
            ("deviceCoreScaling: .nan", "from 0.01 to 100"),
            ("deviceCoreScaling: true", "from 0.01 to 100"),
            ("overwriteEnv: 1", "true or false"),
            ('enableNumaTopology: "maybe"', "true or false"),
            ("disableCoreLimit: []", "true or false"),
            ("gpuCorePolicy: Force", "default, force, disable"),
            ("gpuCorePolicy: 1", "must be text"),
            ("runtimeClassName: NVIDIA", "not a name of a Kubernetes object"),
            ("runtimeClassName: 5", "must be text"),
            ("resourceCountName: 5", "must be text"),
            ("resourceCountName: gpu", "domain before a slash"),
            ("resourceMemoryName: NVIDIA.com/gpumem", "lower-case"),
            ("resourceCoreName: nvidia.com/gpu cores", "after the slash"),
            ('resourceCountName: ""', "must not be empty"),
            ("resourceCountName: '  '", "must not be empty"),
        ],
    )
    def test_is_named_by_key_value_and_rule(self, line: str, rule: str) -> None:
        key, _, value = line.partition(": ")

        message = error_of(nvidia(line))

        assert message.startswith(f"{SOURCE}: nvidia.{key}: ")
        assert value.strip("\"'") in message
        assert rule in message
        assert "; " in message, "the remedy"

    def test_one_name_for_two_resources_is_refused(self) -> None:
        message = error_of(nvidia("resourceMemoryName: nvidia.com/gpu"))

        keys = "nvidia.resourceCountName and nvidia.resourceMemoryName"
        assert f"{keys}: 'nvidia.com/gpu' names more than one resource" in message

    @pytest.mark.parametrize(
        ("value", "place", "rule"),
        [
            ("5", "", "must be a list"),
            ("[5]", "[0]", "must be a mapping"),
            ("[{models: [A30]}]", "[0].profiles", "at least one text"),
            ("[{profiles: [1g.6gb]}]", "[0].models", "at least one text"),
            ("[{models: [], profiles: [1g.6gb]}]", "[0].models", "at least one text"),
            ("[{models: [A30], profiles: ['']}]", "[0].profiles", "at least one text"),
            ("[{models: A30, profiles: [1g.6gb]}]", "[0].models", "must be a list"),
            ("[{models: [A30], profiles: [6gb]}]", "[0].profiles", "'6gb', which is not a MIG"),
            ("[{models: [A30], profiles: [0g.6gb]}]", "[0].profiles", "not a MIG profile"),
            ("[{models: [A30], profiles: [g.6gb]}]", "[0].profiles", "not a MIG profile"),
            ("[{models: [A30], profiles: [1g.6gb 2g]}]", "[0].profiles", "not a MIG profile"),
            ("[{models: [A30], profiles: [1g.]}]", "[0].profiles", "not a MIG profile"),
        ],
    )
    def test_of_the_mig_allowlist_is_named_by_its_place(
        self, value: str, place: str, rule: str
    ) -> None:
        message = error_of(nvidia(f"migProfileAllowlist: {value}"))

        assert f"nvidia.migProfileAllowlist{place}: " in message
        assert rule in message


class TestAFileThatIsNoConfiguration:
    @pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~"])
    def test_an_empty_one_says_what_to_write(self, text: str) -> None:
        message = error_of(text)

        assert "the file is empty" in message
        assert "nvidia:\n  resourceCountName: nvidia.com/gpu" in message

    @pytest.mark.parametrize(
        "text",
        [
            "{}",
            "nvidia:",
            "nvidia: {}",
            "nvidia: {memoryFactor: }",
            "nvidia: {migProfileAllowlist: []}",
            "hygon: {}\namd: {resourceCountName: ''}",
            "vnpus: {configs: []}\niluvatars: []",
            "metax: {sgpuTopologyAware: true}",
        ],
    )
    def test_one_without_any_value_says_what_to_write(self, text: str) -> None:
        message = error_of(text)

        assert "no section holds a value" in message
        assert "resourceCountName: nvidia.com/gpu" in message

    def test_one_with_only_misspelt_names_says_what_was_probably_meant(self) -> None:
        assert "did you mean nvidia?" in error_of("nvdia: {memoryFactor: 1}")
        assert "did you mean memoryFactor?" in error_of("nvidia: {memryFactor: 1}")

    @pytest.mark.parametrize("text", ["nvidia", "[nvidia]", "5", "true"])
    def test_one_that_is_no_mapping_is_refused(self, text: str) -> None:
        assert "is not a mapping of sections" in error_of(text)

    @pytest.mark.parametrize("value", ["5", "[a]", "nvidia.com/gpu", "false"])
    def test_a_section_that_is_no_mapping_is_refused(self, value: str) -> None:
        message = error_of(f"nvidia: {value}")

        assert message.startswith(f"{SOURCE}: nvidia: ")
        assert "must be a mapping" in message

    @pytest.mark.parametrize("key", ["1", "true", "null", "1.5"])
    def test_a_section_name_that_is_no_text_is_refused(self, key: str) -> None:
        assert "is not a section's name" in error_of(f"{key}: x")


class TestYamlThatIsRefused:
    @pytest.mark.parametrize(
        ("text", "want"),
        [
            ("nvidia:\n\tmemoryFactor: 1", "line 2, column 1"),
            ("nvidia: {memoryFactor: 1", "line 1"),
            ("nvidia:\n  memoryFactor: 1\n  memoryFactor: 2", "line 3, column 3"),
            ("nvidia: {}\nhygon: {}\nnvidia: {memoryFactor: 1}", "'nvidia' is written twice"),
            ("vnpus: {configs: [{a: 1, a: 2}]}", "'a' is written twice"),
            ("a: &x 1\nb: *x", "line 2, column 4"),
            ("a: &x [*x]", "an alias (*name) is not allowed here; write the value out"),
            ("nvidia: {memoryFactor: !!int 2}", "tag"),
            ("nvidia: !!python/object:os.system {}", "tag"),
            ("? [a]\n: b", "this key is not a plain word; write one"),
            ("nvidia: {memoryFactor: 1}\n---\nnvidia: {}", "line 2"),
            ("nvidia: {}\n\x00", "line 2, column 1"),
            ("[" * 5000, "nested too deeply"),
            ("a" * (config_file.MAX_CHARACTERS + 1), "the file has more than 262144 characters"),
        ],
    )
    def test_with_the_place_in_the_message(self, text: str, want: str) -> None:
        message = error_of(text)

        assert want in message
        assert len(message) < 400

    def test_a_bomb_of_aliases_does_not_go_off(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]

        assert "alias" in error_of("\n".join(lines))

    @pytest.mark.parametrize("word", ["2020-13-45", "010", "0b_", "1:30", "NO"])
    def test_dates_and_other_odd_plain_words_stay_text(self, word: str) -> None:
        text = f"vnpus: [{{commonWord: a, resourceName: a.io/a, templates: [{{name: {word}}}]}}]"
        assert parse(text).unserved == ("vnpus",)
        assert f"'{word}' must be a whole number" in error_of(nvidia(f"defaultCores: {word}"))

    @given(
        st.text(alphabet=st.sampled_from("nvidia: {}[]-*&!|>'\"\n\t#~01.eE,?%@`\\"), max_size=80)
    )
    def test_whatever_is_written_there_only_our_error_is_raised(self, text: str) -> None:
        for whole in (text, f"nvidia:\n  memoryFactor: {text}", f"nvidia: {{{text}}}"):
            try:
                config = parse(whole)
            except device_config.ConfigError as error:
                assert str(error).startswith(f"{SOURCE}: ")  # noqa: PT017 - either outcome is fine
            else:
                assert 1 <= config.vendors[0].memory_factor < 2**31
                assert math.isfinite(config.nvidia.device_memory_scaling)


class TestAFileOnDisk:
    def test_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "device-config.yaml"
        path.write_bytes(b"\xef\xbb\xbfnvidia:\r\n  deviceSplitCount: 3\r\n")

        assert device_config.load(path).nvidia.device_split_count == 3
        assert device_config.load(str(path)).nvidia.device_split_count == 3

    def test_that_is_missing_or_a_folder_is_named_with_the_remedy(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.yaml", tmp_path):
            with pytest.raises(device_config.ConfigError, match="cannot be read") as caught:
                device_config.load(path)
            assert str(caught.value).startswith(f"{path}: ")
            assert "check the path" in str(caught.value)

    def test_that_is_no_text_is_named_with_the_byte(self, tmp_path: Path) -> None:
        path = tmp_path / "device-config.yaml"
        path.write_bytes(b"nvidia: \xff\xfe")

        with pytest.raises(device_config.ConfigError, match="byte 9: the file is not UTF-8"):
            device_config.load(path)

    def test_that_is_huge_is_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "device-config.yaml"
        with path.open("wb") as file:
            file.truncate(1 << 40)

        with pytest.raises(device_config.ConfigError, match="more than 262144 characters"):
            device_config.load(path)
