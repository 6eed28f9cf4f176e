"""Cards that take no new pod: cordoned, released, used by deleted pods."""

from __future__ import annotations

import contextlib
import errno
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.node.nvml_cards import Card
from hami.wire import node_register
from tests.builders import NVIDIA
from tests.unit.agent.node_cards import card, cut
from tests.unit.agent.rig import CARD, NODE, OTHER, WHOLE, Node, uid
from tests.unit.kube.following import until

CORDON = NVIDIA.annotations.cordon
CLOSED = NVIDIA.annotations.closed
UID = "11111111-2222-3333-4444-555555555555"
ALL_OF_IT = (CARD, WHOLE, 100)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami.agent.closed_cards._EVERY", 0.02)
    monkeypatch.setattr("hami.agent.reconciler._LEFTOVER_EVERY", 0.02)


def cordon(node: Node, value: str | None) -> None:
    """Write the annotation as an administrator does."""
    found = node.api.find("nodes", NODE)
    assert found is not None
    annotations = found["metadata"].setdefault("annotations", {})
    annotations.pop(CORDON, None)
    if value is not None:
        annotations[CORDON] = value
    node.api.put(found)


def closed(node: Node) -> dict[str, str]:
    states: dict[str, str] = json.loads(node.node_says().get(CLOSED, "{}"))
    return states


def healthy(node: Node) -> dict[str, bool]:
    register = node.node_says().get(NVIDIA.annotations.register, "[]")
    return {device.id: device.health for device in node_register.decode_json(register)}


def opened(node: Node) -> set[str]:
    """Return the cards that this process has open, as others see it."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = entry.readlink()
            if target.parent == node.root / "dev":
                found.add(target.name)
    return found


@contextlib.contextmanager
def process(node: Node, pid: int, *, pod: str = "", opens: Path | None = None) -> Iterator[None]:
    """Let a process run, in that pod's control group."""
    place = node.proc / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "cgroup").write_text(f"0::/kubepods/pod{pod}/abc\n" if pod else "0::/\n")
    (place / "stat").write_text(f"{pid} (python3) S 1")
    (place / "comm").write_text("nv-hostengine\n")
    if opens is not None:
        (place / "fd" / "3").symlink_to(opens)
    try:
        yield
    finally:
        place.rename(node.root / f"ended-{pid}")


# Cordon.


async def test_a_cordoned_card_is_released_when_its_last_pod_has_ended(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: healthy(node) == {CARD: True, OTHER: True})
        cordon(node, f"{CARD}, GPU-unknown")
        await until(lambda: closed(node) == {CARD: "cordoned; still used by pod team/p"})
        assert opened(node) == {"nvidia0", "nvidia1"}
        assert healthy(node)[CARD]
        node.remove(pod)
        await until(lambda: closed(node) == {CARD: "released"})
        assert opened(node) == {"nvidia1"}
        await until(lambda: healthy(node) == {CARD: False, OTHER: True})
        await until(lambda: node.events("GPUReleased"))
        assert CARD in node.events("GPUReleased")[0]
        assert CARD in node.events("GPUCordoned")[0]
        # The other card goes on: it is listed, and takes pods.
        await node.run_pod(agent, node.pod("q", main=[(OTHER, 4000, 0)]), "main", "id-1")
        late = node.pod("late", main=[(CARD, 4000, 0)])
        await node.allocate(agent, late, "main", "id-2")
        with pytest.raises(RefusalError, match="released for maintenance"):
            await node.start(agent, "id-2")
        node.remove(late)
        cordon(node, None)
        await until(lambda: CLOSED not in node.node_says())
        await until(lambda: healthy(node) == {CARD: True, OTHER: True})
        assert opened(node) == {"nvidia0", "nvidia1"}


async def test_all_cards_are_released_for_another_driver_and_the_agent_stays_ready(
    node: Node,
) -> None:
    async with node.running() as agent:
        cordon(node, "all")
        await until(lambda: closed(node) == {CARD: "released", OTHER: "released"})
        assert opened(node) == set()
        assert agent.cards.missing == ""
        count = node.driver.opened
        node.driver.missing = "is not loaded"  # as after rmmod
    async with node.running() as agent:
        # The next agent does not even try.
        await until(lambda: healthy(node) == {CARD: False, OTHER: False})
        await until(lambda: agent.closed_cards.settled)
        assert closed(node) == {CARD: "released", OTHER: "released"}
        assert node.driver.opened == count
        node.driver.missing = ""
        cordon(node, "")
        await until(lambda: healthy(node) == {CARD: True, OTHER: True})
        assert opened(node) == {"nvidia0", "nvidia1"}
        await until(lambda: CLOSED not in node.node_says())


async def test_a_released_card_stays_closed_across_a_restart(node: Node) -> None:
    async with node.running():
        cordon(node, CARD)
        await until(lambda: closed(node) == {CARD: "released"})
    async with node.running():
        await until(lambda: opened(node) == {"nvidia1"})
        assert healthy(node) == {CARD: False, OTHER: True}
    cordon(node, None)
    async with node.running():
        await until(lambda: healthy(node) == {CARD: True, OTHER: True})


async def test_another_process_that_has_a_released_card_open_is_named(node: Node) -> None:
    async with node.running():
        with process(node, 812, opens=node.driver.device_file(card(0))):
            cordon(node, CARD)
            still = "cordoned; still open in process 812 (nv-hostengine)"
            await until(lambda: closed(node) == {CARD: still})
            assert opened(node) == {"nvidia1"}
        await until(lambda: closed(node) == {CARD: "released"})


async def test_a_pod_that_is_bound_and_not_started_keeps_its_card_open(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 4000, 30)])
        await node.seen(agent)
        cordon(node, CARD)
        await until(lambda: closed(node) == {CARD: "cordoned; still used by pod team/p"})
        await node.run_pod(agent, pod, "main", "id-0")


async def test_a_driver_that_opens_all_cards_is_not_opened_while_one_is_released(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.driver.opens_all = True
    async with node.running():
        cordon(node, CARD)
        await until(lambda: closed(node) == {CARD: "released"})
        assert "opens all cards together" in caplog.text
        assert opened(node) == set()
        await until(lambda: healthy(node) == {CARD: False, OTHER: True})
        cordon(node, None)
        await until(lambda: opened(node) == {"nvidia0", "nvidia1"})


async def test_a_card_that_is_cordoned_while_the_driver_is_opened_does_not_stop_the_checks(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Cards of a list are released one by one, as their pods end."""
    node.driver.listed.append(card(2))
    listing, goes_on = threading.Event(), threading.Event()
    links = node.driver.links

    def slowly(cards: Sequence[Card]) -> tuple[tuple[()], tuple[()]]:
        if len(cards) == 2:
            listing.set()
            assert goes_on.wait(20)
        return links(cards)

    monkeypatch.setattr(node.driver, "links", slowly)
    async with node.running() as agent:
        await until(lambda: len(healthy(node)) == 3)
        cordon(node, CARD)
        await until(listing.is_set)
        cordon(node, f"{CARD},{OTHER}")
        await until(lambda: OTHER in agent.cards.released)
        goes_on.set()
        await until(lambda: closed(node) == {CARD: "released", OTHER: "released"})
        assert "opens all cards together" not in caplog.text
        await until(lambda: opened(node) == {"nvidia2"})


async def test_a_card_whose_file_cannot_be_removed_is_taken_back_as_soon_as_it_can(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running():
        cordon(node, CARD)
        await until(lambda: closed(node) == {CARD: "released"})
        failures = 0

        def write(*_args: object) -> None:
            nonlocal failures
            failures += 1
            raise OSError(errno.EROFS, "read-only file system")

        with monkeypatch.context() as patch:
            patch.setattr("hami.node.released_cards.write", write)
            cordon(node, None)
            await until(lambda: failures > 9)
        await until(lambda: healthy(node) == {CARD: True, OTHER: True})


async def test_an_agent_whose_place_was_taken_leaves_the_file_of_released_cards_to_the_other(
    node: Node,
) -> None:
    path = node.layout.released_cards
    async with node.running() as agent:
        agent.registration.taken_over = True
        agent._place_changed()
        cordon(node, CARD)
        # It lets the card go all the same: the other one waits for that.
        await until(lambda: opened(node) == {"nvidia1"})
        assert not path.exists()
        agent.registration.taken_over = False
        agent._place_changed()
        await until(path.exists)
        # The other one has released cards and died, and they were taken back meanwhile.
        left = path.read_bytes()
        agent.registration.taken_over = True
        agent._place_changed()
        cordon(node, None)
        await until(lambda: opened(node) == {"nvidia0", "nvidia1"})
        assert path.read_bytes() == left
        agent.registration.taken_over = False
        agent._place_changed()
        await until(lambda: not path.exists())


async def test_many_processes_on_a_released_card_leave_room_in_the_nodes_annotations(
    node: Node,
) -> None:
    async with node.running():
        with contextlib.ExitStack() as stack:
            for pid in range(1000, 1050):
                stack.enter_context(process(node, pid, opens=node.driver.device_file(card(0))))
            cordon(node, CARD)
            await until(lambda: closed(node).get(CARD, "").endswith(" and 40 more"))
            assert "process 1009 (" in closed(node)[CARD]


async def test_mig_devices_of_a_cordoned_card_take_no_pod(node: Node) -> None:
    node.driver.listed[1] = cut(1, 1, 2)
    async with node.running(mig_strategy="mixed") as agent:
        (plugin,) = agent.mig_plugins._plugins.values()
        first, second = (one.id for one in plugin.list.devices)
        pod = node.pod("p", main=[])
        await node.seen(agent)
        (answer,) = await plugin.allocate([(first,)])
        node.checkpoint.add(uid(pod), "main", [first], answer)
        cordon(node, OTHER)
        still = "cordoned; still used by pod team/p"
        await until(lambda: closed(node) == dict.fromkeys((OTHER, first, second), still))
        assert [one.healthy for one in plugin.list.devices] == [False, False]
        node.remove(pod)
        await until(lambda: closed(node).get(OTHER) == "released")
        assert opened(node) == {"nvidia0"}
        cordon(node, None)
        await until(lambda: all(one.healthy for one in plugin.list.devices))
        cordon(node, f"{first},{second}")
        await until(lambda: closed(node).get(OTHER) == "released")


# Deleted pods.


async def whole(node: Node, agent: Agent) -> dict[str, object]:
    pod = node.pod("old", main=[ALL_OF_IT], uid=UID)
    allocation_id = await node.run_pod(agent, pod, "main", "id-old")
    assert not node.layout.policy(allocation_id).exists()
    return pod


async def test_a_whole_card_is_kept_until_the_processes_of_its_deleted_pod_have_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        old = await whole(node, agent)
        with process(node, 40, pod=UID):
            node.remove(old)
            still = "processes of deleted pod team/old still run on it"
            await until(lambda: closed(node) == {CARD: still})
            new = node.pod("new", main=[ALL_OF_IT])
            await node.allocate(agent, new, "main", "id-new")
            with monkeypatch.context() as patch:
                patch.setattr(agent.reconciler, "_clock", iter(range(0, 10**6, 5)).__next__)
                with pytest.raises(RefusalError, match="do not fit"):
                    await node.start(agent, "id-new")
            assert set(node.ledger()) == {UID}
        await until(lambda: CLOSED not in node.node_says())
        assert node.ledger() == {}
        await node.start(agent, "id-new")


async def test_a_restart_of_the_agent_gives_no_card_of_a_deleted_pod_away(node: Node) -> None:
    async with node.running() as agent:
        old = await whole(node, agent)
    node.remove(old)
    with process(node, 40, pod=UID):
        async with node.running():
            await until(lambda: CARD in closed(node))
        writes = len(node.api.sent("PATCH", f"/nodes/{NODE}"))
        async with node.running() as agent:
            await until(lambda: agent.closed_cards.settled and agent.node_status.fulfilled)
            assert CARD in closed(node)
            # It was there all the time.
            assert not [
                sent
                for sent in node.api.sent("PATCH", f"/nodes/{NODE}")[writes:]
                if CLOSED in sent.body.decode()
            ]
    async with node.running():
        await until(lambda: CLOSED not in node.node_says())


async def test_an_exempt_pod_keeps_its_card_and_a_limited_one_only_its_share(node: Node) -> None:
    env = {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]}
    async with node.running(uncontrolled_namespaces="team") as agent:
        exempt = node.pod("exempt", main=[(OTHER, 4000, 30)], uid=UID, container=env)
        await node.run_pod(agent, exempt, "main", "id-0")
        limited = node.pod("limited", main=[(CARD, 4000, 30)], uid=UID.replace("1", "2"))
        await node.run_pod(agent, limited, "main", "id-1")
        with process(node, 40, pod=UID), process(node, 41, pod=uid(limited)):
            node.remove(exempt)
            node.remove(limited)
            await until(lambda: set(node.ledger()) == {UID})
            await until(lambda: set(closed(node)) == {OTHER})
        await until(lambda: not node.ledger() and CLOSED not in node.node_says())


async def test_a_pod_that_ended_by_itself_makes_room_at_once(node: Node) -> None:
    async with node.running() as agent:
        old = await whole(node, agent)
        with process(node, 40, pod=UID):  # its sandbox, which kubelet removes later
            node.change(old, phase="Succeeded")
            await until(lambda: not node.ledger())
