"""The requests that the reference reads: docs/placement.md, section 1."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hami.wire import objects
from tests.oracle import reference
from tests.oracle.hand_made_cases import TWO_NODES, ask, card, gpu, node, pod
from tests.oracle.reference_request import (
    Weights,
    read_ask,
    read_gpu_policy,
    read_node_policy,
    read_weights,
)
from tests.oracle.reference_vendor import Ask
from tests.oracle.sample_vendors import NVIDIA


@pytest.mark.parametrize(
    ("limits", "want"),
    {
        "count only is the whole card": (gpu(2), (2, 0, 100, 0)),
        "memory": (gpu(1, 4096), (1, 4096, 0, 0)),
        "percentage": (gpu(1, percentage=50), (1, 0, 50, 0)),
        "percentage 0 counts as absent": (gpu(1, percentage=0), (1, 0, 100, 0)),
        "memory wins": (gpu(1, 2000, percentage=50), (1, 2000, 0, 0)),
        "memory 0 is no memory": (gpu(1, 0), (1, 0, 100, 0)),
        "cores above 100": (gpu(1, 1, 2000), (1, 1, 0, 100)),
        "quantities": (gpu("1e0", "16Ki", "50000m"), (1, 16384, 0, 50)),
    }.values(),
)
def test_requests(limits: dict[str, Any], want: tuple[int, ...]) -> None:
    container = objects.Container(resources=objects.Resources(limits=limits))
    read = read_ask(container, NVIDIA)
    assert read is not None
    assert dataclasses.astuple(read) == (*want, 0)


def test_defaults_and_factor() -> None:
    vendor = dataclasses.replace(NVIDIA, memory_factor=10, default_memory=500, default_cores=30)

    def read(limits: dict[str, Any]) -> Ask | None:
        resources = objects.Resources(requests=limits)
        return read_ask(objects.Container(resources=resources), vendor)

    assert read(gpu(1)) == Ask(1, 500, 0, 30)
    assert read(gpu(1, 7, 0)) == Ask(1, 70, 0, 0)
    assert read(gpu(1, percentage=5)) == Ask(1, 0, 5, 30)
    assert read(gpu(1, 214748364)) == Ask(1, 2147483640, 0, 30)
    assert read(gpu(0, "nonsense")) is None


@pytest.mark.parametrize(
    "incoming",
    {
        "count": pod(gpu("1.5")),
        "negative count": pod(gpu(-1)),
        "huge count": pod(gpu("1e30")),
        "memory": pod(gpu(1, "16Gi")),
        "percentage": pod(gpu(1, percentage=101)),
        "percentage beside memory": pod(gpu(1, 1000, percentage=101)),
        "cores": pod(gpu(1, cores=-1)),
        "second container": pod(gpu(), gpu("x")),
        "node policy": pod(gpu(), node_policy="mutex"),
        "node policy with blanks within": pod(gpu(), node_policy="bin pack"),
        "gpu policy": pod(gpu(), gpu_policy="binpack,best"),
        "blank weights": pod(gpu(), weights=""),
        "missing weight": pod(gpu(), weights="slot=1,core=1"),
        "double weight": pod(gpu(), weights="slot=1,core=1,memory=1,slot=1"),
        "zero weights": pod(gpu(), weights="slot=0,core=0,memory=0"),
        "fractional weight": pod(gpu(), weights="slot=0.5,core=0,memory=0"),
        "large weight": pod(gpu(), weights="slot=2147483648,core=0,memory=0"),
    }.values(),
)
def test_malformed_requests_are_refused(incoming: objects.Pod) -> None:
    answer = ask(incoming, *TWO_NODES)
    assert answer.error
    assert not answer.passed_through
    assert answer.winner is None


@pytest.mark.parametrize(
    ("value", "want"),
    [("", "spread"), (" ", "spread"), (" binpack", "binpack"), ("\tspread ", "spread")],
)
def test_node_policies_are_trimmed(value: str, want: str) -> None:
    assert read_node_policy(pod(node_policy=value), "spread") == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("", ["mutex", "numa"]),
        (" ", ["mutex", "numa"]),
        (",", ["mutex", "numa"]),
        (" , ", ["mutex", "numa"]),
        (" spread ,", ["spread"]),
        ("numa,, binpack", ["numa", "binpack"]),
    ],
)
def test_gpu_policies_without_a_word_are_the_default(value: str, want: list[str]) -> None:
    assert read_gpu_policy(pod(gpu_policy=value), "mutex, numa") == want


def test_weights_in_any_order() -> None:
    wanted = read_weights(pod(weights=" memory=3, core = 2,slot=1"))
    assert wanted == Weights(1, 2, 3)


@pytest.mark.parametrize("limits", [{}, {"cpu": "1"}, gpu(0), {NVIDIA.memory: "1000"}])
def test_pods_without_a_count_pass_through(limits: dict[str, Any]) -> None:
    assert ask(pod(limits), *TWO_NODES) == reference.Answer(passed_through=True)


@pytest.mark.parametrize(
    ("annotations", "model", "want"),
    [
        ({"use_type": "H20"}, "NVIDIA H200", False),
        ({"use_type": "h200"}, "NVIDIA H200", True),
        ({"use_type": "A10"}, "NVIDIA A100-SXM4-40GB", False),
        ({"use_type": "A10"}, "NVIDIA A10G", True),
        ({"use_type": "SXM"}, "NVIDIA A100-SXM4-40GB", True),
        ({"use_type": "H20, ,A10G"}, "NVIDIA A10G", True),
        ({"use_type": "  "}, "NVIDIA A10G", True),
        ({"nouse_type": " , "}, "NVIDIA A10G", True),
        ({"nouse_type": "H20"}, "NVIDIA H200", True),
        ({"nouse_type": "H20,H200"}, "NVIDIA H200", False),
        ({"use_type": "H200", "nouse_type": "nvidia"}, "NVIDIA H200", False),
    ],
)
def test_types(annotations: dict[str, Any], model: str, want: bool) -> None:
    answer = ask(pod(gpu(), **annotations), node("n", card("a", type=model)))
    assert (answer.winner == "n") is want
    assert answer.failed == ({} if want else {"n": "1/1 CardTypeMismatch"})


@pytest.mark.parametrize("key", ["use_type", "use_uuid"])
def test_a_use_list_that_names_nothing_is_an_error(key: str) -> None:
    wanted: dict[str, Any] = {key: ","}
    assert ask(pod(gpu(), **wanted), node("n", card("a"))).error is not None
