"""The driver's lists of processes become one."""

from __future__ import annotations

import types
from typing import Any

import pytest

from hami.node import nvml_processes
from hami.node.nvml_processes import GpuProcess, read_processes

NONE = 0xFFFFFFFF
Lists = dict[str, list[types.SimpleNamespace]]


def entry(pid: int, memory: int | None, gpu: int = NONE, compute: int = NONE) -> Any:
    return types.SimpleNamespace(
        pid=pid, usedGpuMemory=memory, gpuInstanceId=gpu, computeInstanceId=compute
    )


def use(monkeypatch: pytest.MonkeyPatch, *lists: Lists) -> None:
    """Let the driver list these, by handle, one mapping for each purpose."""
    monkeypatch.setattr(
        nvml_processes,
        "_LISTS",
        tuple((lambda handle, each=each: each.get(handle, []),) for each in lists),
    )


def held(parts: list[tuple[Any, int, int]] | None = None) -> dict[int, int | None]:
    return {each.pid: each.memory for each in read_processes("test", "card", parts or [])}


def test_a_process_that_computes_and_draws_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"card": [entry(1, 500), entry(2, 7)]}, {"card": [entry(1, 510)]})
    assert held() == {1: 510, 2: 7}


def test_memory_that_is_not_reported_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"card": [entry(1, None), entry(2, None)]}, {"card": [entry(2, 9)]})
    assert held() == {1: None, 2: 9}


def test_parts_are_added_and_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[tuple[Any, int, int]] = [("part-7", 7, 0), ("part-8", 8, 0)]
    on_parts = {"part-7": [entry(1, 100), entry(2, 5)], "part-8": [entry(1, 20)]}
    use(monkeypatch, on_parts)
    assert held(parts) == {1: 120, 2: 5}
    use(monkeypatch, {**on_parts, "card": [entry(1, 100, 7, 0), entry(1, 20, 8, 0)]})
    assert held(parts) == {1: 120, 2: 5}


def test_processes_come_by_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"card": [entry(9, 1), entry(3, 2)]})
    assert read_processes("test", "card", []) == (
        GpuProcess(pid=3, memory=2),
        GpuProcess(pid=9, memory=1),
    )
