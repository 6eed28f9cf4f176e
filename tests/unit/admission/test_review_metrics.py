"""Metrics of admission, under the names of the compatible MIG webhook."""

from __future__ import annotations

import json

import pytest

from tests.unit.admission import pods
from tests.unit.admission.desk import Desk, review
from tests.unit.admission.pods import MIG, Door

MOVED = pods.pod(
    pods.container("a", mig={"3g.40gb": 2}),
    pods.container("b", mig={"3g.40gb": 1}),
    init=[pods.container("i", mig={"1g.5gb": 1})],
)
REFUSED = pods.pod(pods.container(gpu=1, privileged=True))
TIMES = "gpu_webhook_response_time_seconds_count"


def desk() -> Desk:
    return Desk(Door(nodes={"a": {f"{MIG}2g.20gb": "1", "nvidia.com/gpu": "10"}}))


async def test_replaced_profiles_are_counted_by_container() -> None:
    counting = desk()
    await counting.ask(review(MOVED))
    counted = counting.counted()
    assert counted["gpu_webhook_fallback_total{from=3g.40gb, to=2g.20gb}"] == 2
    assert counted["gpu_webhook_fallback_total{from=1g.5gb, to=gpu}"] == 1


async def test_times_are_counted_by_result() -> None:
    counting = desk()
    await counting.ask(review(MOVED))
    await counting.ask(review(pods.pod(pods.container())))
    await counting.ask(review(pods.pod(pods.container(gpu=1)), operation="UPDATE"))
    await counting.ask(review(REFUSED))
    counted = counting.counted()
    assert counted[f"{TIMES}{{result=changed}}"] == 1
    assert counted[f"{TIMES}{{result=unchanged}}"] == 2
    assert counted[f"{TIMES}{{result=refused}}"] == 1
    assert not [name for name in counted if name.startswith("gpu_webhook_errors")]


async def test_time_is_taken_from_the_beginning_to_the_end() -> None:
    times = iter([10.0, 12.5])
    counting = Desk(clock=lambda: next(times))
    await counting.ask(review(pods.pod(pods.container())))
    assert 'gpu_webhook_response_time_seconds_sum{result="unchanged"} 2.5' in counting.text()


async def test_what_cannot_be_answered_is_counted_by_what_was_wrong() -> None:
    counting = desk()
    await counting.send(b"")
    await counting.ask(review(None))
    await counting.ask(review({}, kind={"kind": "Node"}))
    counted = counting.counted()
    assert counted["gpu_webhook_errors_total{kind=no review}"] == 1
    assert counted["gpu_webhook_errors_total{kind=no pod}"] == 2
    assert counted[f"{TIMES}{{result=error}}"] == 3


async def test_a_replica_that_is_not_ready_counts_that() -> None:
    counting = Desk(why_not_ready=lambda: "nodes", patience=0)
    await counting.send(json.dumps(review(MOVED)).encode())
    assert counting.counted() == {
        "gpu_webhook_errors_total{kind=not ready}": 1,
        f"{TIMES}{{result=error}}": 1,
    }


@pytest.mark.parametrize(
    "question",
    [
        review(MOVED, dryRun=True),
        review(REFUSED, dryRun=True),
        review(pods.pod(pods.container()), dryRun=True),
        review(MOVED, dryRun=True, operation="UPDATE"),
        review(None, dryRun=True),
    ],
    ids=["moved", "refused", "unchanged", "update", "no pod"],
)
async def test_a_dry_run_is_decided_and_counts_nothing(question: pods.Document) -> None:
    counting = desk()
    reply = await counting.ask(question)
    assert counting.counted() == {}
    del question["request"]["dryRun"]
    assert await counting.ask(question) == reply
    assert counting.counted()


async def test_a_mistake_of_ours_is_counted_and_left_to_the_server_to_report() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    counting = Desk(Door(headroom=broken))  # type: ignore[arg-type]  # that is the mistake
    body = json.dumps(review(pods.pod(pods.container(gpu=1)))).encode()
    with pytest.raises(RuntimeError, match="broken"):
        await counting.send(body)
    assert counting.counted() == {
        "gpu_webhook_errors_total{kind=internal}": 1,
        f"{TIMES}{{result=error}}": 1,
    }
