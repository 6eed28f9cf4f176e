"""Shared locks of half-served pods after restarts, conflicts and lost writes."""

from __future__ import annotations

from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_vendor_locks import (
    BIREN,
    HYGON,
    PHASE,
    SHARED,
    node,
    on_node,
    pod,
    serve,
)


def mark(api: ScriptedApi) -> str:
    found = api.find("pods", "mixed", "default")
    assert found is not None
    return str(found["metadata"]["annotations"][PHASE])


def waits_again(api: ScriptedApi) -> bool:
    """Tell whether the second plugin finds the pod, by the lock and by the mark."""
    return on_node(api, SHARED).endswith(",default,mixed") and mark(api) == "allocating"


async def test_a_new_leader_locks_again_for_a_pod_that_was_half_served_before() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
        serve(api, HYGON)  # while no scheduler runs
        async with rig.running(api):
            await rig.eventually(lambda: waits_again(api))


async def test_a_lock_that_conflicts_with_a_heartbeat_is_taken_again() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            api.fault(method="PATCH", path="/nodes/a", status=409, reason="Conflict", times=1)
            serve(api, HYGON)
            await rig.eventually(lambda: waits_again(api))


async def test_a_lock_that_the_server_fails_to_write_is_taken_again() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            api.fault(method="PATCH", path="/nodes/a", status=500, times=1)
            serve(api, HYGON)
            await rig.eventually(lambda: waits_again(api))


async def test_a_mark_that_conflicts_is_written_again() -> None:
    async with ScriptedApi() as api:
        api.put(node())
        async with rig.running(api) as replica:
            await replica.place(pod("mixed", HYGON, BIREN))
            api.fault(method="PATCH", path="/pods/mixed", status=409, reason="Conflict", times=1)
            serve(api, HYGON)
            await rig.eventually(lambda: waits_again(api))
