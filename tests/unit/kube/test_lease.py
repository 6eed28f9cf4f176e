"""Holding a lease: one at a time, by our own clock, and given up at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.kube.client import Client
from hami.kube.lease import LeaseElector
from hami.wire import objects
from tests.scripted_api.server import Lost, ScriptedApi
from tests.unit.kube.following import PATIENCE_S, until

TIMES = {"lease_duration": 8.0, "renew_deadline": 6.0, "retry_period": 1.0}


class Rig:
    """A candidate whose clock and rounds are in the test's hand."""

    def __init__(self, api: ScriptedApi, client: Client, identity: str) -> None:
        self.api = api
        self.time = 0.0
        self.seen: list[objects.Lease] = []
        self._round = asyncio.Semaphore(0)
        self._resting = asyncio.Event()
        self.elector = LeaseElector(
            client,
            namespace="kube-system",
            name="hami",
            identity=identity,
            on_observed=self.seen.append,
            clock=lambda: self.time,
            now=lambda: 1_700_000_000 + self.time,
            sleep=self._rest,
            random=lambda: 0.0,
            **TIMES,
        )

    async def _rest(self, seconds: float) -> None:
        self._resting.set()
        await self._round.acquire()

    async def round(self, after: float = 0.0) -> None:
        """Let it do one round of its loop, so many seconds later."""
        self.time += after
        self._resting.clear()
        self._round.release()
        async with asyncio.timeout(PATIENCE_S):
            await self._resting.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        task = asyncio.create_task(self.elector.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._resting.wait()
            yield self
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def stored(api: ScriptedApi) -> dict[str, Any]:
    lease = api.find("leases", "hami", "kube-system")
    assert lease is not None
    spec: dict[str, Any] = lease["spec"]
    return spec


def put(api: ScriptedApi, **spec: object) -> None:
    meta = {"name": "hami", "namespace": "kube-system", "labels": {"kept": "yes"}}
    api.put({"kind": "Lease", "metadata": meta, "spec": spec})


@pytest.fixture
def me(api: ScriptedApi, client: Client) -> Rig:
    return Rig(api, client, "me_1")


async def test_a_lease_that_is_not_there_is_made(api: ScriptedApi, me: Rig) -> None:
    async with me.running():
        assert me.elector.holding
    assert stored(api) == {
        "holderIdentity": "me_1",
        "leaseDurationSeconds": 8,
        "acquireTime": "2023-11-14T22:13:20.000000Z",
        "renewTime": "2023-11-14T22:13:20.000000Z",
        "leaseTransitions": 0,
    }


async def test_a_held_lease_is_renewed_with_one_write_a_round(api: ScriptedApi, me: Rig) -> None:
    async with me.running():
        api.requests.clear()
        await me.round(after=1)
        await me.round(after=1)
    assert [request.method for request in api.requests] == ["PUT", "PUT"]
    assert stored(api)["renewTime"] == "2023-11-14T22:13:22.000000Z"
    assert stored(api)["acquireTime"] == "2023-11-14T22:13:20.000000Z"


async def test_anothers_lease_is_left_alone_until_it_was_unchanged_for_its_own_duration(
    api: ScriptedApi, me: Rig
) -> None:
    """Whatever times are written in it: they are of another clock."""
    put(api, holderIdentity="other", leaseDurationSeconds=5, renewTime="1999-01-01T00:00:00Z")
    async with me.running():
        await me.round(after=4)
        put(api, holderIdentity="other", leaseDurationSeconds=5, renewTime="1999-01-01T00:00:01Z")
        await me.round(after=1)
        await me.round(after=5)
        assert stored(api)["holderIdentity"] == "other"
        await me.round(after=0.1)
        assert stored(api)["holderIdentity"] == "me_1"
        assert stored(api)["leaseTransitions"] == 1
        assert me.elector.holding
    lease = api.find("leases", "hami", "kube-system")
    assert lease is not None
    assert lease["metadata"]["labels"] == {"kept": "yes"}


async def test_an_empty_lease_is_taken_at_once(api: ScriptedApi, me: Rig) -> None:
    put(api, holderIdentity="", leaseDurationSeconds=100)
    async with me.running():
        assert me.elector.holding


async def test_of_two_candidates_for_one_version_one_gets_it(
    api: ScriptedApi, client: Client
) -> None:
    put(api, holderIdentity="")
    gate = asyncio.Event()
    api.fault(method="PUT", gate=gate, times=2)
    one, other = Rig(api, client, "one"), Rig(api, client, "other")
    tasks = [asyncio.create_task(rig.elector.run()) for rig in (one, other)]
    await until(lambda: len(api.sent("PUT")) == 2)
    gate.set()
    await until(lambda: one.elector.holding or other.elector.holding)
    await until(lambda: one._resting.is_set() and other._resting.is_set())
    assert one.elector.holding != other.elector.holding
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lease_that_another_took_is_seen_and_not_taken_back(
    api: ScriptedApi, me: Rig
) -> None:
    async with me.running():
        put(api, holderIdentity="other", leaseDurationSeconds=8)
        await me.round(after=1)
        assert (me.seen[-1].spec or objects.LeaseSpec()).holder_identity == "other"
        await me.round(after=6)
        assert not me.elector.holding
        assert stored(api)["holderIdentity"] == "other"


async def test_a_renewal_whose_answer_is_lost_is_looked_up(api: ScriptedApi, me: Rig) -> None:
    async with me.running():
        api.fault(method="PUT", lost=Lost.AFTER)
        await me.round(after=1)
        seen = len(me.seen)
        await me.round(after=1)
        assert len(me.seen) == seen + 2  # what is there, and what was written
        assert stored(api)["leaseTransitions"] == 0


async def test_without_a_renewal_within_the_deadline_it_is_not_held(
    api: ScriptedApi, me: Rig
) -> None:
    async with me.running():
        api.fault(path="/leases", status=500, times=None)
        await me.round(after=5.9)
        assert me.elector.holding
        await me.round(after=0.1)
        assert not me.elector.holding


async def test_a_renewal_counts_from_when_it_was_begun(api: ScriptedApi, me: Rig) -> None:
    async with me.running():

        def while_written() -> None:
            me.time += 2

        api.fault(method="PUT", on_hit=while_written, gate=_open())
        await me.round(after=1)
        me.time = 6.9
        assert me.elector.holding
        me.time = 7.0
        assert not me.elector.holding


async def test_a_deleted_lease_is_made_again(api: ScriptedApi, me: Rig) -> None:
    async with me.running():
        api.remove("leases", "hami", "kube-system")
        await me.round(after=1)
        assert stored(api)["holderIdentity"] == "me_1"
        assert me.elector.holding


async def test_a_released_lease_is_empty_and_not_taken_again(api: ScriptedApi, me: Rig) -> None:
    async with me.running():
        await me.elector.release()
        assert stored(api)["holderIdentity"] == ""
        assert not me.elector.holding
        assert (me.seen[-1].spec or objects.LeaseSpec()).holder_identity == ""
        await me.round(after=1)
        assert stored(api)["holderIdentity"] == ""


async def test_anothers_lease_is_not_released(api: ScriptedApi, me: Rig) -> None:
    put(api, holderIdentity="other", leaseDurationSeconds=8)
    async with me.running():
        await me.elector.release()
        assert stored(api)["holderIdentity"] == "other"


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
