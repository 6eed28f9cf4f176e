"""`hami explain` against an API server that has a few pods."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hami.cli import main
from tests import builders
from tests.scripted_api.server import ScriptedApi
from tests.unit.cli import pods


@pytest_asyncio.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as serving:
        serving.put({"kind": "Pod", **json.loads(pods.pod(pods.MAIN))})
        web = {"kind": "Pod", **json.loads(pods.pod(builders.container("web")))}
        serving.put({**web, "metadata": {"name": "web", "namespace": "default"}})
        forbidden = {"reason": "Forbidden", "message": "pods is forbidden"}
        serving.fault(path="/pods/secret", status=403, times=None, **forbidden)
        serving.fault(path="/pods/unknown", status=401, reason="Unauthorized", times=None)
        yield serving


@pytest.fixture
def config(api: ScriptedApi, tmp_path: pathlib.Path) -> str:
    contexts = {"team": ("here", "team"), "plain": ("here", ""), "away": ("nowhere", "team")}
    document = {
        "current-context": "team",
        "clusters": [
            {"name": "here", "cluster": {"server": api.url}},
            {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [
            {"name": name, "context": {"cluster": cluster, "user": "me", "namespace": namespace}}
            for name, (cluster, namespace) in contexts.items()
        ],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    return str(file)


async def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main.main, ["explain", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    "words", [["train"], ["team/train"], ["train", "-n", "team"], ["train", "--context=team"]]
)
async def test_a_pod_is_found_by_namespace_argument_or_context(
    capsys: pytest.CaptureFixture[str], config: str, words: list[str]
) -> None:
    code, out, err = await run(capsys, *words, f"--kubeconfig={config}")
    assert (code, err) == (0, "")
    assert out.startswith("team/train waits since 2026-01-01T00:00:00Z")


async def test_another_context_may_have_another_namespace(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, _ = await run(capsys, "web", "--context=plain", f"--kubeconfig={config}")
    assert code == 0
    assert "asks for no card" in out


async def test_as_json_it_is_one_object(capsys: pytest.CaptureFixture[str], config: str) -> None:
    code, out, _ = await run(capsys, "train", "-o", "json", f"--kubeconfig={config}")
    assert code == 0
    story = json.loads(out)
    assert (story["namespace"], story["name"], story["state"]) == ("team", "train", "waiting")
    assert story["asks"] == {
        "main": [{"word": "NVIDIA", "count": 1, "memory": 2048, "percentage": 0, "cores": 30}]
    }


async def test_the_name_of_the_scheduler_can_be_given(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    _, out, _ = await run(capsys, "train", "--scheduler-name=mine", f"--kubeconfig={config}")
    assert "its schedulerName is hami-scheduler, not mine" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["missing"], 1, "pod team/missing does not exist; check its name"),
        (["secret"], 1, "403 Forbidden: pods is forbidden"),
        (["unknown"], 1, "401 Unauthorized"),
        (["train", "--context=away"], 1, "127.0.0.1"),
        (["train", "--context=none"], 2, "none"),
        (["a/b/c"], 2, "POD: 'a/b/c' names no pod; write NAME or NAMESPACE/NAME"),
        (["team/"], 2, "names no pod"),
        (["team/train", "-n", "other"], 2, "is not in other; drop -n"),
        ([], 2, "the following arguments are required: POD"),
        (["train", "-o", "yaml"], 2, "invalid choice: 'yaml'"),
        (["train", "--device-config-file=/none"], 2, "/none: the file cannot be read"),
    ],
)
async def test_what_prevents_it_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], config: str, words: list[str], code: int, message: str
) -> None:
    found, out, err = await run(capsys, *words, f"--kubeconfig={config}")
    assert (found, out) == (code, "")
    assert err.startswith("hami explain: ")
    assert message in err
    assert err.count("\n") == 1


async def test_a_kubeconfig_that_cannot_be_read_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    code, out, err = await run(capsys, "train", f"--kubeconfig={tmp_path / 'none'}")
    assert (code, out) == (2, "")
    assert str(tmp_path / "none") in err


async def test_kubeconfig_may_list_files_of_which_some_are_missing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    tmp_path: pathlib.Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{config}")
    assert (await run(capsys, "train"))[0] == 0
    assert (await run(capsys, "web", "--context=plain"))[0] == 0


async def test_a_context_without_any_kubeconfig_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, err = await run(capsys, "train", "--context=plain")
    assert code == 2
    assert "--context: 'plain' is in no kubeconfig, as there is none" in err
    code, _, err = await run(capsys, "train")
    assert code == 2
    assert "no API server" in err
