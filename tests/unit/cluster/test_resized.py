"""Resized pods count with no less than their processes may hold."""

from __future__ import annotations

from hami.cluster.state import Cluster
from hami.wire import annotation_keys, grant, objects
from tests.builders import NVIDIA, VENDORS, cards, container, node, pod, use

ALLOCATED = NVIDIA.annotations.allocated


def devices(memory: int, cores: int = 0, card: str = "g-0") -> str:
    return f"{card},NVIDIA,{memory},{cores}:;"


def signed(seen: objects.Pod, order: grant.Resize | None = None) -> bool:
    """Take grants as they are, and orders whose signature names their number."""
    wanted = f"signed {order.seq}" if order is not None else ""
    return order is None or seen.annotation(annotation_keys.RESIZE_MAC) == wanted


def resized(order: str = "", answer: str = "", mac: str = "", granted: int = 4000) -> objects.Pod:
    number = order.split(";")[1] if order else ""
    annotations = {
        ALLOCATED: devices(granted, 30),
        annotation_keys.RESIZE: order,
        annotation_keys.RESIZE_MAC: mac or f"signed {number}",
        annotation_keys.RESIZED: answer,
    }
    return pod(
        "p",
        container(gpu=1, memory=granted),
        node_name="n",
        annotations={key: value for key, value in annotations.items() if value},
    )


def counted(*seen: objects.Pod) -> tuple[int, int]:
    """Return MiB and percent of the card after a pod was seen like this, one after the other."""
    cluster = Cluster(VENDORS, verify=signed)
    cluster.observe_node(node("n", cards("g", 2), allocatable=20))
    for each in seen:
        cluster.observe_pod(each)
    _, memory, cores = use(cluster, "n", "g-0")
    return memory, cores


ORDER = f"2;1;{devices(1000, 10)}"
APPLIED = f"2;1;applied;{devices(4000, 30)}"
SETTLED = f"2;1;settled;{devices(1000, 10)}"


def test_a_smaller_share_counts_only_once_the_agent_has_settled_it() -> None:
    first, ordered = resized(), resized(ORDER)
    applied, settled = resized(ORDER, APPLIED), resized(ORDER, SETTLED)
    assert counted(first, ordered) == (4000, 30)
    assert counted(first, ordered, applied) == (4000, 30)
    assert counted(first, ordered, applied, settled) == (1000, 10)
    # A scheduler that starts now counts the same.
    assert [counted(each) for each in (ordered, applied, settled)] == [
        (4000, 30),
        (4000, 30),
        (1000, 10),
    ]


def test_a_larger_share_counts_at_once() -> None:
    ordered = resized(f"2;1;{devices(6000, 50)}")
    assert counted(resized(), ordered) == counted(ordered) == (6000, 50)


def test_after_a_larger_share_a_smaller_one_counts_with_what_it_held() -> None:
    grown = resized(f"2;1;{devices(6000, 50)}", f"2;1;settled;{devices(6000, 50)}")
    order = f"2;2;{devices(1000, 10)}"
    waiting = resized(order, f"2;1;settled;{devices(6000, 50)}")
    assert counted(resized(), grown, waiting) == counted(waiting) == (6000, 50)
    done = resized(order, f"2;2;settled;{devices(1000, 10)}")
    assert counted(resized(), grown, waiting, done) == counted(done) == (1000, 10)


def test_an_order_to_grow_that_the_agent_has_not_answered_counts_until_it_answers() -> None:
    """The agent may have applied it: its answer was late, or a tenant has removed it."""
    grown = resized(f"2;1;{devices(6000, 50)}")
    order = f"2;2;{devices(1000, 10)}"
    assert counted(resized(), grown, resized(order)) == (6000, 50)
    assert counted(resized(), grown, resized(order), resized(order)) == (6000, 50)
    older = resized(order, f"2;1;settled;{devices(1000, 10)}")
    again = resized(f"2;3;{devices(500)}", f"2;2;settled;{devices(1000, 10)}")
    assert counted(resized(), grown, resized(order), older, again) == (6000, 50)
    done = resized(order, f"2;2;settled;{devices(1000, 10)}")
    assert counted(resized(), grown, resized(order), done) == (1000, 10)


def test_an_answer_that_is_taken_back_counts_again() -> None:
    """An agent that lost its ledger does not know what the processes hold."""
    assert counted(resized(ORDER, SETTLED), resized(ORDER, APPLIED)) == (4000, 30)


def test_no_answer_counts_below_the_order_or_without_a_valid_one() -> None:
    tiny = f"2;1;settled;{devices(1, 1)}"
    assert counted(resized(ORDER, tiny)) == (1000, 10)
    assert counted(resized("", tiny)) == (4000, 30)
    assert counted(resized(ORDER, SETTLED, mac="forged")) == (4000, 30)
    assert counted(resized(ORDER, f"2;1;settled;{devices(1000, 10, 'g-1')}")) == (4000, 30)
    for broken in ("", "2;1;settled", "2;0;settled;x", "nonsense", "2;1;done;" + devices(1)):
        assert counted(resized(ORDER, broken)) == (4000, 30)
    other = f"2;1;{devices(1000, 10, 'g-1')}"
    assert counted(resized(other, f"2;1;settled;{devices(1000, 10, 'g-1')}")) == (4000, 30)
    # Without a number it cannot be answered.
    assert counted(resized(devices(1000, 10), SETTLED, mac="signed 0")) == (4000, 30)


def test_an_order_that_was_removed_or_put_back_does_not_count_less() -> None:
    grown = resized(f"2;2;{devices(6000, 50)}", f"2;2;settled;{devices(6000, 50)}")
    assert counted(grown, resized()) == (6000, 50)
    older = resized(ORDER, f"2;2;settled;{devices(6000, 50)}")
    assert counted(grown, older) == counted(older) == (6000, 50)


def test_room_that_is_settled_is_quota_that_is_free() -> None:
    cluster = Cluster(VENDORS, verify=signed)
    cluster.observe_pod(resized(ORDER, APPLIED))
    (info,) = cluster.pods.values()
    assert list(info.quota_use()) == [("NVIDIA", 4000, 30)]
    cluster.observe_pod(resized(ORDER, SETTLED))
    (info,) = cluster.pods.values()
    assert list(info.quota_use()) == [("NVIDIA", 1000, 10)]
