"""The table of built-in vendors."""

from __future__ import annotations

import pytest

from hami.vendors import table
from hami.wire import quantity

ROW = """
[[vendor]]
name = "ACME"
section = "acme"
annotations = {}
resources = {count = "acme.io/card"}
"""


def test_nvidia_is_built_in_with_hamis_names() -> None:
    nvidia = table.nvidia(table.built_in())

    assert (nvidia.name, nvidia.section, nvidia.family) == ("NVIDIA", "nvidia", "nvidia")
    assert nvidia.resources.named() == (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
    )
    keys = nvidia.annotations
    assert [keys.register, keys.handshake, keys.cordon, keys.pair_scores, keys.binding] == [
        "hami.io/node-nvidia-register",
        "hami.io/node-handshake",
        "hami.io/device-cordon",
        "hami.io/node-nvidia-score",
        "hami.io/node-nvidia-binding",
    ]
    assert keys.lock_reason == "hami.io/node-nvidia-lock-reason"
    assert keys.shares == "hami.io/node-nvidia-shares"
    assert keys.to_allocate == "hami.io/vgpu-devices-to-allocate"
    assert keys.allocated == "hami.io/vgpu-devices-allocated"
    assert [keys.use_type, keys.nouse_type, keys.use_uuid, keys.nouse_uuid] == [
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
    ]
    assert (keys.mode, keys.numa_bind) == ("nvidia.com/vgpu-mode", "nvidia.com/numa-bind")


def test_a_bare_nvidia_request_means_one_whole_card_under_lock_and_quota() -> None:
    nvidia = table.nvidia(table.built_in())

    assert (nvidia.memory_factor, nvidia.default_memory) == (1, 0)
    assert (nvidia.default_cores, nvidia.default_count) == (0, 1)
    assert nvidia.lock == table.NodeLock(
        key="hami.io/mutex.lock", owner_key="hami.io/lock-owner", names_pod=True, timeout=0
    )
    assert (nvidia.enforces_quota, nvidia.bounded_by_ids) == (True, True)
    assert nvidia.register_codec == "json"


def test_every_built_in_resource_is_a_name_kubernetes_takes() -> None:
    for vendor in table.built_in():
        for name in vendor.resources.named():
            assert quantity.check_resource_name(name, what=vendor.name) == name


def test_the_table_is_read_once() -> None:
    assert table.built_in() is table.built_in()


def test_a_row_needs_only_its_names_and_takes_defaults_for_the_rest() -> None:
    (acme,) = table.parse(ROW, source="rows.toml")

    assert (acme.name, acme.resources.count, acme.resources.memory) == ("ACME", "acme.io/card", "")
    assert (acme.family, acme.annotations.register) == ("", "")


@pytest.mark.parametrize(
    ("text", "want"),
    {
        "not toml": ("[[vendor]]\nname = x\n", "line 2"),
        "nothing": ("", "at least one"),
        "another table": (f"{ROW}\n[[vendr]]\n" + ROW.split("\n", 2)[2], "every row is a"),
        "a misspelt field": (ROW + 'nmae = "x"', "nmae"),
        "a misspelt resource": (ROW.replace("count =", "cuont ="), "cuont"),
        "a wrong type": (ROW + 'needs_offer = "yes"', "needs_offer"),
        "an unknown codec": (ROW + 'register_codec = "xml"', "register_codec"),
        "no count resource": (ROW.replace("acme.io/card", ""), "'ACME' needs name"),
        "a name twice": (ROW + ROW.replace("acme.io/card", "acme.io/b"), "name 'ACME'"),
        "a resource twice": (ROW + ROW.replace("ACME", "B"), "resource 'acme.io/card'"),
    }.values(),
)
def test_a_broken_row_is_an_error_that_names_file_and_fault(text: str, want: str) -> None:
    with pytest.raises(table.TableError) as caught:
        table.parse(text, source="rows.toml")

    assert str(caught.value).startswith("rows.toml: ")
    assert want in str(caught.value)
