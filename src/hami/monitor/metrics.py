"""The node in Prometheus' text format: its cards, and what containers have of them.

Names and labels are HAMi's, so that its dashboards work; of our own are compute by container, use
above the limit and use that nobody manages. The old names come too when asked for. Written by hand:
a client library would take longer for it than all the reading does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from hami.monitor.audit import Latest
from hami.monitor.collect import Row
from hami.monitor.driver import CardNow
from hami.monitor.findings import OnCard
from hami.monitor.pods import WatchedPod
from hami.serving import metrics
from hami.wire import errors, mig
from hami.wire.mig import Allocation

#: What Prometheus takes for one value.
Number = int | float


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one scrape shows."""

    node: str
    rows: Sequence[Row]
    #: None: the driver has not answered lately.
    latest: Latest | None
    pods: Iterable[WatchedPod] = ()


def families(picture: NodeSnapshot, *, legacy: bool) -> Iterator[bytes]:
    """Yield the text of one family after the other."""
    shares = [_share_labels(row) for row in picture.rows]
    for name, told, value in _SHARES:
        yield _family(name, told, _share_lines(picture.rows, shares, value))
    cards = picture.latest.cards if picture.latest is not None else ()
    for name, told, names, card_value in _CARDS:
        yield _family(name, told, _card_lines(picture.node, cards, names, card_value))
    yield _family(
        "hami_gpu_unmanaged_memory_bytes",
        "Memory of a card in processes that no limiter of hami accounts for; without names: all "
        "that belongs to no pod.",
        _unmanaged(picture),
    )
    slices = [part for pod in picture.pods for part in _mig_slices(pod)]
    yield _family("hami_mig_device_info", "MIG devices of containers: always 1.", map(_mig, slices))
    if legacy:
        old = [_old_share_labels(row) for row in picture.rows]
        for name, told, value in _OLD_SHARES:
            yield _family(name, told, _share_lines(picture.rows, old, value))
        yield _family(*_OLD_MEMORY, _old_memory(picture.rows, old))
        for name, told, names, card_value in _OLD_CARDS:
            yield _family(name, told, _card_lines(picture.node, cards, names, card_value))
        yield _family("MigInfo", "Old name of hami_mig_device_info.", map(_old_mig, slices))


def _family(name: str, told: str, lines: Iterable[tuple[str, Number]]) -> bytes:
    text = "".join([f"{name}{{{labels}}} {value}\n" for labels, value in lines])
    return f"# HELP {name} {told}\n# TYPE {name} gauge\n{text}".encode("utf-8", "replace")


def _labels(names: Sequence[str], values: Iterable[object]) -> str:
    told = zip(names, values, strict=True)
    pairs = [f'{name}="{metrics.escape_label(str(value))}"' for name, value in told]
    return ",".join([*pairs, 'zone="vGPU"'])


# What containers have.

_SHARE_NAMES = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_SHARE_NAMES = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")


def _share_labels(row: Row) -> str:
    return _labels(_SHARE_NAMES, (row.namespace, row.pod, row.container, row.place, row.uuid))


def _old_share_labels(row: Row) -> str:
    return _labels(_OLD_SHARE_NAMES, (row.namespace, row.pod, row.container, row.place, row.uuid))


_Value = Callable[[Row], Number | None]


def _share_lines(
    rows: Iterable[Row], labels: Iterable[str], value: _Value
) -> Iterator[tuple[str, Number]]:
    for row, text in zip(rows, labels, strict=True):
        number = value(row)
        if number is not None:
            yield text, number


def _memory_used(row: Row) -> int | None:
    return row.memory_used


def _memory_limit(row: Row) -> int:
    return row.memory_limit


def _core_used(row: Row) -> int | None:
    return row.core_used


def _since_last_kernel(row: Row) -> float | None:
    return row.since_last_kernel


_SHARES: tuple[tuple[str, str, _Value], ...] = (
    ("hami_vgpu_memory_used_bytes", "Memory of a card that a container uses.", _memory_used),
    (
        "hami_vgpu_memory_limit_bytes",
        "Memory of a card that a container may use; 0 is no limit.",
        _memory_limit,
    ),
    (
        "hami_vgpu_core_used_percent",
        "Compute of a card that a container uses, by the driver's account.",
        _core_used,
    ),
    (
        "hami_vgpu_core_limit_percent",
        "Compute of a card that a container may use; 100 is no limit.",
        lambda row: row.core_limit,
    ),
    (
        "hami_vgpu_over_limit_bytes",
        "Memory of a card that a container has above its limit, by the driver's account.",
        lambda row: row.over_limit,
    ),
    ("hami_container_device_memory_bytes", "As hami_vgpu_memory_used_bytes.", _memory_used),
    ("hami_container_device_utilization_ratio", "As hami_vgpu_core_used_percent.", _core_used),
    (
        "hami_container_last_kernel_elapsed_seconds",
        "Seconds since a container last launched a kernel.",
        _since_last_kernel,
    ),
    (
        "hami_vgpu_memory_context_bytes",
        "Of a container's memory, what the driver takes by itself: contexts, modules, streams.",
        lambda row: row.context,
    ),
    (
        "hami_vgpu_memory_module_bytes",
        "Of a container's memory, modules, where HAMi's library tells them apart.",
        lambda row: row.module,
    ),
    (
        "hami_vgpu_memory_buffer_bytes",
        "Of a container's memory, what its programs asked for.",
        lambda row: row.data,
    ),
)

_OLD_SHARES: tuple[tuple[str, str, _Value], ...] = (
    (
        "vGPU_device_memory_usage_in_bytes",
        "Old name of hami_vgpu_memory_used_bytes.",
        _memory_used,
    ),
    (
        "vGPU_device_memory_limit_in_bytes",
        "Old name of hami_vgpu_memory_limit_bytes.",
        _memory_limit,
    ),
    (
        "Device_utilization_desc_of_container",
        "Old name of hami_container_device_utilization_ratio.",
        _core_used,
    ),
    (
        "Device_last_kernel_of_container",
        "Old name of hami_container_last_kernel_elapsed_seconds.",
        _since_last_kernel,
    ),
)

_OLD_MEMORY = (
    "Device_memory_desc_of_container",
    "Old name of hami_container_device_memory_bytes, with its parts as labels.",
)


def _old_memory(rows: Iterable[Row], labels: Iterable[str]) -> Iterator[tuple[str, Number]]:
    for row, text in zip(rows, labels, strict=True):
        if row.memory_used is not None:
            parts = (row.context, row.module, row.data, row.offset)
            names = ("context", "module", "data", "offset")
            told = ",".join(f'{n}="{p or 0}"' for n, p in zip(names, parts, strict=True))
            yield f"{told},{text}", row.memory_used


# Cards.

_HOST_NAMES = ("node", "device_index", "device_uuid", "device_type")
_OLD_HOST_NAMES = ("nodeid", "deviceidx", "deviceuuid", "devicetype")


def _card_lines(
    node: str,
    cards: Iterable[CardNow],
    names: Sequence[str],
    value: Callable[[CardNow], int | None],
) -> Iterator[tuple[str, Number]]:
    for each in cards:
        number = value(each)
        if number is not None:
            card = each.card
            told = (node, card.index, card.uuid, f"NVIDIA-{card.name}")
            yield _labels(names, told[len(told) - len(names) :]), number


def _card_memory(each: CardNow) -> int | None:
    return each.memory_used


def _card_busy(each: CardNow) -> int | None:
    return each.utilization[0] if each.utilization is not None else None


def _card_memory_busy(each: CardNow) -> int | None:
    return each.utilization[1] if each.utilization is not None else None


_CARDS: tuple[tuple[str, str, tuple[str, ...], Callable[[CardNow], int | None]], ...] = (
    (
        "hami_host_gpu_memory_used_bytes",
        "Memory of a card in use, by whomever.",
        _HOST_NAMES,
        _card_memory,
    ),
    (
        "hami_host_gpu_utilization_ratio",
        "How busy a card is, in percent.",
        _HOST_NAMES,
        _card_busy,
    ),
    (
        "hami_host_gpu_memory_controller_utilization_ratio",
        "How busy a card's memory is, in percent.",
        _HOST_NAMES[1:],
        _card_memory_busy,
    ),
)

_OLD_CARDS = (
    (
        "HostGPUMemoryUsage",
        "Old name of hami_host_gpu_memory_used_bytes.",
        _OLD_HOST_NAMES,
        _card_memory,
    ),
    (
        "HostCoreUtilization",
        "Old name of hami_host_gpu_utilization_ratio.",
        _OLD_HOST_NAMES,
        _card_busy,
    ),
)

_UNMANAGED_NAMES = ("node", "device_uuid", "device_index", "namespace", "pod", "container")


def _unmanaged(picture: NodeSnapshot) -> Iterator[tuple[str, Number]]:
    if picture.latest is None:
        return
    sums: dict[tuple[object, ...], int] = {
        # What is watched and clean is shown as such.
        (part.uuid, part.index, "", "", ""): 0
        for part in picture.latest.parts
        if not part.mig
    }
    for process in picture.latest.verdict.unmanaged:
        key = _unmanaged_key(process)
        sums[key] = sums.get(key, 0) + (process.memory or 0)
    for key, memory in sums.items():
        yield _labels(_UNMANAGED_NAMES, (picture.node, *key)), memory


def _unmanaged_key(process: OnCard) -> tuple[object, ...]:
    owner = process.owner
    return (process.uuid, process.index, owner.namespace, owner.pod, owner.key.container)


# MIG devices that the scheduler had made.

_MIG_NAMES = (
    *_SHARE_NAMES,
    *("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"),
)

_Slice = tuple[WatchedPod, str, Allocation]


def _mig_slices(pod: WatchedPod) -> Iterator[_Slice]:
    if not pod.mig_allocations or pod.finished:
        return
    try:
        found = mig.decode_allocations(pod.mig_allocations)
    except errors.WireError:
        return  # it concerns this pod, and the agent says so where it reads it
    for one in found:
        if one.mig_uuid is not None and one.container_index < len(pod.containers):
            name = pod.containers[one.container_index]
            if name not in pod.ended:
                yield pod, name, one


def _mig(found: _Slice) -> tuple[str, int]:
    pod, container, one = found
    names = (pod.namespace, pod.name, container, one.device_index, one.gpu_uuid)
    parts = (one.mig_uuid, one.profile, one.gpu_instance, one.compute_instance)
    return _labels(_MIG_NAMES, (*names, *parts)), 1


def _old_mig(found: _Slice) -> tuple[str, int]:
    pod, container, one = found
    names = (pod.namespace, pod.name, container, one.device_index, one.gpu_uuid)
    return _labels((*_OLD_SHARE_NAMES, "instanceid"), (*names, one.gpu_instance)), 1
