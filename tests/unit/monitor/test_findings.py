"""Containers above their limit and unmanaged processes, by the driver's numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami.monitor import findings
from hami.monitor.containers import Container, Key
from hami.monitor.driver import CardProcesses, CardSample, DriverSample
from hami.monitor.findings import Findings, OwnedProcess
from hami.monitor.processes import NO_OWNER, Owner
from hami.node.nvml import GpuProcess
from tests.unit.agent import node_cards
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER

SAMPLE = DriverSample(taken=0.0)


def container(name: str = "a", limit: int = GIB, *, limited: bool = True) -> Container:
    return Container(
        key=Key(name, "main"),
        namespace="team",
        pod=name,
        shares=(nodes.share(CARD, limit),),
        allocation_ids=(name,),
        limited=limited,
    )


def owner(of: Container) -> Owner:
    return Owner(key=of.key, namespace=of.namespace, pod=of.pod, container=of)


def on_card(
    of: Owner, pid: int, memory: int | None = 1, *, uuid: str = CARD, mig: bool = False
) -> OwnedProcess:
    return OwnedProcess(
        card=uuid,
        card_index=0,
        mig=mig,
        pid=pid + 1000,
        start=1,
        inner_pid=pid,
        memory=memory,
        owner=of,
    )


def judged(*found: OwnedProcess, living: dict[Key, set[int]] | None = None) -> Findings:
    given_out = {
        share.card
        for process in found
        if process.owner.container is not None
        for share in process.owner.container.shares
    }
    return findings.find(SAMPLE, found, living=living or {}, given=given_out)


def clean(found: Findings) -> bool:
    return not found.over and not found.unmanaged


def test_processes_of_a_container_are_added_up() -> None:
    a = container()
    result = judged(
        on_card(owner(a), 1, GIB // 2),
        on_card(owner(a), 2, GIB // 2 + 5),
        living={a.key: {1, 2}},
    )
    [over] = result.over
    assert (over.excess, over.used, over.share.card) == (5, GIB + 5, CARD)
    assert result.unmanaged == ()


def busy_card(*pids: int) -> DriverSample:
    """Make a card whose driver takes no samples of processes, at 70 percent."""
    on = tuple(GpuProcess(pid=pid, memory=1) for pid in pids)
    return DriverSample(
        taken=0.0,
        cards=(CardSample(card=node_cards.card(0, uuid=CARD), utilization=(70, 5)),),
        processes=(CardProcesses(uuid=CARD, index=0, processes=on),),
    )


def test_a_container_alone_on_a_card_is_as_busy_as_the_card() -> None:
    a, b = container("a"), container("b")
    both = [on_card(owner(a), 1), on_card(owner(a), 2)]
    found = findings.find(busy_card(1001, 1002), both, living={}, given={CARD})
    assert found.compute == {CARD: {a.key: 70}}
    # Of several containers none is known, nor beside a process that was not found.
    shared = [on_card(owner(a), 1), on_card(owner(b), 2)]
    assert findings.find(busy_card(1001, 1002), shared, living={}, given={CARD}).compute == {}
    hidden = [on_card(owner(a), 1)]
    assert findings.find(busy_card(1001, 1002), hidden, living={}, given={CARD}).compute == {}


def test_at_the_limit_no_container_is_over_it() -> None:
    a = container()
    assert clean(judged(on_card(owner(a), 1, GIB), living={a.key: {1}}))


def test_no_limit_is_never_exceeded() -> None:
    free, whole = container(limit=0), container(limited=False)
    assert judged(on_card(owner(free), 1, GIB), living={free.key: {1}}).over == ()
    assert clean(judged(on_card(owner(whole), 1, 100 * GIB)))


def test_a_process_in_no_living_entry_is_unmanaged() -> None:
    a, b = container("a"), container("b")
    hidden = on_card(owner(a), 3)
    found = judged(
        on_card(owner(a), 1),
        hidden,
        on_card(owner(b), 1),
        living={a.key: {1}, b.key: {1}},
    )
    assert found.unmanaged == (hidden,)


def test_the_same_pid_in_another_container_proves_nothing() -> None:
    a, b = container("a"), container("b")
    hidden = on_card(owner(b), 1)
    assert judged(hidden, living={a.key: {1}, b.key: set()}).unmanaged == (hidden,)


def test_where_the_state_file_is_missing_no_process_is_unmanaged() -> None:
    a = container("a")
    assert judged(on_card(owner(a), 1, GIB + 1)).unmanaged == ()
    assert len(judged(on_card(owner(a), 1, GIB + 1)).over) == 1


def test_outsiders_and_cards_that_were_not_given_are_unmanaged() -> None:
    a, whole = container("a"), container("w", limited=False)
    outsider = on_card(NO_OWNER, 5)
    elsewhere = on_card(owner(a), 1, uuid=OTHER)
    also = on_card(owner(whole), 1, uuid=OTHER)
    found = judged(outsider, elsewhere, also, living={a.key: {1}})
    assert found.unmanaged == (outsider, elsewhere, also)


def test_a_mig_device_that_we_did_not_give_is_left_out() -> None:
    assert clean(judged(on_card(NO_OWNER, 5, uuid="MIG-1", mig=True)))
    a = container("a")
    stranger = on_card(NO_OWNER, 5, mig=True)
    assert judged(stranger, on_card(owner(a), 1, mig=True), living={a.key: {1}}).unmanaged == (
        stranger,
    )


def test_containers_of_hamis_library_are_managed_by_their_region() -> None:
    theirs = Owner(key=Key("h", "main"), namespace="team", pod="h")
    inside, beside = on_card(theirs, 1), on_card(theirs, 2)
    assert judged(inside, beside, living={theirs.key: {1}}).unmanaged == (beside,)


def test_memory_that_the_driver_does_not_report_is_no_excess() -> None:
    a = container(limit=MIB)
    assert clean(judged(on_card(owner(a), 1, None), living={a.key: {1}}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(1, 4),
            st.integers(0, 8),
            st.sampled_from([CARD, OTHER]),
        ),
        max_size=12,
    ),
    st.dictionaries(st.sampled_from("ab"), st.sets(st.integers(1, 4))),
    st.integers(1, 12),
)
def test_every_excess_is_found_and_no_other(
    found: list[tuple[str, int, int, str]], entries: dict[str, set[int]], limit: int
) -> None:
    containers = {name: container(name, limit * MIB) for name in "ab"}
    processes = [
        on_card(owner(containers[name]), pid, memory * MIB, uuid=uuid)
        for name, pid, memory, uuid in found
    ]
    living = {containers[name].key: entries.get(name, set()) for name in "ab"}
    result = findings.find(SAMPLE, processes, living=living, given={CARD})
    sums = {
        name: sum(memory for who, _, memory, uuid in found if who == name and uuid == CARD)
        for name in "ab"
    }
    assert {each.container.pod: each.excess for each in result.over} == {
        name: (total - limit) * MIB for name, total in sums.items() if total > limit
    }
    assert [process.inner_pid for process in result.unmanaged] == [
        pid for name, pid, _, uuid in found if uuid == OTHER or pid not in entries.get(name, ())
    ]


def test_usage_is_added_up_by_card_and_container() -> None:
    a, b = container("a"), container("b")
    sample = DriverSample(
        taken=0.0,
        processes=(
            CardProcesses(uuid=CARD, index=0, compute={1001: 30, 1002: 5}),
            CardProcesses(uuid=OTHER, index=1),
        ),
    )
    found = findings.find(
        sample,
        [on_card(owner(a), 1, 3), on_card(owner(a), 2, None), on_card(owner(b), 3, 4, uuid=OTHER)],
        living={},
        given={CARD},
    )
    assert found.memory == {CARD: {a.key: 3}, OTHER: {b.key: 4}}
    assert found.compute == {CARD: {a.key: 35}}
