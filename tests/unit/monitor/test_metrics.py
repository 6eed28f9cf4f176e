"""Metrics of the node: HAMi's names and labels exactly, and no unknown number."""

from __future__ import annotations

import pytest

from hami.agent.cards import inventory
from hami.agent.cards.node_config import NodeConfig
from hami.monitor import metrics
from hami.monitor.collect import NodeSnapshot, ShareUsage, share_usages
from hami.monitor.containers import Container, Key
from hami.monitor.driver import CardProcesses, CardSample, DriverSample
from hami.monitor.findings import Findings, OwnedProcess
from hami.monitor.pods import WatchedPod
from hami.monitor.processes import NO_OWNER, Owner
from hami.monitor.usage import CardUsage, ContainerUsage
from hami.node.nvml_cards import Card
from hami.wire.shares import Share
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER, Series

NOW = 1000.0
ZONE = 'zone="vGPU"'
SHARE = (
    f'{{namespace="team",pod="a",container="main",vdevice_index="0",device_uuid="{CARD}",{ZONE}}}'
)


def container(*shares: Share, pod: str = "a", uid: str = "u", limited: bool = True) -> Container:
    return Container(
        key=Key(uid, "main"),
        namespace="team",
        pod=pod,
        shares=shares or (nodes.share(CARD, GIB, 30),),
        allocation_ids=("t",),
        limited=limited,
    )


def use(last: int = 990, **fields: int) -> ContainerUsage:
    cards = {CARD: CardUsage(**fields)}
    return ContainerUsage(cards=cards, last_kernel_time=last, pids=frozenset({1}))


def card(name: str = "NVIDIA A10") -> CardSample:
    made = Card(
        uuid=CARD,
        index=3,
        minor=0,
        name=name,
        memory=24 * GIB,
        numa=0,
        bus_id="0000:1a:00.0",
        mig_enabled=False,
    )
    return CardSample(card=made, memory_used=5 * MIB, utilization=(40, 20))


def latest(
    memory: int = 0,
    compute: int | None = 12,
    unmanaged: tuple[OwnedProcess, ...] = (),
    key: str = "u",
) -> Findings:
    owner = Key(key, "main")
    return Findings(
        sample=DriverSample(
            taken=0.0, cards=(card(),), processes=(CardProcesses(uuid=CARD, index=3),)
        ),
        unmanaged=unmanaged,
        memory={CARD: {owner: memory}},
        compute={} if compute is None else {CARD: {owner: compute}},
    )


def text(
    made: list[ShareUsage],
    known: Findings | None = None,
    *,
    legacy: bool = False,
    pods: list[WatchedPod] | None = None,
) -> str:
    snapshot = NodeSnapshot(node="n1", shares=made, findings=known, pods=pods or [])
    return b"".join(metrics.families(snapshot, legacy=legacy)).decode()


def one(
    found: ContainerUsage | None, known: Findings | None, *, limited: bool = True
) -> list[ShareUsage]:
    return share_usages([(container(limited=limited), found)], known, now=NOW)


def lines(shown: str, name: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(f"{name}{{")]


def test_everything_of_a_container_under_hamis_names() -> None:
    shown = text(one(use(used=20, context=5, module=2, data=13), latest(memory=GIB + 7)), latest())
    expected = {
        "hami_vgpu_memory_used_bytes": 20,
        "hami_vgpu_memory_limit_bytes": GIB,
        "hami_vgpu_core_used_percent": 12,
        "hami_vgpu_core_limit_percent": 30,
        "hami_vgpu_over_limit_bytes": 7,
        "hami_container_device_memory_bytes": 20,
        "hami_container_device_utilization_ratio": 12,
        "hami_container_last_kernel_elapsed_seconds": 10.0,
        "hami_vgpu_memory_context_bytes": 5,
        "hami_vgpu_memory_module_bytes": 2,
        "hami_vgpu_memory_buffer_bytes": 13,
    }
    for name, value in expected.items():
        assert lines(shown, name) == [f"{name}{SHARE} {value}"]


def test_everything_of_a_card() -> None:
    shown = text([], latest())
    whole = f'node="n1",device_index="3",device_uuid="{CARD}",device_type="NVIDIA A10",{ZONE}'
    assert lines(shown, "hami_host_gpu_memory_used_bytes") == [
        f"hami_host_gpu_memory_used_bytes{{{whole}}} {5 * MIB}"
    ]
    assert lines(shown, "hami_host_gpu_utilization_ratio") == [
        f"hami_host_gpu_utilization_ratio{{{whole}}} 40"
    ]
    name = "hami_host_gpu_memory_controller_utilization_ratio"
    assert lines(shown, name) == [f"{name}{{{whole.partition(',')[2]}}} 20"]


@pytest.mark.parametrize("name", ["NVIDIA A10", "Tesla P4"])
def test_a_card_has_the_type_that_the_scheduler_shows(name: str) -> None:
    found = inventory.build([card(name).card], (), NodeConfig(), lambda _uuid: True)
    (registered,) = found.devices
    sample = DriverSample(taken=0.0, cards=(card(name),))
    shown = nodes.series(text([], Findings(sample=sample), legacy=True))
    types = {
        key.startswith("hami_"): dict(labels).get("device_type") or dict(labels).get("devicetype")
        for key, labels in shown
    }
    # HAMi's old names have its prefix always.
    assert types == {True: registered.type, False: f"NVIDIA-{name}"}


def test_a_figure_that_the_driver_does_not_report_is_absent_with_a_reason() -> None:
    sample = CardSample(
        card=card().card,
        missing={"utilization": "not_supported", "process_utilization": "no_samples"},
    )
    shown = text([], Findings(sample=DriverSample(taken=0.0, cards=(sample,))))
    assert not lines(shown, "hami_host_gpu_utilization_ratio")
    assert not lines(shown, "hami_host_gpu_memory_controller_utilization_ratio")
    found = nodes.series(shown)
    name = "hami_host_gpu_figure_missing"
    assert nodes.values(found, name, figure="utilization", reason="not_supported") == [1]
    assert nodes.values(found, name, figure="process_utilization", reason="no_samples") == [1]
    assert len(lines(shown, name)) == 2


def test_every_family_is_announced_once_and_can_be_parsed() -> None:
    shown = text(one(use(used=1), latest()), latest(), legacy=True)
    names = [line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert nodes.series(shown)


def test_without_a_state_file_limits_are_all_that_is_shown() -> None:
    shown = text(one(None, None))
    found = {name for name, _ in nodes.series(shown)}
    assert found == {"hami_vgpu_memory_limit_bytes", "hami_vgpu_core_limit_percent"}


def test_compute_that_the_driver_does_not_report_is_left_out() -> None:
    shown = text(one(use(used=1), latest(compute=None)))
    assert not lines(shown, "hami_vgpu_core_used_percent")
    # HAMi's library measures it, and counts where the driver does not report it.
    shown = text(one(use(used=1, compute=9), latest(compute=None)))
    assert lines(shown, "hami_vgpu_core_used_percent") == [f"hami_vgpu_core_used_percent{SHARE} 9"]
    # The driver goes before it: the library measures only what has a limit.
    shown = text(one(use(used=1, compute=0), latest(compute=55)))
    assert lines(shown, "hami_vgpu_core_used_percent") == [f"hami_vgpu_core_used_percent{SHARE} 55"]


def test_an_idle_container_on_a_card_that_reports_compute_shows_zero() -> None:
    shown = text(one(use(used=1), latest(key="another", memory=9)))
    assert lines(shown, "hami_vgpu_core_used_percent") == [f"hami_vgpu_core_used_percent{SHARE} 0"]
    assert lines(shown, "hami_vgpu_over_limit_bytes") == [f"hami_vgpu_over_limit_bytes{SHARE} 0"]


def test_whole_cards_are_measured_by_the_driver() -> None:
    shown = text(one(None, latest(memory=123), limited=False))
    assert lines(shown, "hami_vgpu_memory_used_bytes") == [
        f"hami_vgpu_memory_used_bytes{SHARE} 123"
    ]
    assert not lines(shown, "hami_vgpu_over_limit_bytes")
    assert not lines(text(one(None, None, limited=False)), "hami_vgpu_memory_used_bytes")


def test_no_kernel_no_time_and_a_clock_ahead_is_now() -> None:
    name = "hami_container_last_kernel_elapsed_seconds"
    assert not lines(text(one(use(last=0), None)), name)
    assert lines(text(one(use(last=5000), None)), name) == [f"{name}{SHARE} 0.0"]


def test_pods_of_the_same_name_are_never_the_same_series_twice() -> None:
    made = share_usages(
        [
            (container(nodes.share(CARD, GIB, 1), uid="old"), use(used=1)),
            (
                container(nodes.share(CARD, GIB, 2), nodes.share(CARD, GIB, 3), uid="new"),
                use(used=2),
            ),
        ],
        None,
        now=NOW,
    )
    found = nodes.series(text(made, legacy=True))
    assert nodes.values(found, "hami_vgpu_memory_used_bytes") == [2]
    assert nodes.values(found, "hami_vgpu_core_limit_percent") == [2]


def test_a_limit_of_hamis_library_is_shown_to_the_byte() -> None:
    made = share_usages([(container(), use(limit=10**9))], None, now=NOW)
    found = nodes.series(text(made, legacy=True))
    assert nodes.values(found, "hami_vgpu_memory_limit_bytes") == [10**9]
    assert nodes.values(found, "vGPU_device_memory_limit_in_bytes") == [10**9]


def test_cards_keep_their_indexes_in_the_container() -> None:
    made = share_usages(
        [(container(nodes.share(OTHER, MIB), nodes.share(CARD, 2 * MIB)), None)], None, now=NOW
    )
    found = nodes.series(text(made))
    name = "hami_vgpu_memory_limit_bytes"
    assert nodes.values(found, name, vdevice_index="0", device_uuid=OTHER) == [MIB]
    assert nodes.values(found, name, vdevice_index="1", device_uuid=CARD) == [2 * MIB]


def on_card(owner: Owner, memory: int | None) -> OwnedProcess:
    return OwnedProcess(
        card=CARD, card_index=3, pid=1, start=1, inner_pid=1, memory=memory, owner=owner
    )


def test_unmanaged_memory_by_owner() -> None:
    pod = Owner(key=Key("u", "main"), namespace="team", pod="a")
    unmanaged = (on_card(pod, 5), on_card(pod, 6), on_card(NO_OWNER, 9), on_card(NO_OWNER, None))
    shown = text([], latest(unmanaged=unmanaged))
    start = f'node="n1",device_uuid="{CARD}",device_index="3"'
    assert set(lines(shown, "hami_gpu_unmanaged_memory_bytes")) == {
        f'hami_gpu_unmanaged_memory_bytes{{{start},namespace="",pod="",container="",{ZONE}}} 9',
        (
            f"hami_gpu_unmanaged_memory_bytes{{{start},"
            f'namespace="team",pod="a",container="main",{ZONE}}} 11'
        ),
    }


def test_a_card_without_unmanaged_processes_is_shown_with_zero() -> None:
    found = nodes.series(text([], latest()))
    assert nodes.values(found, "hami_gpu_unmanaged_memory_bytes") == [0]
    assert nodes.values(nodes.series(text([], None)), "hami_gpu_unmanaged_memory_bytes") == []


def test_names_from_outside_cannot_break_the_text() -> None:
    made = share_usages([(container(pod='x"} 1\nevil\\'), use(used=1))], None, now=NOW)
    found = nodes.series(text(made))
    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod='x"} 1\nevil\\') == [1]


MIG = (
    '[{"containerIndex":1,"deviceIndex":0,"gpuUUID":"GPU-1","profile":"1g.10gb",'
    '"placement":{"start":0,"size":1},"migUUID":"MIG-1","gpuInstanceID":0,"computeInstanceID":2}]'
)


def mig_pod(**fields: object) -> WatchedPod:
    made: dict[str, object] = {
        "uid": "u",
        "version": 1,
        "namespace": "team",
        "name": "a",
        "containers": ("setup", "main"),
        "ids": {},
        "ended": frozenset(),
        "finished": False,
        "mig_allocations": MIG,
    }
    return WatchedPod(**(made | fields))  # type: ignore[arg-type]


def test_mig_devices_of_containers() -> None:
    shown = text([], pods=[mig_pod()], legacy=True)
    assert lines(shown, "hami_mig_device_info") == [
        (
            'hami_mig_device_info{namespace="team",pod="a",container="main",vdevice_index="0",'
            'device_uuid="GPU-1",mig_uuid="MIG-1",profile="1g.10gb",gpu_instance_id="0",'
            f'compute_instance_id="2",{ZONE}}} 1'
        )
    ]
    assert lines(shown, "MigInfo") == [
        (
            'MigInfo{podnamespace="team",podname="a",ctrname="main",vdeviceid="0",deviceuuid="GPU-1",'
            f'instanceid="0",{ZONE}}} 1'
        )
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"finished": True},
        {"ended": frozenset({"main"})},
        {"mig_allocations": "nonsense"},
        {
            "mig_allocations": MIG.replace('"migUUID":"MIG-1","gpuInstanceID":0,', "").replace(
                ',"computeInstanceID":2', ""
            )
        },
        {"containers": ("setup",)},
    ],
)
def test_mig_devices_that_are_over_or_unreadable_are_not_shown(fields: dict[str, object]) -> None:
    assert not lines(text([], pods=[mig_pod(**fields)]), "hami_mig_device_info")


def old(found: Series) -> dict[str, dict[str, str]]:
    return {name: dict(labels) for name, labels in found if not name.startswith("hami_")}


def test_old_names_only_when_asked_for() -> None:
    made = one(use(used=20, context=5, data=15), latest())
    assert not old(nodes.series(text(made, latest())))
    found = nodes.series(text(made, latest(), legacy=True))
    container_names = {"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone"}
    card_names = {"nodeid", "deviceidx", "deviceuuid", "devicetype", "zone"}
    assert {name: set(labels) for name, labels in old(found).items()} == {
        "vGPU_device_memory_usage_in_bytes": container_names,
        "vGPU_device_memory_limit_in_bytes": container_names,
        "Device_utilization_desc_of_container": container_names,
        "Device_last_kernel_of_container": container_names,
        "Device_memory_desc_of_container": container_names
        | {"context", "module", "data", "offset"},
        "HostGPUMemoryUsage": card_names,
        "HostCoreUtilization": card_names,
    }
    assert nodes.values(found, "Device_memory_desc_of_container", context="5", data="15") == [20]
