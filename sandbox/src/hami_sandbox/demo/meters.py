"""What the monitors of the nodes tell: their pages, read into samples that can be asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import parser

#: What is in use of a container's share, and of a card.
SHARE_USED = "hami_vgpu_memory_used_bytes"
CARD_USED = "hami_host_gpu_memory_used_bytes"


class Sample(msgspec.Struct, frozen=True, gc=False):
    node: str
    name: str
    labels: Mapping[str, str]
    value: float


def read(node: str, page: str) -> Iterator[Sample]:
    """Yield the samples of a monitor's page; raises ValueError for what is no such page."""
    for family in parser.text_string_to_metric_families(page):
        for sample in family.samples:
            yield Sample(node, sample.name, sample.labels, sample.value)


def select(samples: Iterable[Sample], name: str, labels: Mapping[str, str]) -> list[Sample]:
    """Return the samples of this name that have these labels, whatever others they have."""
    return [
        sample
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
