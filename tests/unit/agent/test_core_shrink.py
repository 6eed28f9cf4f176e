"""A smaller share is free for others once its processes have released the rest."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.node.nvml import GpuProcess
from hami.wire import annotation_keys, grant
from tests.unit.agent.node_cards import card
from tests.unit.agent.records import Part, devices
from tests.unit.agent.rig import CARD, NODE, SIGNING, WHOLE, Node, Object
from tests.unit.kube.following import until
from tests.unit.monitor import nodes

MIB = 1 << 20
UID = "0fc3eda5-0000-4000-8000-00000000000a"
PID, INNER = 4711, 7
HALF: Part = (CARD, WHOLE // 2, 30)
SMALL: Part = (CARD, 1000, 10)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests take the readings."""
    monkeypatch.setattr("hami.agent.shrink._EVERY", 3600.0)


class Machine:
    """A pod of which a test says what its process holds, by the state file and by NVML."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.proc = node.root / "proc"
        self.pod: Object = node.pod("p", main=[HALF], uid=UID)
        self.allocation_id = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        async with self.node.running() as agent:
            agent.shrinks._proc = self.proc
            if not self.allocation_id:
                self.allocation_id = await self.node.run_pod(agent, self.pod, "main", "id-0")
            yield agent

    @property
    def state(self) -> Path:
        return self.node.layout.state(self.allocation_id)

    def holds(self, mib: int, *, by_driver: int | None = -1, cgroup: str = UID) -> None:
        """Let its process hold so much; the driver shows the same by default."""
        usage = nodes.usage(linear=mib * MIB)
        self.state.write_bytes(nodes.state([CARD], nodes.entry(INNER, usage)))
        shown = mib if by_driver == -1 else by_driver
        memory = None if shown is None else shown * MIB
        self.node.driver.on_cards = (GpuProcess(pid=PID, memory=memory),)
        folder = self.proc / str(PID)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{cgroup}/{'c' * 64}\n")

    def order(self, seq: int, part: Part) -> None:
        wanted = devices([[part]])
        signed = grant.Resize(uid=UID, node=NODE, seq=seq, devices=wanted)
        order = {
            annotation_keys.RESIZE: grant.encode_order(seq, wanted),
            annotation_keys.RESIZE_MAC: SIGNING.sign(signed.text()),
        }
        self.node.change(self.pod, order)

    async def ordered(self, seq: int, part: Part) -> None:
        """Order, and wait until the order is applied."""
        self.order(seq, part)
        await until(lambda: self.node.limits(self.allocation_id) == [part])

    def recorded(self, agent: Agent) -> int:
        record = agent.ledger.get(UID)
        return record.resize_seq if record is not None else 0

    def answer(self) -> str:
        return self.node.says(self.pod).get(annotation_keys.RESIZED, "")

    def settled(self) -> bool:
        return ";settled;" in self.answer()


@pytest.fixture
def machine(node: Node) -> Machine:
    return Machine(node)


async def read(agent: Agent, times: int) -> None:
    for _ in range(times):
        await agent.shrinks.update()


async def fits(node: Node, agent: Agent, name: str, mib: int) -> bool:
    """Return whether the agent takes another pod on the card."""
    new = node.pod(name, main=[(CARD, mib, 0)])
    await node.allocate(agent, new, "main", f"id-{name}")
    try:
        await node.start(agent, f"id-{name}")
    except RefusalError:
        return False
    return True


async def test_a_smaller_share_is_released_after_three_readings_below_it(machine: Machine) -> None:
    async with machine.running() as agent:
        machine.holds(20_000)
        with nodes.held(machine.state, 0):
            await machine.ordered(1, SMALL)
            await read(agent, 5)  # the process has not freed anything
            held = devices([[HALF]])
            assert machine.answer() == f"2;1;applied;{held}"
            assert not await fits(machine.node, agent, "early", 30_000)
            machine.holds(900)
            await read(agent, 2)
            assert machine.answer() == f"2;1;applied;{held}"
            assert not await fits(machine.node, agent, "still-early", 30_000)
            await read(agent, 1)
            assert machine.answer() == f"2;1;settled;{devices([[SMALL]])}"
            assert await fits(machine.node, agent, "late", 30_000)


async def test_a_forged_state_file_is_no_proof_where_the_driver_shows_no_process(
    machine: Machine,
) -> None:
    """Some drivers list no process of containers; the kernel shows that one has the card open."""
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(0)
        machine.node.driver.on_cards = ()
        files = machine.proc / str(PID) / "fd"
        files.mkdir()
        (machine.proc / str(PID) / "comm").write_text("trainer\n")
        (files / "3").symlink_to(machine.node.driver.device_file(card(0)))
        await read(agent, 4)
        assert not machine.settled()
        (files / "3").unlink()
        await read(agent, 3)
        assert machine.settled()


@pytest.mark.parametrize(
    ("state", "driver"), [(900, 1001), (1001, 900), (900, None), (1000 - 1, 20_000)]
)
async def test_state_file_and_driver_must_both_show_it(
    machine: Machine, state: int, driver: int | None
) -> None:
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(state, by_driver=driver)
        with nodes.held(machine.state, 0):
            await read(agent, 4)
            assert not machine.settled()
            machine.holds(1000)  # the limit itself is within it
            await read(agent, 3)
            assert machine.settled()


async def test_a_reading_above_the_limit_begins_again(machine: Machine) -> None:
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(900)
        with nodes.held(machine.state, 0):
            await read(agent, 2)
            machine.holds(1100)
            await read(agent, 1)
            machine.holds(900)
            await read(agent, 2)
            assert not machine.settled()
            await read(agent, 1)
            assert machine.settled()


async def test_what_cannot_be_seen_proves_nothing(machine: Machine) -> None:
    node = machine.node
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(900)
        with nodes.held(machine.state, 0):
            # A driver that shows none of its processes, or one in another PID namespace.
            node.driver.on_cards = ()
            await read(agent, 3)
            node.driver.on_cards = (GpuProcess(pid=PID + 1, memory=MIB),)
            await read(agent, 3)
            seen = GpuProcess(pid=PID, memory=900 * MIB)
            node.driver.on_cards = (seen, GpuProcess(pid=PID + 1, memory=MIB))
            await read(agent, 3)
            machine.holds(900, cgroup="0fc3eda5-0000-4000-8000-00000000000b")
            await read(agent, 3)
            agent.cards._nvml, driver = None, agent.cards._nvml
            await read(agent, 3)
            agent.cards._nvml = driver
            machine.state.write_bytes(b"broken")
            await read(agent, 3)
            assert not machine.settled()
            assert node.ledger()[UID]["unreleased"]
        machine.state.write_bytes(b"")  # its process has ended
        node.driver.on_cards = ()
        await read(agent, 3)
        assert machine.settled()


async def test_a_restart_of_the_agent_neither_forgets_nor_hastens(machine: Machine) -> None:
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(900)
        await read(agent, 2)
    async with machine.running() as agent:
        await read(agent, 2)
        assert not machine.settled()
        await read(agent, 1)
        assert machine.settled()
    # The answer is lost, or another account writes it: the ledger has the truth.
    machine.node.change(machine.pod, {annotation_keys.RESIZED: f"2;1;applied;{devices([[HALF]])}"})
    async with machine.running() as agent:
        await until(machine.settled)
        assert await fits(machine.node, agent, "late", 30_000)


async def test_an_order_to_grow_again_ends_the_readings(machine: Machine) -> None:
    async with machine.running() as agent:
        await machine.ordered(1, SMALL)
        machine.holds(900)
        await read(agent, 2)
        await machine.ordered(2, HALF)
        await read(agent, 3)
        assert machine.answer() == f"2;2;settled;{devices([[HALF]])}"
        assert not await fits(machine.node, agent, "early", 30_000)


async def test_an_order_that_is_recorded_and_not_applied_is_not_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.running() as agent:
        machine.holds(900)
        monkeypatch.setattr(agent.allocator, "prepare", lambda *_: None)  # as after a kill
        machine.order(1, SMALL)
        await until(lambda: machine.recorded(agent) == 1)
        await read(agent, 4)
        assert not machine.settled()
