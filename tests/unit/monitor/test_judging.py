"""Who is over his limit, and who is unmanaged, by the driver's account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami.monitor import findings
from hami.monitor.containers import Container, Key
from hami.monitor.findings import Findings, OnCard
from hami.monitor.processes import NOBODY, Owner
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER


def container(name: str = "a", limit: int = GIB, *, limited: bool = True) -> Container:
    return Container(
        key=Key(name, "main"),
        namespace="team",
        pod=name,
        shares=(nodes.share(CARD, limit),),
        tokens=(name,),
        limited=limited,
    )


def owner(of: Container) -> Owner:
    return Owner(key=of.key, namespace=of.namespace, pod=of.pod, container=of)


def on_card(
    of: Owner, pid: int, memory: int | None = 1, *, uuid: str = CARD, mig: bool = False
) -> OnCard:
    return OnCard(
        uuid=uuid,
        index=0,
        mig=mig,
        pid=pid + 1000,
        start=1,
        inner_pid=pid,
        memory=memory,
        owner=of,
    )


def judged(*found: OnCard, living: dict[Key, set[int]] | None = None) -> Findings:
    given_out = {
        share.card
        for process in found
        if process.owner.container is not None
        for share in process.owner.container.shares
    }
    return findings.find(found, living=living or {}, given=given_out)


def test_processes_of_a_container_are_added_up() -> None:
    a = container()
    verdict = judged(
        on_card(owner(a), 1, GIB // 2),
        on_card(owner(a), 2, GIB // 2 + 5),
        living={a.key: {1, 2}},
    )
    [over] = verdict.over
    assert (over.bytes, over.used, over.place) == (5, GIB + 5, 0)
    assert verdict.unmanaged == ()


def test_at_the_limit_nobody_is_over_it() -> None:
    a = container()
    assert judged(on_card(owner(a), 1, GIB), living={a.key: {1}}) == Findings()


def test_no_limit_is_never_exceeded() -> None:
    free, whole = container(limit=0), container(limited=False)
    assert judged(on_card(owner(free), 1, GIB), living={free.key: {1}}).over == ()
    assert judged(on_card(owner(whole), 1, 100 * GIB)) == Findings()


def test_a_process_in_no_living_slot_is_unmanaged() -> None:
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


def test_where_the_slots_are_not_to_be_seen_nobody_is_accused() -> None:
    a = container("a")
    assert judged(on_card(owner(a), 1, GIB + 1)).unmanaged == ()
    assert len(judged(on_card(owner(a), 1, GIB + 1)).over) == 1


def test_outsiders_and_cards_that_were_not_given_are_unmanaged() -> None:
    a, whole = container("a"), container("w", limited=False)
    outsider = on_card(NOBODY, 5)
    elsewhere = on_card(owner(a), 1, uuid=OTHER)
    also = on_card(owner(whole), 1, uuid=OTHER)
    found = judged(outsider, elsewhere, also, living={a.key: {1}})
    assert found.unmanaged == (outsider, elsewhere, also)


def test_a_mig_device_that_we_did_not_give_is_not_our_business() -> None:
    assert judged(on_card(NOBODY, 5, uuid="MIG-1", mig=True)) == Findings()
    a = container("a")
    stranger = on_card(NOBODY, 5, mig=True)
    assert judged(stranger, on_card(owner(a), 1, mig=True), living={a.key: {1}}).unmanaged == (
        stranger,
    )


def test_containers_of_hamis_library_are_managed_by_their_region() -> None:
    theirs = Owner(key=Key("h", "main"), namespace="team", pod="h")
    inside, beside = on_card(theirs, 1), on_card(theirs, 2)
    assert judged(inside, beside, living={theirs.key: {1}}).unmanaged == (beside,)


def test_memory_that_the_driver_does_not_tell_is_no_excess() -> None:
    a = container(limit=MIB)
    assert judged(on_card(owner(a), 1, None), living={a.key: {1}}) == Findings()


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
    found: list[tuple[str, int, int, str]], slots: dict[str, set[int]], limit: int
) -> None:
    containers = {name: container(name, limit * MIB) for name in "ab"}
    processes = [
        on_card(owner(containers[name]), pid, memory * MIB, uuid=uuid)
        for name, pid, memory, uuid in found
    ]
    living = {containers[name].key: slots.get(name, set()) for name in "ab"}
    verdict = findings.find(processes, living=living, given={CARD})
    sums = {
        name: sum(memory for who, _, memory, uuid in found if who == name and uuid == CARD)
        for name in "ab"
    }
    assert {each.container.pod: each.bytes for each in verdict.over} == {
        name: (total - limit) * MIB for name, total in sums.items() if total > limit
    }
    assert [process.inner_pid for process in verdict.unmanaged] == [
        pid for name, pid, _, uuid in found if uuid == OTHER or pid not in slots.get(name, ())
    ]
