"""The program: its lease, its end, its being killed, and what it is started with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.scheduler import leadership
from hami.serving import logs
from hami_sandbox import access
from hami_sandbox.kube_scheduler import __main__ as program
from sandbox.tests.unit.kube_scheduler import rig
from sandbox.tests.unit.kube_scheduler.makers import Object, node_object, pod_object
from tests import processes
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: hami-scheduler
leaderElection:
  resourceName: hami-scheduler
  leaseDuration: {lease}
  renewDeadline: 900ms
  retryPeriod: 50ms
clientConnection:
  kubeconfig: {kubeconfig}
"""


def config(api: ScriptedApi, folder: Path, *, lease: str = "1s") -> Path:
    kubeconfig = folder / "kubeconfig"
    access.write_kubeconfig(kubeconfig, server=api.url, ca=b"", token="t")  # noqa: S106 - no secret
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(kubeconfig=kubeconfig, lease=lease))
    return path


@contextlib.asynccontextmanager
async def started(path: Path) -> AsyncIterator[processes.Process]:
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hami_sandbox.kube_scheduler", "--config", str(path)),
        env={"PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    process = processes.Process(made)
    try:
        yield process
    finally:
        process.kill()
        await process.ended()


def holder(api: ScriptedApi) -> str:
    lease: Object = api.find("leases", "hami-scheduler", "kube-system") or {"spec": {}}
    return str(lease["spec"].get("holderIdentity") or "")


async def test_it_holds_its_lease_and_gives_it_up(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a"))
        api.put(pod_object("p"))
        async with started(config(api, tmp_path)) as process:
            await until(lambda: rig.node_of(api, "p") == "a")
            assert leadership.is_sibling(holder(api), socket.gethostname())
            process.terminate()
            assert await process.ended() == 0
            assert holder(api) == ""
            assert process.records("stopped")


async def test_killed_at_any_moment_the_next_goes_on(tmp_path: Path) -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a", cpu="1"))
        path = config(api, tmp_path, lease="1s")
        held = api.fault(method="POST", path="/binding", gate_after=asyncio.Event(), times=1)
        api.put(pod_object("p", requests={"cpu": "1"}, priority=1))
        api.put(pod_object("q", requests={"cpu": "1"}))
        async with started(path) as first:
            await until(lambda: held.hits)
            before = holder(api)
            first.kill()
            await first.ended()
        async with started(path):
            await until(lambda: holder(api) not in ("", before))
            await until(lambda: rig.condition(api, "q"))
            assert rig.node_of(api, "p") == "a"
            assert rig.condition(api, "q")["message"].endswith("1 Insufficient cpu.")
            api.remove("pods", "p")
            await until(lambda: rig.node_of(api, "q") == "a")


async def test_it_outlives_an_api_server_that_is_gone_for_longer_than_its_lease() -> None:
    async with ScriptedApi() as api:
        election = rig.election(renew_deadline=0.5)
        async with rig.running(api, election=election) as scheduler:
            await until(lambda: scheduler.leading)
            broken = api.fault(status=503, times=None)
            api.close_watches()
            await until(lambda: not scheduler.leading)
            api.put(node_object("a"))
            api.put(pod_object("p"))
            api.faults.remove(broken)
            await until(lambda: rig.node_of(api, "p") == "a")


async def test_nobody_schedules_while_another_holds_the_lease() -> None:
    async with ScriptedApi() as api:
        api.put(node_object("a"))
        election = rig.election()
        async with rig.running(api, election=election) as one:
            await until(lambda: one.leading)
            async with rig.running(api, election=election) as two:
                api.put(pod_object("p"))
                await until(lambda: rig.node_of(api, "p") == "a")
                await until(lambda: len(two.cluster.pods) == len(two.cluster.nodes) == 1)
                assert not two.leading
                assert len(api.sent("POST", "/binding")) == 1
                assert one.elector is not None
                await one.elector.release()
                api.put(pod_object("q"))
                await until(lambda: rig.node_of(api, "q") == "a")
                assert two.leading


def test_a_configuration_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "set_up", lambda **_: None)  # pytest's own stays
    assert program.main(["--config", str(tmp_path / "none")]) == 2
    assert re.search("none: .*cannot be read.*; write the file with", capsys.readouterr().err)
    path = tmp_path / "config"
    path.write_text(CONFIG.format(kubeconfig=tmp_path / "missing", lease="1s"))
    assert program.main(["--config", str(path)]) == 2
    assert "missing" in capsys.readouterr().err
