"""Settings from flags, environment and file: one table, one meaning, one order."""

from __future__ import annotations

import inspect
import pathlib
import re
from typing import Any

import msgspec
import pytest

from hami.cli import errors, flags
from hami.cli import webhook as cli_webhook
from hami.cli.flag_values import Table
from hami.cli.scheduler import TABLE
from hami.scheduler.settings import Settings
from hami.vendors.config_file import ConfigError

#: Every flag of HAMi's scheduler that does something here, as its manifests write them.
HAMI = {
    "--http_bind=0.0.0.0:443": ("http_bind", "0.0.0.0:443"),
    "--scheduler-name=mine": ("scheduler_name", "mine"),
    "--node-scheduler-policy=spread": ("node_scheduler_policy", "spread"),
    "--gpu-scheduler-policy=mutex": ("gpu_scheduler_policy", "mutex"),
    "--metrics-bind-address=:9396": ("metrics_bind_address", ":9396"),
    "--node-label-selector=gpu=on,zone=a": ("node_label_selector", "gpu=on,zone=a"),
    "--kube-qps=12.5": ("kube_qps", 12.5),
    "--kube-burst=30": ("kube_burst", 30),
    "--kube-timeout=7": ("kube_timeout", 7.0),
    "--profiling": ("profiling", True),
    "--node-lock-timeout=1h30m": ("node_lock_timeout", 5400.0),
    "--node-lock-retry-timeout=28s": ("node_lock_retry_timeout", 28.0),
    "--force-overwrite-default-scheduler=false": ("force_overwrite_default_scheduler", False),
    "--leader-elect=false": ("leader_elect", False),
    "--leader-elect-resource-name=lease": ("leader_elect_resource_name", "lease"),
    "--leader-elect-resource-namespace=ns": ("leader_elect_resource_namespace", "ns"),
    "--legacy-metrics=true": ("legacy_metrics", True),
    "--debug": ("debug", True),
    "--device-config-file=/device-config.yaml": ("device_config_file", "/device-config.yaml"),
}


def resolved(*argv: str, **environ: str) -> Settings:
    return flags.resolve(TABLE, argv, environ).settings


def test_without_anything_all_is_default() -> None:
    assert flags.resolve(TABLE, [], {}) == flags.Resolved(Settings())


@pytest.mark.parametrize(("word", "wanted"), HAMI.items())
def test_hamis_flags_are_taken_as_hami_spells_them(word: str, wanted: tuple[str, object]) -> None:
    field, value = wanted
    assert resolved(word) == msgspec.structs.replace(Settings(), **{field: value})


def test_certificate_and_key_are_taken_as_hami_spells_them() -> None:
    found = resolved("--cert_file", "/tls/tls.crt", "--key_file", "/tls/tls.key")
    assert (found.cert_file, found.key_file) == ("/tls/tls.crt", "/tls/tls.key")


@pytest.mark.parametrize("word", ["--http_bind=:1", "--http-bind=:1", "-http_bind=:1"])
def test_dashes_and_underscores_are_the_same(word: str) -> None:
    assert resolved(word).http_bind == ":1"


def test_a_value_may_follow_as_the_next_word_even_if_it_looks_like_a_flag() -> None:
    assert resolved("--scheduler-name", "mine", "--kube-qps", "5").scheduler_name == "mine"
    with pytest.raises(errors.UsageError, match=r"--kube-qps: -5\.0 is negative"):
        resolved("--kube-qps", "-5")


def test_the_last_of_several_counts() -> None:
    assert resolved("--scheduler-name=a", "--scheduler-name=b").scheduler_name == "b"


def test_switches_take_no_next_word() -> None:
    with pytest.raises(errors.UsageError, match=r"'true' is no flag; .*--name=true"):
        resolved("--profiling", "true")


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("1", True), ("F", False)])
def test_switches_are_read_as_go_reads_them(text: str, *, wanted: bool) -> None:
    assert resolved(f"--profiling={text}").profiling is wanted


@pytest.mark.parametrize("words", [["-v=4"], ["-v", "5"], ["--v=10"], ["-v4"], ["--v", "4"]])
def test_klogs_level_four_and_above_is_debug(words: list[str]) -> None:
    assert flags.resolve(TABLE, words, {}) == flags.Resolved(Settings(debug=True))


def test_a_lower_level_is_not_debug_and_debug_itself_decides() -> None:
    assert not resolved("-v=3").debug
    assert not resolved("--debug=false", "-v=4").debug


@pytest.mark.parametrize(
    ("words", "why"),
    {
        ("--dcu-name=hygon.com/dcunum",): "device-config file",
        ("--cambricon-mlu-memory", "cambricon.com/mlu.smlu.vmemory"): "device-config file",
        ("--mthreads-cores=x",): "device-config file",
        ("--metax-vcount=x",): "device-config file",
        ("--kunlun-vmemory=x",): "device-config file",
        ("--enflame-gcu-resource-name=x",): "device-config file",
        ("--resource-name=nvidia.com/gpu",): "device-config file",
        ("--default-mem=0",): "nvidia.defaultMemory",
        ("--sgpu-topology-aware",): "not handled yet",
        ("--enable-ascend=true",): "not handled yet",
        ("--logtostderr=true",): "logs always go to stderr",
        ("--alsologtostderr",): "logs always go to stderr",
        ("--stderrthreshold", "2"): "logs always go to stderr",
        ("--vmodule=a=1",): "logs always go to stderr",
        ("--log_dir=/tmp/x",): "logs always go to stderr",
    }.items(),
)
def test_flags_without_effect_are_taken_and_answered(words: tuple[str, ...], why: str) -> None:
    found = flags.resolve(TABLE, [*words, "--debug"], {})
    assert found.settings == Settings(debug=True)
    (warning,) = found.warnings
    assert warning.startswith(words[0].partition("=")[0] + " has no effect: ")
    assert why in warning


def test_a_switch_without_effect_that_is_off_needs_no_warning() -> None:
    assert flags.resolve(TABLE, ["--enable-ascend=false"], {}).warnings == ()


def test_an_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(errors.UsageError, match=r"no flag --node-lock-timout; did you mean --node"):
        resolved("--node-lock-timout=5m")


def test_a_flag_without_its_value_is_reported() -> None:
    with pytest.raises(errors.UsageError, match=r"--scheduler-name: no value follows"):
        resolved("--scheduler-name")


def test_each_setting_has_a_variable() -> None:
    found = resolved(
        HAMI_KUBE_BURST="9", HAMI_LEADER_ELECT="false", HAMI_NODE_LOCK_TIMEOUT="10m", HAMI_DEBUG="1"
    )
    assert found == Settings(kube_burst=9, node_lock_timeout=600.0, debug=True)


def test_hamis_own_variables_count_too_after_ours() -> None:
    found = resolved(
        POD_NAME="p",
        POD_NAMESPACE="n",
        KUBECONFIG="/k",
        HAMI_NODELOCK_EXPIRE="7m",
        HAMI_POD_NAME="q",
    )
    assert found == Settings(
        pod_name="q", pod_namespace="n", kubeconfig="/k", node_lock_timeout=420.0
    )


def test_a_list_of_kubeconfigs_is_left_to_who_reads_them() -> None:
    assert resolved(KUBECONFIG="/a:/b").kubeconfig == ""


def test_an_empty_variable_is_an_empty_text_and_no_number() -> None:
    found = resolved(HAMI_METRICS_BIND_ADDRESS="", HAMI_KUBE_QPS="", HAMI_PROFILING="")
    assert found == Settings(metrics_bind_address="")


def test_flags_count_before_the_environment_and_that_before_the_file(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "hami.yaml"
    file.write_text(
        "scheduler-name: file\nnode-scheduler-policy: spread\ngpu-scheduler-policy: mutex\n"
        "profiling: true\nnode-lock-timeout: 6m\nkube-qps: 4\n"
    )
    environ = {"HAMI_SCHEDULER_NAME": "env", "HAMI_GPU_SCHEDULER_POLICY": "numa"}
    found = flags.resolve(TABLE, [f"--config={file}", "--scheduler-name=flag"], environ).settings
    assert found == Settings(
        scheduler_name="flag",
        gpu_scheduler_policy="numa",
        node_scheduler_policy="spread",
        profiling=True,
        node_lock_timeout=360.0,
        kube_qps=4.0,
    )


def test_the_file_may_be_named_by_a_variable_and_spell_keys_either_way(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "hami.yaml"
    file.write_text("http_bind: ':7'\nkubeconfig:\n")
    assert resolved(HAMI_CONFIG=str(file)).http_bind == ":7"


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "scheduler-nam: x": r"scheduler-nam: no such setting; did you mean scheduler-name\?",
        "- a": "is not a mapping of settings",
        "a: [": "not valid YAML",
        "debug: true\ndebug: false": "is written twice",
        "node-lock-timeout: 300": "node-lock-timeout: 300 has no unit; write 5m",
        "kube-burst: true": "kube-burst: True is no whole number",
        "kubeconfig: [a]": "is no text",
    }.items(),
)
def test_a_wrong_file_is_reported_with_its_place(
    tmp_path: pathlib.Path, text: str, message: str
) -> None:
    file = tmp_path / "hami.yaml"
    file.write_text(text)
    with pytest.raises((ConfigError, errors.UsageError), match=f"{file}: .*{message}"):
        resolved(f"--config={file}")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        resolved(f"--config={tmp_path / 'none'}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="byte 1: the file is not UTF-8 text"):
        resolved(f"--config={tmp_path / 'binary'}")
    (tmp_path / "large").write_text("#" * 70_000)
    with pytest.raises(ConfigError, match="more than 65536 characters"):
        resolved(f"--config={tmp_path / 'large'}")


@pytest.mark.parametrize("table", [TABLE, cli_webhook.TABLE])
def test_every_setting_is_in_the_help_in_the_groups_of_the_struct(table: Table[Any]) -> None:
    """The struct's source is the truth: `# Group.` lines, and the fields below each."""
    groups: dict[str, list[str]] = {}
    for line in inspect.getsource(table.settings).splitlines():
        if group := re.fullmatch(r"    # (.+)\.", line):
            groups[group[1]] = []
        elif field := re.match(r"    (\w+): ", line):
            groups[list(groups)[-1]].append(field[1])
    helped: dict[str, list[str]] = {}
    for flag in table.flags.values():
        helped.setdefault(flag.group, []).append(flag.field)
    assert helped == groups
    assert all(flag.help for flag in table.flags.values())


def test_a_setting_of_both_processes_means_the_same_in_both() -> None:
    shared = TABLE.flags.keys() & cli_webhook.TABLE.flags.keys()
    for key in shared - {"http-bind"}:  # the scheduler's is for its sibling on loopback
        scheduler, webhook = TABLE.flags[key], cli_webhook.TABLE.flags[key]
        assert (scheduler.kind, scheduler.default) == (webhook.kind, webhook.default), key


def test_the_help_shows_default_variable_and_meaning_of_every_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        resolved("--help")
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for flag in TABLE.flags.values():
        assert f"--{flag.spelling} " in printed
        assert " ".join(flag.help.split()) in printed
        assert flag.environment[0] in printed
    assert "(default 15m; HAMI_RESERVATION_TIMEOUT)" in printed
    assert "(default 127.0.0.1:8080; HAMI_HTTP_BIND)" in printed
    assert "Nodes with a lock:" in printed
