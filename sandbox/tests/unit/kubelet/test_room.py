"""Pods that came past the scheduler and do not fit are refused in kubelet's words."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.kubelet.decisions import Room, check_room, requested
from hami_sandbox.kubelet.devices.pods import AdmissionError
from sandbox.tests.unit.kubelet.pods import container, pod, sidecar

ROOM = Room("2", "1Gi", 3)


def asking(**requests: str) -> dict[str, Any]:
    return pod("p", container(resources={"requests": requests}))


@pytest.mark.parametrize(
    ("made", "others", "reason", "message"),
    [
        (asking(cpu="1500m"), [asking(cpu="1")], "OutOfcpu", "requested: 1500, used: 1000, capac"),
        (asking(memory="2Gi"), [], "OutOfmemory", "requested: 2147483648, used: 0, capacity: 1073"),
        (asking(), [asking()] * 3, "OutOfpods", "requested: 1, used: 3, capacity: 3"),
    ],
)
def test_one_too_many(made: Any, others: Any, reason: str, message: str) -> None:
    with pytest.raises(AdmissionError, match=message) as refused:
        check_room(made, others, ROOM)
    assert refused.value.reason == reason


def test_what_fits_exactly() -> None:
    check_room(asking(cpu="1", memory="512Mi"), [asking(cpu="1", memory="512Mi")], ROOM)


def test_init_containers_count_by_peak_and_sidecars_by_sum() -> None:
    def wants(made: dict[str, Any], cpu: str) -> dict[str, Any]:
        return {**made, "resources": {"limits": {"cpu": cpu}}}

    init = (wants(container("a"), "3"), wants(sidecar("b"), "1"), wants(container("c"), "3"))
    assert requested(pod("p", wants(container(), "2"), init=init), "cpu") == 4
    assert requested(pod("p", wants(container(), "5"), init=init), "cpu") == 6
