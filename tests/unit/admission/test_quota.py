"""Admission refuses pods above a namespace's quota, by the scheduler's sums."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami.cluster.quota import Headroom, Quotas, read_quota
from hami.vendors.table import Vendor
from tests import builders
from tests.builders import NVIDIA
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door, container, pod


def door(*, namespace: str = "default", vendor: Vendor = NVIDIA, **hard: Any) -> Door:
    """Make a door to a cluster with one quota."""
    quotas_of = Quotas()
    quotas_of.put(read_quota(builders.quota("q", namespace=namespace, **hard), (vendor,)))
    return Door(vendor=vendor, headroom=quotas_of.headroom)


SUMS = {
    "one container": (pod(container(gpu=1, memory=1000, cores=30)), 1000, 30),
    "multiplied by the cards": (pod(container(gpu=3, memory=1000, cores=30)), 3000, 90),
    "containers add up": (
        pod(container("a", gpu=1, memory=1000, cores=10), container("b", gpu=2, memory=500)),
        2000,
        10,
    ),
    "the largest init container": (
        pod(
            container("app", gpu=1, memory=1000, cores=10),
            init=[
                container("i", gpu=2, memory=900, cores=40),
                container("j", gpu=1, memory=1500, cores=20),
            ],
        ),
        1800,
        80,
    ),
    "a sidecar stays": (
        pod(
            container("app", gpu=1, memory=1000, cores=10),
            init=[
                container("side", gpu=1, memory=200, cores=5, restart="Always"),
                container("init", gpu=1, memory=900, cores=50),
            ],
        ),
        1200,
        55,
    ),
    "percentages are counted by the scheduler": (
        pod(container(gpu=2, percent=50, cores=20)),
        0,
        40,
    ),
    "a whole card": (pod(container(gpu=2)), 0, 200),
    "cards by default": (pod(container(memory=700)), 700, 0),
}


@pytest.mark.parametrize(("document", "memory", "cores"), SUMS.values(), ids=SUMS)
def test_a_pod_just_fits_by_its_sums(document: Document, memory: int, cores: int) -> None:
    assert door(memory=memory, cores=cores).send(document).allowed
    if memory:
        assert "gpumem" in door(memory=memory - 1).refuses(document)
    if cores:
        assert "gpucores" in door(cores=cores - 1).refuses(document)


def test_what_adds_nothing_is_not_held_up() -> None:
    assert door(memory=0).send(pod(container(gpu=1, percent=50))).allowed
    assert door(cores=0).send(pod(container(gpu=1, memory=10))).allowed


def test_the_message_says_what_is_asked_what_is_left_and_what_to_do() -> None:
    message = door(memory=500, cores=10).refuses(pod(container(gpu=2, memory=300, cores=30)))
    assert message == (
        "exceeding resource quota: namespace default asks for "
        "600 MiB (nvidia.com/gpumem) where 500 MiB are left and "
        "60 % (nvidia.com/gpucores) where 10 % are left; "
        "ask for less, delete a pod, or raise the ResourceQuota"
    )


def test_only_what_is_exceeded_is_named_and_an_overdrawn_quota_has_nothing_left() -> None:
    overdrawn = Door(headroom=lambda _, __: Headroom(memory=-7, cores=50))
    message = overdrawn.refuses(pod(container(gpu=1, memory=300, cores=30)))
    assert "asks for 300 MiB (nvidia.com/gpumem) where 0 MiB are left;" in message
    assert "gpucores" not in message
    message = door(memory=300, cores=20).refuses(pod(container(gpu=1, memory=300, cores=30)))
    assert "asks for 30 % (nvidia.com/gpucores) where 20 % are left;" in message
    overdrawn = Door(headroom=lambda _, __: Headroom(memory=-7, cores=20))
    assert "gpumem " not in overdrawn.refuses(pod(container(gpu=1, percent=50, cores=30)))


def test_the_quota_of_another_namespace_does_not_count() -> None:
    document = pod(container(gpu=1, memory=300))
    assert door(namespace="team-a", memory=0).send(document).allowed
    document["metadata"]["namespace"] = "team-a"
    assert "namespace team-a" in door(namespace="team-a", memory=0).refuses(document)


def test_the_namespace_may_come_from_the_review() -> None:
    document = pod(container(gpu=1, memory=300))
    del document["metadata"]["namespace"]
    answer = door(namespace="team-a", memory=0).send(document, namespace="team-a")
    assert "namespace team-a" in answer.message


def test_a_unit_of_memory_is_counted_by_its_factor() -> None:
    vendor = msgspec.structs.replace(NVIDIA, memory_factor=256)
    assert door(vendor=vendor, memory=4).send(pod(container(gpu=1, memory=4))).allowed
    message = door(vendor=vendor, memory=3).refuses(pod(container(gpu=1, memory=4)))
    assert "1024 MiB (nvidia.com/gpumem) where 768 MiB are left" in message


def test_a_profile_that_falls_back_to_a_share_counts_as_that_share() -> None:
    document = pod(container(mig={"1g.10gb": 2}))
    message = door(memory=20000).refuses(document)
    assert "20070 MiB (nvidia.com/gpumem) where 20000 MiB are left" in message
    assert door(memory=20070, cores=28).send(document).allowed


def test_a_pod_without_cards_is_never_held_up() -> None:
    assert door(memory=0, cores=0).send(pods.pod(pods.container())).allowed
