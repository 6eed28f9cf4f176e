"""CDI in a runtime's verbose status; what it does not report is not guessed."""

from __future__ import annotations

import json
import pathlib
import socket as sockets
from collections.abc import Iterator
from typing import Any

import pytest

from hami.agent.kubelet import runtime as kubelet_runtime
from hami.agent.kubelet.runtime import RuntimeStatus, RuntimeStatusError
from tests.e2e.kubelet_api import messages
from tests.unit.agent.kubelet_rig import served, short_folder

MESSAGES = messages.messages(
    "runtime.v1",
    {
        "VersionRequest": "version=1 string",
        "VersionResponse": (
            "version=1 string, runtime_name=2 string, runtime_version=3 string,"
            "runtime_api_version=4 string"
        ),
        "RuntimeCondition": "type=1 string, status=2 bool, reason=3 string, message=4 string",
        "RuntimeStatus": "conditions=1 RuntimeCondition*",
        "StatusRequest": "verbose=1 bool",
        "StatusResponse": "status=1 RuntimeStatus, info=2 map",
    },
)
SERVICE = messages.Service(
    "runtime.v1.RuntimeService",
    {"Version": "VersionRequest -> VersionResponse", "Status": "StatusRequest -> StatusResponse"},
    MESSAGES,
)


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with short_folder() as path:
        yield path


def runtime(name: str, version: str, info: dict[str, str]) -> Any:
    """Return the handler of a runtime; as real ones, it tells `info` only who asks for it."""

    async def answer_version(_request: Any, _context: Any) -> Any:
        return MESSAGES["VersionResponse"](
            version="0.1.0",
            runtime_name=name,
            runtime_version=version,
            runtime_api_version="v1",
        )

    async def answer_status(request: Any, _context: Any) -> Any:
        ready = {"conditions": [{"type": "RuntimeReady", "status": True}]}
        return MESSAGES["StatusResponse"](status=ready, info=info if request.verbose else {})

    return SERVICE.handler({"Version": answer_version, "Status": answer_status})


@pytest.mark.parametrize(
    ("info", "folders", "disabled"),
    [
        (
            {"config": '{"enableCDI":true,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}'},
            ("/etc/cdi", "/var/run/cdi"),
            False,
        ),
        ({"config": '{"enableCDI":false,"cdiSpecDirs":["/etc/cdi"]}'}, ("/etc/cdi",), True),
        ({"config": '{"cdiSpecDirs":["/etc/cdi"]}'}, ("/etc/cdi",), None),
        (
            {"config": '{"a":[{"b":{"cdiSpecDirs":["/x","/x",5]}}],"c":{"enableCDI":true}}'},
            ("/x",),
            False,
        ),
        ({"config": '{"a":{"enableCDI":true},"b":{"enableCDI":false}}'}, (), True),
        ({"config": '{"enableCDI":"yes","cdiSpecDirs":"/etc/cdi"}'}, (), None),
        ({"config": '{"sandboxImage":"pause"}'}, (), None),
        ({"config": "[crio.runtime]"}, (), None),
        ({"config": "null", "golang": '"go1.24"'}, (), None),
        ({"config": "[" * 100_000}, (), None),
        ({}, (), None),
    ],
)
async def test_cdi_is_what_the_configuration_says(
    folder: pathlib.Path, info: dict[str, str], folders: tuple[str, ...], disabled: bool | None
) -> None:
    path = folder / "r.sock"
    async with served(path, runtime("containerd", "v2.1.4", info)):
        for endpoint in (str(path), f"unix://{path}"):
            assert await kubelet_runtime.runtime_status(endpoint) == RuntimeStatus(
                name="containerd", version="v2.1.4", cdi_dirs=folders, cdi_disabled=disabled
            )


async def test_a_socket_that_is_missing_or_silent_is_named(folder: pathlib.Path) -> None:
    path = folder / "r.sock"
    with pytest.raises(RuntimeStatusError, match=rf"{path}: does not exist; .*--runtime-endpoint"):
        await kubelet_runtime.runtime_status(str(path))
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(RuntimeStatusError, match=rf"{path}: .*UNAVAILABLE.*--runtime-endpoint"):
        await kubelet_runtime.runtime_status(str(path))


@pytest.mark.parametrize("endpoint", ["run/r.sock", "tcp://127.0.0.1:1234", "npipe:////./pipe/x"])
async def test_an_address_that_is_no_path_is_refused(endpoint: str) -> None:
    with pytest.raises(RuntimeStatusError, match="absolute path"):
        await kubelet_runtime.runtime_status(endpoint)


async def test_a_runtime_without_cri_is_quoted(folder: pathlib.Path) -> None:
    async with served(folder / "r.sock", SERVICE.handler({})):
        with pytest.raises(RuntimeStatusError, match="does not answer: UNIMPLEMENTED"):
            await kubelet_runtime.runtime_status(str(folder / "r.sock"))


async def test_the_only_runtime_that_answers_is_found(folder: pathlib.Path) -> None:
    info = {"config": json.dumps({"cdiSpecDirs": ["/var/run/cdi"]})}
    docker, found, alias = (folder / name for name in ("d.sock", "c.sock", "alias.sock"))
    async with (
        served(docker, SERVICE.handler({})),
        served(found, runtime("containerd", "v1.7.20", info)),
    ):
        alias.symlink_to(found)
        candidates = [folder / "none.sock", docker, found, alias]
        status = await kubelet_runtime.detect(candidates)
        assert str(status) == "containerd v1.7.20"
        assert status.cdi_dirs == ("/var/run/cdi",)


async def test_two_runtimes_are_not_guessed_between(folder: pathlib.Path) -> None:
    one, two = folder / "1.sock", folder / "2.sock"
    async with (
        served(one, runtime("containerd", "v2.0.0", {})),
        served(two, runtime("cri-o", "1.32.0", {})),
    ):
        with pytest.raises(RuntimeStatusError, match=rf"{one} and {two}: .*--runtime-endpoint"):
            await kubelet_runtime.detect([one, two])


@pytest.mark.parametrize(
    ("reported", "found"),
    [
        ("cri-o://1.32.0", "cri-o 1.32.0"),
        ("containerd://1.7.20", "containerd v1.7.20"),
        ("containerd://2.0.0", "containerd v2.0.0"),
    ],
)
async def test_of_several_runtimes_kubelets_is_taken(
    folder: pathlib.Path, reported: str, found: str
) -> None:
    sockets = [folder / f"{number}.sock" for number in range(3)]
    async with (
        served(sockets[0], runtime("containerd", "v2.0.0", {})),
        served(sockets[1], runtime("cri-o", "1.32.0", {})),
        served(sockets[2], runtime("containerd", "v1.7.20", {})),
    ):
        assert str(await kubelet_runtime.detect(sockets, reported=reported)) == found


async def test_two_runtimes_of_kubelets_name_are_not_guessed_between(folder: pathlib.Path) -> None:
    one, two = folder / "1.sock", folder / "2.sock"
    async with (
        served(one, runtime("containerd", "v2.0.0", {})),
        served(two, runtime("containerd", "v2.1.0", {})),
    ):
        with pytest.raises(RuntimeStatusError, match="not known which of them is kubelet's"):
            await kubelet_runtime.detect([one, two], reported="containerd://1.7.0")


async def test_the_containerd_of_docker_is_not_kubelets_runtime(folder: pathlib.Path) -> None:
    info = {"config": json.dumps({"cdiSpecDirs": ["/var/run/cdi"]})}
    async with served(folder / "c.sock", runtime("containerd", "v2.1.4", info)):
        with pytest.raises(RuntimeStatusError, match=r"but kubelet's is docker://28\.1\.1"):
            await kubelet_runtime.detect([folder / "c.sock"], reported="docker://28.1.1")


async def test_no_runtime_says_where_it_was_looked_for(folder: pathlib.Path) -> None:
    with pytest.raises(RuntimeStatusError, match=r"1\.sock, .*2\.sock: there is no such socket"):
        await kubelet_runtime.detect([folder / "1.sock", folder / "2.sock"])
    async with served(folder / "1.sock", SERVICE.handler({})):
        with pytest.raises(RuntimeStatusError, match="UNIMPLEMENTED"):
            await kubelet_runtime.detect([folder / "1.sock"])
