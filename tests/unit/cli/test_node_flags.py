"""Flags of `hami agent` and `hami monitor`: one per setting, mistakes named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.agent.settings import Settings as AgentSettings
from hami.cli import agent, errors, flags, monitor
from hami.cli.flag_values import Table
from hami.monitor.settings import Settings as MonitorSettings

NODE = "--node-name=gpu-1"
TABLES = [(agent.TABLE, AgentSettings), (monitor.TABLE, MonitorSettings)]


def resolved(table: Table[Any], *argv: str, **environ: str) -> Any:
    return flags.resolve(table, argv, environ).settings


@pytest.mark.parametrize(("table", "settings"), TABLES)
def test_without_anything_but_a_node_all_is_default(
    table: Table[Any], settings: type[msgspec.Struct]
) -> None:
    assert resolved(table, NODE) == settings(node_name="gpu-1")


@pytest.mark.parametrize(("table", "settings"), TABLES)
def test_every_setting_has_a_flag_and_a_variable(
    table: Table[Any], settings: type[msgspec.Struct]
) -> None:
    for field in settings.__struct_fields__:
        assert field.replace("_", "-") in table.flags
    assert resolved(table, HAMI_NODE_NAME="gpu-1").node_name == "gpu-1"
    assert resolved(table, NODE, HAMI_STATE_DIR="/disk").state_dir == "/disk"


@pytest.mark.parametrize(("table", "_settings"), TABLES)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "is empty; set NODE_NAME"),
        (["--node-name=Not a node"], "is no node's name"),
        ([NODE, "--state-dir=relative"], "absolute path"),
        ([NODE, "--metrics-bind-address=nowhere"], "no address to listen on"),
        ([NODE, "--resync-interval=0"], "must be more than 0"),
        ([NODE, "--kube-qps=-1"], "negative"),
        ([NODE, "--no-such-flag"], "no-such-flag"),
    ],
)
def test_a_mistake_is_named(
    table: Table[Any], _settings: object, words: list[str], why: str
) -> None:
    with pytest.raises(errors.UsageError, match=why):
        resolved(table, *words)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("--mig-strategy=double", "none, single, mixed"),
        ("--binding=early", "auto, late, lock"),
        ("--driver-injection=magic", "auto, cdi, runtime"),
        ("--pod-wait=0", "must be more than 0"),
        ("--otlp-endpoint=collector", "http"),
        ("--kubelet-dir=kubelet", "absolute path"),
    ],
)
def test_a_mistake_of_the_agent_is_named(word: str, why: str) -> None:
    with pytest.raises(errors.UsageError, match=why):
        resolved(agent.TABLE, NODE, word)
