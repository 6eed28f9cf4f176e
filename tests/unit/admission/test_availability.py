"""`available` mode: a profile is there if enough of it is not asked for yet."""

from __future__ import annotations

from typing import Any

from hami.wire import annotation_keys
from tests.builders import GPU
from tests.unit.admission import pods
from tests.unit.admission.pods import MIG, Document, Door, container, pod

THREE, TWO, ONE = "3g.40gb", "2g.20gb", "1g.10gb"


def having(**nodes: dict[str, int]) -> Door:
    """Make a door to nodes with so many instances of each profile (`gpu` is the whole card)."""
    named = {
        name: {
            GPU if profile == "gpu" else f"{MIG}{profile}": number for profile, number in of.items()
        }
        for name, of in nodes.items()
    }
    return Door.alone(nodes=named, mode="available")


def hold(door: Door, uid: str, node: str | None, *containers: Document, **more: Any) -> None:
    """Have a pod take something, on a node or waiting for one."""
    door.mig_offer.set_pod(uid, pods.read(pod(*containers, nodeName=node, **more)))


def got(door: Door, document: Document) -> str:
    through = door.passes(document)
    found: str = (
        through["metadata"].get("annotations", {}).get(annotation_keys.FALLBACK, "as asked")
    )
    return found


def test_what_is_free_is_given_and_what_is_taken_is_not() -> None:
    door = having(a={THREE: 2, ONE: 7})
    asking = pod(container(mig={THREE: 1}))
    assert got(door, asking) == "as asked"
    hold(door, "u", "a", container(mig={THREE: 1}))
    assert got(door, asking) == "as asked"
    hold(door, "v", "a", container(mig={THREE: 1}))
    assert got(door, asking) == f"{THREE}->{ONE}"
    door.mig_offer.set_pod("u", None)
    assert got(door, asking) == "as asked"


def test_the_first_that_is_free_down_the_chain_is_given() -> None:
    door = having(a={THREE: 1, TWO: 1, ONE: 1, "gpu": 1})
    asking = pod(container(mig={THREE: 1}))
    for profile, then in ((THREE, TWO), (TWO, ONE), (ONE, "gpu")):
        hold(door, profile, "a", container(mig={profile: 1}))
        assert got(door, asking) == f"{THREE}->{then}"
    hold(door, "card", "a", container(gpu=1))
    # Nothing is free: it waits for what it asked for.
    assert got(door, asking) == "as asked"


def test_where_nothing_is_free_the_first_that_exists_is_waited_for() -> None:
    door = having(a={TWO: 1, ONE: 1})
    hold(door, "u", "a", container(mig={TWO: 1, ONE: 1}))
    assert got(door, pod(container(mig={THREE: 1}))) == f"{THREE}->{TWO}"


def test_so_many_must_be_free_on_one_node() -> None:
    door = having(a={THREE: 1, ONE: 2}, b={THREE: 1})
    assert got(door, pod(container(mig={THREE: 1}))) == "as asked"
    assert got(door, pod(container(mig={THREE: 2}))) == f"{THREE}->{ONE}"


def test_what_waiting_pods_want_is_taken_off() -> None:
    door = having(a={THREE: 1, ONE: 7}, b={THREE: 1})
    asking = pod(container(mig={THREE: 1}))
    hold(door, "u", None, container(mig={THREE: 1}))
    assert got(door, asking) == "as asked"
    hold(door, "v", None, container(mig={THREE: 1}))
    assert got(door, asking) == f"{THREE}->{ONE}"
    # One of the two is placed: the same is wanted, from now on from that node.
    hold(door, "v", "b", container(mig={THREE: 1}))
    assert got(door, asking) == f"{THREE}->{ONE}"
    door.mig_offer.set_pod("u", None)
    assert got(door, asking) == "as asked"


def test_containers_of_the_pod_itself_take_from_each_other() -> None:
    door = having(a={THREE: 1, TWO: 1, ONE: 7})
    asking = pod(*(container(name, mig={THREE: 1}) for name in "abc"))
    through = door.passes(asking)
    given = [list(pods.asked(through, place)) for place in range(3)]
    assert given == [[f"{MIG}{profile}"] for profile in (THREE, TWO, ONE)]


def test_profiles_of_one_container_take_from_each_other() -> None:
    door = having(a={TWO: 1, ONE: 7})
    through = door.passes(pod(container(mig={THREE: 1, TWO: 1})))
    assert pods.asked(through) == {f"{MIG}{TWO}": "1", f"{MIG}{ONE}": "1"}


def test_init_containers_take_nothing_from_those_after_them() -> None:
    door = having(a={THREE: 1, ONE: 7})
    asking = pod(
        container("app", mig={THREE: 1}),
        init=[container("i", mig={THREE: 1}), container("j", mig={THREE: 1})],
    )
    assert got(door, asking) == "as asked"


def test_sidecars_do() -> None:
    door = having(a={THREE: 1, ONE: 7})
    asking = pod(
        container("app", mig={THREE: 1}), init=[container("s", mig={THREE: 1}, restart="Always")]
    )
    through = door.passes(asking)
    assert pods.asked(through, key="initContainers") == {f"{MIG}{THREE}": "1"}
    assert pods.asked(through) == {f"{MIG}{ONE}": "1"}


def test_a_pod_that_wants_more_than_any_node_has_left_waits_for_the_rest() -> None:
    door = having(a={ONE: 3, "gpu": 2}, b={ONE: 2})
    through = door.passes(pod(*(container(f"c{place}", mig={THREE: 1}) for place in range(7))))
    given = [list(pods.asked(through, place)) for place in range(7)]
    instance, card = [f"{MIG}{ONE}"], [GPU]
    assert given == [*[instance] * 3, *[card] * 2, *[instance] * 2]


def test_cards_asked_for_besides_are_taken_as_well() -> None:
    door = having(a={ONE: 1, "gpu": 2})
    hold(door, "u", "a", container(mig={ONE: 1}))
    asking = pod(container("a", gpu=1), container("b", mig={ONE: 1}), container("c", mig={ONE: 1}))
    through = door.passes(asking)
    assert [list(pods.asked(through, place)) for place in (1, 2)] == [[GPU], [f"{MIG}{ONE}"]]
