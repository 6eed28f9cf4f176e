"""`hami monitor` on stand-in GPUs: honest containers and hostile ones."""

from __future__ import annotations

import os
from pathlib import Path

from hami.wire import state_file
from hami.wire.hami_region import V1
from tests import processes
from tests.integration.monitor.monitors import NODE, Machine
from tests.native.container import Container
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, MIB

UNMANAGED = "hami_gpu_unmanaged_memory_bytes"


async def test_a_container_is_shown_while_it_lives(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        api.put(nodes.pod("a", node=NODE))
        with Container(tmp_path / "c", (2 * GIB,)) as container:
            probe = container.started()
            probe.do(f"take alloc x {64 * MIB}")
            machine = Machine(tmp_path / "m", container.node.folder)
            machine.contain(container, "a", 2 * GIB)
            machine.place(probe, "a")
            async with machine.monitored(api):
                card = container.node.cards[0].uuid
                names = {"namespace": "team", "pod": "a", "container": "main"}
                await machine.eventually("hami_host_gpu_utilization_ratio", [0], device_uuid=card)
                found = await machine.shown()
                used = container.used()
                assert used > 64 * MIB
                for name, value in {
                    "hami_vgpu_memory_used_bytes": used,
                    "hami_vgpu_memory_limit_bytes": 2 * GIB,
                    "hami_vgpu_core_used_percent": 0,
                    "hami_vgpu_core_limit_percent": 100,
                    "hami_vgpu_over_limit_bytes": 0,
                }.items():
                    assert nodes.values(found, name, **names, device_uuid=card) == [value]
                assert nodes.values(found, UNMANAGED) == [0]
                assert nodes.values(found, "hami_monitor_driver_up") == [1]
                assert nodes.values(found, "hami_build_info") == [1]
                probe.kill()
                await machine.eventually("hami_vgpu_memory_used_bytes", [0], **names)
                api.put(nodes.pod("a", node=NODE, ended=["main"]))
                await machine.eventually("hami_vgpu_memory_limit_bytes", [], **names)
                assert (await machine.get("/healthz"))[0] == 200
                assert (await machine.get("/readyz"))[0] == 200
                assert await machine.process.stop() == 0


async def test_a_process_that_hides_from_the_limiter_is_reported(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        with Container(tmp_path / "c", (GIB,)) as container, container.outsider() as hidden:
            honest = container.started()
            hidden.start()
            hidden.do(f"take alloc x {2 * GIB}")
            machine = Machine(tmp_path / "m", container.node.folder)
            machine.contain(container, "a", GIB)
            machine.place(honest, "a")
            machine.place(hidden, "a")
            async with machine.monitored(api):
                # Both with the context that each has beside what it took.
                context = container.node.cards[0].context
                names = {"namespace": "team", "pod": "a", "container": "main"}
                await machine.eventually(UNMANAGED, [2 * GIB + context], **names)
                over = nodes.values(await machine.shown(), "hami_vgpu_over_limit_bytes", **names)
                assert over == [GIB + 2 * context]
                await processes.eventually(lambda: len(api.objects("events")) == 2)
            events = {event["reason"]: event for event in api.objects("events")}
            assert events.keys() == {"VGPUOverLimit", "UnmanagedGPUProcess"}
            for event in events.values():
                assert event["involvedObject"]["uid"] == nodes.uid_of("a")
                assert event["type"] == "Warning"
                assert str(hidden.pid) in event["message"]


async def test_tricks_of_tenants_cost_themselves_only(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        with Container(tmp_path / "c", (GIB,)) as container:
            machine = Machine(tmp_path / "m", container.node.folder)
            probe = container.started()
            machine.contain(container, "good", GIB)
            machine.place(probe, "good")
            tricks = ("cut", "grown", "linked", "piped", "garbage", "hami")
            for name in tricks:
                api.put(nodes.pod(name, node=NODE))
            api.put(nodes.pod("good", node=NODE))
            good = nodes.state([CARD], nodes.entry(1))
            states = {name: nodes.prepare(machine.layout, name, {CARD: GIB}) for name in tricks}
            states["cut"].write_bytes(good[:4096])
            states["grown"].write_bytes(good)
            os.truncate(states["grown"], 1 << 40)
            states["garbage"].write_bytes(good[:16] + os.urandom(state_file.SIZE - 16))
            for name in ("linked", "piped"):
                states[name].unlink()
            states["linked"].symlink_to("/etc/passwd")
            os.mkfifo(states["piped"])
            folder = machine.layout.hami_containers / f"{nodes.uid_of('hami')}_main"
            folder.mkdir()
            (folder / "x.cache").write_bytes(regions.region(V1, [CARD], proc_num=-1)[:100000])
            async with machine.monitored(api):
                used = container.used()
                await machine.eventually("hami_vgpu_memory_used_bytes", [used], pod="good")
                name = "hami_monitor_unreadable_regions_total"
                for reason in ("truncated", "no_file", "content"):
                    await machine.at_least(name, 3, reason=reason)
                found = await machine.shown()
                for trick in ("cut", "linked", "piped"):
                    assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod=trick) == []
                    assert nodes.values(found, "hami_vgpu_memory_limit_bytes", pod=trick) == [GIB]
                assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="grown") == [0]
                assert nodes.values(found, "hami_vgpu_memory_used_bytes", pod="good") == [used]
                logged = machine.process.records(
                    "cannot read a file of a container; its numbers are left out"
                )
                subjects = [record["subject"] for record in logged]
                assert len(subjects) == len(set(subjects)) > 0
                assert await machine.process.stop() == 0


async def test_without_api_server_and_driver_it_goes_on(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        api.fault(path="/pods", status=500, times=None)
        machine = Machine(tmp_path / "m", tmp_path / "no-cards")
        path = nodes.prepare(machine.layout, "a", {CARD: GIB})
        path.write_bytes(nodes.state([CARD], nodes.entry(1, nodes.usage(linear=7))))
        with nodes.held(path, 0):
            async with machine.monitored(api):
                await machine.eventually("hami_vgpu_memory_used_bytes", [7], pod="a")
                found = await machine.shown()
                assert nodes.values(found, "hami_monitor_driver_up") == [0]
                assert nodes.values(found, "hami_vgpu_core_used_percent") == []
                assert (await machine.get("/readyz"))[0] == 200
                logged = await machine.process.logged("cannot read all of the driver's numbers")
                assert logged["error"]
                assert await machine.process.stop() == 0


async def test_it_is_small(tmp_path: Path) -> None:
    """It has some 52 MiB, 5 of them the stand-in driver's; agent and monitor may have 120."""
    async with ScriptedApi() as api:
        with Container(tmp_path / "c", (GIB,)) as container:
            machine = Machine(tmp_path / "m", container.node.folder)
            machine.contain(container, "a", GIB)
            async with machine.monitored(api):
                await machine.eventually("hami_vgpu_memory_limit_bytes", [GIB], pod="a")
                assert "numpy" not in machine.process.mapped()
                assert "grpc" not in machine.process.mapped()
                resident = machine.resident() / MIB
                assert resident < 58, f"{resident:.1f} MiB"
