"""Reads from NVML how the cards of a node are joined: PCIe ancestors and NVLinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml  # type: ignore[import-untyped]

from hami.node.cards import NVSWITCH, Card, CardLinks, Problem
from hami.node.nvml_calls import NvmlError, ask, told
from hami.node.nvml_cards import bus_id, problem_of

#: What the question for a link's state answers behind the last link of a card.
_NO_MORE = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED)


def read_links(
    card: Card, handle: Any, others: Sequence[tuple[Card, Any]]
) -> tuple[CardLinks, list[Problem]]:
    """Read one card's links to the others; a question that fails leaves that link out."""
    problems: list[Problem] = []
    ancestors: dict[str, int] = {}
    for other, other_handle in others:
        what = f"way from GPU {card.uuid} to {other.uuid}"
        try:
            level = told(what, pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other_handle)
        except NvmlError as error:
            problems.append(problem_of(error))
        else:
            if level is not None:
                ancestors[other.uuid] = level
    try:
        nvlinks = _nvlinks(card.uuid, handle)
    except NvmlError as error:
        problems.append(problem_of(error))
        nvlinks = []
    links = CardLinks(
        uuid=card.uuid, bus_id=card.bus_id, ancestors=ancestors, nvlinks=tuple(nvlinks)
    )
    return links, problems


def _nvlinks(uuid: str, handle: Any) -> list[str]:
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        what = f"NVLink {link} of GPU {uuid}"
        try:
            active = ask(what, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except NvmlError as error:
            if error.code in _NO_MORE:
                break
            raise
        if not active:
            continue
        kind = told(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(NVSWITCH)
        elif (pci := told(what, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)) is not None:
            ends.append(bus_id(pci))
    return ends
