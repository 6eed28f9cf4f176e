"""Volumes become folders, and containers mount them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami.kube.client import Client
from hami_sandbox.kubelet.environment import NodeFacts, References
from hami_sandbox.kubelet.volumes import MountPlan, VolumeError, Volumes, mounts
from sandbox.tests.unit.kubelet.pods import container, pod
from tests.scripted_api.server import ScriptedApi

NODE = NodeFacts(name="gpu-a", address="127.0.0.1", allocatable={})


async def prepared(folder: Path, volume: dict[str, Any]) -> Path:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        api.put(
            {"kind": "Secret", "metadata": {"name": "keys"}, "data": {"a": "QQ==", "b": "Qg=="}}
        )
        volumes = Volumes(folder, References(client), lambda: NODE)
        made = pod(volumes=[{"name": "v", **volume}], meta={"labels": {"x": 'a"b'}})
        first = await volumes.prepare(made)
        assert await volumes.prepare(made) == first, "it stays where it is"
        return first["v"]


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_an_empty_one(tmp_path: Path) -> None:
    assert list((await prepared(tmp_path, {"emptyDir": {}})).iterdir()) == []


async def test_a_folder_of_the_machine(tmp_path: Path) -> None:
    wanted = tmp_path / "deep" / "x"
    host = {"path": str(wanted), "type": "DirectoryOrCreate"}
    assert await prepared(tmp_path, {"hostPath": host}) == wanted
    assert wanted.is_dir()


async def test_a_secret(tmp_path: Path) -> None:
    assert files(await prepared(tmp_path, {"secret": {"secretName": "keys"}})) == {
        "a": "A",
        "b": "B",
    }


async def test_projected_ones(tmp_path: Path) -> None:
    sources = [
        {"secret": {"name": "keys", "items": [{"key": "b", "path": "deep/c"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
            }
        },
        {"serviceAccountToken": {"path": "token"}},
    ]
    made = await prepared(tmp_path, {"projected": {"sources": sources}})
    assert files(made) == {"deep/c": "B", "labels": 'x="a\\"b"'}


@pytest.mark.parametrize(
    ("volume", "told"),
    [
        ({"secret": {"secretName": "no"}}, 'volume "v" : secret "no" not found'),
        (
            {"secret": {"secretName": "keys", "items": [{"key": "z", "path": "z"}]}},
            "references non-existent secret key: z",
        ),
        ({"hostPath": {"path": "/no/such", "type": "Directory"}}, "/no/such is not a directory"),
        ({"nfs": {"server": "x"}}, "not known here: nfs"),
        (
            {"secret": {"secretName": "keys", "items": [{"key": "a", "path": "../a"}]}},
            "leads out of its volume",
        ),
    ],
)
async def test_what_cannot_be_made(tmp_path: Path, volume: dict[str, Any], told: str) -> None:
    with pytest.raises(VolumeError, match=told):
        await prepared(tmp_path, volume)


def test_what_a_container_mounts(tmp_path: Path) -> None:
    told = container(
        volumeMounts=[
            {"name": "v", "mountPath": "/data"},
            {"name": "v", "mountPath": "/part", "subPath": "a/b", "readOnly": True},
        ]
    )
    assert mounts(told, {"v": tmp_path}) == [
        MountPlan(str(tmp_path), "/data", read_only=False),
        MountPlan(str(tmp_path / "a/b"), "/part", read_only=True),
    ]
    assert (tmp_path / "a/b").is_dir()
    with pytest.raises(VolumeError, match='no volume "v"'):
        mounts(told, {})


async def test_the_volumes_of_pods_that_are_gone_go(tmp_path: Path) -> None:
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        volumes = Volumes(tmp_path, References(client), lambda: NODE)
        for name in ("a", "b"):
            await volumes.prepare(pod(name, volumes=[{"name": "v", "emptyDir": {}}]))
        volumes.remove_others(frozenset({"uid-a"}))
    assert not (tmp_path / "uid-b").exists()
    assert (tmp_path / "uid-a").is_dir()
