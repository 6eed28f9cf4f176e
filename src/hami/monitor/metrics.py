"""Write a snapshot of the node in Prometheus' text format.

Names and labels are HAMi's, so that its dashboards work; compute by container, usage above the
limit and unmanaged usage are ours. HAMi's old names are added on request. The text is written by
hand: a client library would take longer for it than all reading takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from hami.monitor.collect import Collector, NodeSnapshot, ShareUsage
from hami.monitor.driver import CardSample
from hami.monitor.findings import OwnedProcess
from hami.monitor.pods import WatchedPod
from hami.serving import metrics
from hami.wire import errors, mig
from hami.wire.mig import Allocation

#: The value of a sample.
Number = int | float


class NodeMetrics:
    """The node's part of /metrics."""

    def __init__(self, collector: Collector, *, legacy: bool) -> None:
        self._collector = collector
        self._legacy = legacy

    async def families(self) -> AsyncIterator[bytes]:
        """Collect a snapshot, and yield the text of one family after the other."""
        for family in families(await self._collector.collect(), legacy=self._legacy):
            yield family


def families(snapshot: NodeSnapshot, *, legacy: bool) -> Iterator[bytes]:
    """Yield the text of one family after the other."""
    labels = [_share_labels(each) for each in snapshot.shares]
    for name, text, value in _SHARES:
        yield _family(name, text, _share_lines(snapshot.shares, labels, value))
    cards = snapshot.findings.sample.cards if snapshot.findings is not None else ()
    for name, text, names, card_value in _CARDS:
        yield _family(name, text, _card_lines(snapshot.node, cards, names, card_value))
    yield _family(
        "hami_host_gpu_figure_missing",
        "A figure of a card that is not shown because the driver does not report it: always 1.",
        _missing(snapshot.node, cards),
    )
    yield _family(
        "hami_gpu_unmanaged_memory_bytes",
        "Memory of a card in processes that no limiter of hami accounts for; without names: all "
        "that belongs to no pod.",
        _unmanaged(snapshot),
    )
    slices = [each for pod in snapshot.pods for each in _mig_slices(pod)]
    yield _family("hami_mig_device_info", "MIG devices of containers: always 1.", map(_mig, slices))
    if legacy:
        old = [_old_share_labels(each) for each in snapshot.shares]
        for name, text, value in _OLD_SHARES:
            yield _family(name, text, _share_lines(snapshot.shares, old, value))
        yield _family(*_OLD_MEMORY, _old_memory(snapshot.shares, old))
        for name, text, names, card_value in _OLD_CARDS:
            yield _family(name, text, _card_lines(snapshot.node, cards, names, card_value))
        yield _family("MigInfo", "Old name of hami_mig_device_info.", map(_old_mig, slices))


def _family(name: str, text: str, lines: Iterable[tuple[str, Number]]) -> bytes:
    samples = "".join([f"{name}{{{labels}}} {value}\n" for labels, value in lines])
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{samples}".encode("utf-8", "replace")


def _labels(names: Sequence[str], values: Iterable[object]) -> str:
    named = zip(names, values, strict=True)
    pairs = [f'{name}="{metrics.escape_label(str(value))}"' for name, value in named]
    return ",".join([*pairs, 'zone="vGPU"'])


# Shares of containers.

_SHARE_NAMES = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_SHARE_NAMES = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")


def _share_labels(share: ShareUsage) -> str:
    return _labels(
        _SHARE_NAMES, (share.namespace, share.pod, share.container, share.index, share.card)
    )


def _old_share_labels(share: ShareUsage) -> str:
    return _labels(
        _OLD_SHARE_NAMES, (share.namespace, share.pod, share.container, share.index, share.card)
    )


_Value = Callable[[ShareUsage], Number | None]


def _share_lines(
    shares: Iterable[ShareUsage], labels: Iterable[str], value: _Value
) -> Iterator[tuple[str, Number]]:
    for share, text in zip(shares, labels, strict=True):
        number = value(share)
        if number is not None:
            yield text, number


def _memory_used(share: ShareUsage) -> int | None:
    return share.memory_used


def _memory_limit(share: ShareUsage) -> int:
    return share.memory_limit


def _core_used(share: ShareUsage) -> int | None:
    return share.core_used


def _since_last_kernel(share: ShareUsage) -> float | None:
    return share.since_last_kernel


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
        lambda share: share.core_limit,
    ),
    (
        "hami_vgpu_over_limit_bytes",
        "Memory of a card that a container has above its limit, by the driver's account.",
        lambda share: share.over_limit,
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
        lambda share: share.context,
    ),
    (
        "hami_vgpu_memory_module_bytes",
        "Of a container's memory, modules, where HAMi's library tells them apart.",
        lambda share: share.module,
    ),
    (
        "hami_vgpu_memory_buffer_bytes",
        "Of a container's memory, what its programs asked for.",
        lambda share: share.data,
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


def _old_memory(
    shares: Iterable[ShareUsage], labels: Iterable[str]
) -> Iterator[tuple[str, Number]]:
    for share, text in zip(shares, labels, strict=True):
        if share.memory_used is not None:
            parts = (share.context, share.module, share.data, share.offset)
            names = ("context", "module", "data", "offset")
            sizes = ",".join(f'{n}="{p or 0}"' for n, p in zip(names, parts, strict=True))
            yield f"{sizes},{text}", share.memory_used


# Cards.

_HOST_NAMES = ("node", "device_index", "device_uuid", "device_type")
_OLD_HOST_NAMES = ("nodeid", "deviceidx", "deviceuuid", "devicetype")


def _card_lines(
    node: str,
    cards: Iterable[CardSample],
    names: Sequence[str],
    value: Callable[[CardSample], int | None],
) -> Iterator[tuple[str, Number]]:
    for each in cards:
        number = value(each)
        if number is not None:
            card = each.card
            # HAMi puts its prefix before every name; the scheduler's metrics have the card's type.
            kind = f"NVIDIA-{card.name}" if names is _OLD_HOST_NAMES else card.type
            values = (node, card.index, card.uuid, kind)
            yield _labels(names, values[len(values) - len(names) :]), number


def _missing(node: str, cards: Iterable[CardSample]) -> Iterator[tuple[str, Number]]:
    for each in cards:
        card = (node, each.card.index, each.card.uuid, each.card.type)
        for figure, reason in each.missing.items():
            yield _labels((*_HOST_NAMES, "figure", "reason"), (*card, figure, reason)), 1


def _card_memory(each: CardSample) -> int | None:
    return each.memory_used


def _card_busy(each: CardSample) -> int | None:
    return each.utilization[0] if each.utilization is not None else None


def _card_memory_busy(each: CardSample) -> int | None:
    return each.utilization[1] if each.utilization is not None else None


_CARDS: tuple[tuple[str, str, tuple[str, ...], Callable[[CardSample], int | None]], ...] = (
    (
        "hami_host_gpu_memory_used_bytes",
        "Memory of a card in use, by all processes.",
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


def _unmanaged(snapshot: NodeSnapshot) -> Iterator[tuple[str, Number]]:
    if snapshot.findings is None:
        return
    sums: dict[tuple[object, ...], int] = {
        # A card without unmanaged processes is shown with 0.
        (each.uuid, each.index, "", "", ""): 0
        for each in snapshot.findings.sample.processes
        if not each.mig
    }
    for process in snapshot.findings.unmanaged:
        key = _unmanaged_key(process)
        sums[key] = sums.get(key, 0) + (process.memory or 0)
    for key, memory in sums.items():
        yield _labels(_UNMANAGED_NAMES, (snapshot.node, *key)), memory


def _unmanaged_key(process: OwnedProcess) -> tuple[object, ...]:
    owner = process.owner
    return (process.card, process.card_index, owner.namespace, owner.pod, owner.key.container)


# MIG devices that the scheduler placed.

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
        return  # it affects this pod only, and the agent reports it
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
