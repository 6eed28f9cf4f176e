"""Whatever happens in whatever order: no card is given out twice, and everybody gets his own.

A drawn sequence of starts, restarts, ends, kills of the agent, reboots, outages of the API server
and damaged records, against a scheduler that grants far more than there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.node import ledger_record
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.rig import CARD, OTHER, WHOLE, Node, Object, allocation_id_of
from tests.unit.kube.following import until

STEPS = 60


class Storm:
    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.agent: Agent
        self._stack = contextlib.AsyncExitStack()
        #: Pods that are there, by name, with what they were granted.
        self.pods: dict[str, tuple[Object, tuple[str, int, int]]] = {}
        #: Tokens of those that have started.
        self.started: dict[str, str] = {}
        self.allocations: dict[str, str] = {}
        self.down = False
        self._numbers = iter(range(10**6))

    async def begin(self) -> None:
        self.agent = await self._stack.enter_async_context(
            self.node.running(wait=not self.down, pod_wait=0.1)
        )
        await until(self.agent.cards.known.is_set)

    async def end(self) -> None:
        await self._stack.aclose()

    # What may happen.

    async def arrive(self) -> None:
        name = f"p{next(self._numbers)}"
        part = (self.random.choice([CARD, OTHER]), self.random.randrange(5000, 25_000), 0)
        self.pods[name] = self.node.pod(name, main=[part]), part
        answer = await self.node.allocate(self.agent, self.pods[name][0], "main", f"id-{name}")
        self.allocations[name] = allocation_id_of(answer)

    async def start_some(self) -> None:
        names = self.random.sample(sorted(self.allocations), min(4, len(self.allocations)))
        done = await asyncio.gather(*map(self._start, names), return_exceptions=True)
        for name, outcome in zip(names, done, strict=True):
            if outcome is None:
                self.started[name] = self.allocations[name]
            else:
                assert isinstance(outcome, RefusalError), outcome
                assert name not in self.started, outcome

    async def _start(self, name: str) -> None:
        await self.node.start(self.agent, f"id-{name}")

    async def leave(self) -> None:
        if self.pods:
            name = self.random.choice(sorted(self.pods))
            pod, _ = self.pods.pop(name)
            if self.random.random() < 0.5:
                self.node.remove(pod)
            else:
                self.node.change(pod, phase="Succeeded")
            self.started.pop(name, None)
            self.allocations.pop(name)

    async def kill(self) -> None:
        await self.end()
        await self.begin()

    async def reboot(self) -> None:
        await self.end()
        for folder in (self.node.layout.cdi_dir, self.node.layout.states):
            for path in folder.glob("**/*"):
                if path.is_file():
                    path.unlink()
        await self.begin()
        await until(lambda: self.node.prepared() >= set(self.started.values()))

    async def lose_a_record(self) -> None:
        if not self.started:
            return
        await self.end()
        name = self.random.choice(sorted(self.started))
        path = self.node.layout.record(f"uid-{name}")
        if self.random.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: self.random.randrange(40)])
        await self.begin()
        await until(lambda: self.agent.ledger.get(f"uid-{name}") is not None)

    async def outage(self) -> None:
        self.node.api.fault(times=None, status=503)
        self.node.api.close_watches()
        self.down = True
        await self.start_some()
        if self.random.random() < 0.5:
            await self.kill()
            await self.start_some()
        self.node.api.faults.clear()
        self.down = False
        await self.node.seen(self.agent)

    # What must be so.

    def check(self) -> None:
        kept = [
            ledger_record.decode(json.dumps(content).encode(), what=uid)
            for uid, content in self.node.ledger().items()
        ]
        for card in (CARD, OTHER):
            grants = [grant for one in kept for slot in one.shares for grant in slot]
            assert sum(grant.memory_mib for grant in grants if grant.card == card) <= WHOLE
        known = {
            allocation_id.allocation_id: one for one in kept for allocation_id in one.allocations
        }
        for name, allocation_id in self.started.items():
            assert known[allocation_id].uid == f"uid-{name}"
            assert self.node.limits(allocation_id) == [self.pods[name][1]]
            assert self.node.env(allocation_id)["NVIDIA_VISIBLE_DEVICES"] == self.pods[name][1][0]


@pytest.mark.parametrize("seed", range(int(os.environ.get("HAMI_STORMS", "2"))))
async def test_nothing_is_given_twice_and_everybody_gets_his_own(tmp_path: Path, seed: int) -> None:
    async with ScriptedApi() as api:
        storm = Storm(Node(tmp_path, api), seed)
        await storm.begin()
        try:
            steps = {
                storm.arrive: 8,
                storm.start_some: 10,
                storm.leave: 4,
                storm.kill: 1,
                storm.reboot: 1,
                storm.lose_a_record: 1,
                storm.outage: 1,
            }
            for _ in range(STEPS):
                (step,) = storm.random.choices(list(steps), list(steps.values()))
                await step()
                storm.check()
            # In the end all who fit run: whoever is left gives back what others wait for.
            for name in sorted(storm.pods.keys() - storm.started.keys()):
                while name not in storm.started:
                    with contextlib.suppress(RefusalError):
                        await storm._start(name)
                        storm.started[name] = storm.allocations[name]
                        break
                    gone = min(storm.started)
                    storm.node.remove(storm.pods.pop(gone)[0])
                    storm.started.pop(gone)
                    storm.allocations.pop(gone)
                    await storm.node.seen(storm.agent)
                storm.check()
            # And nothing is left of whoever is gone.
            await until(lambda: len(storm.node.ledger()) == len(storm.started))
            await storm.agent.reconciler.recover_and_clean_up()
            assert storm.node.prepared() == set(storm.started.values())
        finally:
            await storm.end()
