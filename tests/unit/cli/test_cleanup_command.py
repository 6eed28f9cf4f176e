"""`hami cleanup`: what it takes away, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hami.cli import main
from hami.installation import cleanup
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs

OURS = {"app.kubernetes.io/managed-by": "hami"}
MARK = "hami.io/scheduler-wake-up"


@pytest_asyncio.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    monkeypatch.setattr(cleanup, "AWAY_S", 0.0)
    async with ScriptedApi() as serving:
        for name in ("hami-tls", "hami-grant-key"):
            meta = {"name": name, "namespace": "kube-system", "labels": OURS}
            serving.put({"kind": "Secret", "metadata": meta, "type": "Opaque", "data": {}})
        lease = {"name": "hami-scheduler", "namespace": "kube-system"}
        serving.put({"kind": "Lease", "metadata": lease, "spec": {}})
        serving.put({"kind": "Node", "metadata": {"name": "n", "annotations": {MARK: "1"}}})
        yield serving


async def run(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, folder: pathlib.Path, *words: str
) -> tuple[int, str, str]:
    config = kubeconfigs.write(folder / "kubeconfig", cluster={"server": api.url})
    flags = ["--namespace=kube-system", f"--kubeconfig={config}"]
    code = await asyncio.to_thread(main.main, ["cleanup", *words, *flags])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


async def test_after_it_nothing_is_left(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, tmp_path: pathlib.Path
) -> None:
    words = ["--secrets=hami-tls, hami-grant-key,", "--lease=hami-scheduler"]
    code, out, err = await run(capsys, api, tmp_path, *words)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Lease kube-system/hami-scheduler: deleted",
        f"Node n: annotation {MARK} removed",
        "Secret kube-system/hami-tls: deleted",
        "Secret kube-system/hami-grant-key: deleted",
    ]
    assert api.objects("secrets") == api.objects("leases") == []


async def test_registers_of_simulated_cards_go_and_those_of_real_ones_stay(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, tmp_path: pathlib.Path
) -> None:
    register, mark = "hami.io/node-dcu-register", "hami.io/simulated-devices"
    kept = {register: ":", mark: f"{register},theirs", "theirs": "x"}
    api.put({"kind": "Node", "metadata": {"name": "simulated", "annotations": kept}})
    api.put({"kind": "Node", "metadata": {"name": "real", "annotations": {register: ":"}}})
    code, out, _ = await run(capsys, api, tmp_path)
    assert code == 0
    assert f"Node simulated: annotation {mark}, {register} removed" in out
    found = {each["metadata"]["name"]: each["metadata"] for each in api.objects("nodes")}
    assert found["simulated"]["annotations"] == {"theirs": "x"}
    assert found["real"]["annotations"] == {register: ":"}


async def test_only_what_is_named_goes(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, tmp_path: pathlib.Path
) -> None:
    code, _, _ = await run(capsys, api, tmp_path)
    assert code == 0
    assert len(api.objects("secrets")) == 2
    assert len(api.objects("leases")) == 1


async def test_what_could_not_be_removed_is_the_error(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, tmp_path: pathlib.Path
) -> None:
    api.fault(
        method="DELETE", path="/hami-tls", status=403, reason="Forbidden", message="no rights"
    )
    code, out, err = await run(capsys, api, tmp_path, "--secrets=hami-tls,hami-grant-key")
    assert code == 1
    assert "Secret kube-system/hami-grant-key: deleted" in out
    assert err == (
        "hami cleanup: not everything is removed: "
        "Secret kube-system/hami-tls: 403 Forbidden: no rights; "
        "correct this and run the command again\n"
    )


def test_help_shows_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cleanup", "--help"]) == 0
    reply = capsys.readouterr().out
    assert {"--namespace", "--kubeconfig", "--secrets", "--lease"} <= set(reply.split())
    assert "annotations by which nodes offer their cards" in reply
