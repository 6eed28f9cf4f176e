"""`hami explain` against an API server that has a few pods."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hami.cli import cards_now, main
from hami.kube import listwatch
from hami.kube.client import Client
from hami.wire import annotation_keys
from tests import builders
from tests.scripted_api.server import ScriptedApi
from tests.unit.cli import pods
from tests.unit.scheduler import rig

PODS = {
    "/api/v1/namespaces/team/pods/train": pods.pod(pods.MAIN),
    "/api/v1/namespaces/default/pods/web": pods.pod(builders.container("web")),
}
BUSY = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/2 nodes are available: 2 Insufficient cpu.",
}
PODS |= {
    "/api/v1/namespaces/team/pods/seen": pods.pod(pods.MAIN, condition=BUSY),
    "/api/v1/namespaces/team/pods/large": pods.pod(
        builders.container(gpu=1, memory=9000), condition=BUSY
    ),
}
NODES = "/api/v1/nodes"
LISTS = {
    NODES: [rig.node("a"), rig.node("b")],
    "/api/v1/pods": [
        json.loads(pods.pod(pods.MAIN)),
        {
            "metadata": {
                "name": "other",
                "namespace": "default",
                "uid": "u2",
                "annotations": {
                    builders.NVIDIA.annotations.allocated: "a-0,NVIDIA,7000,0:;",
                    annotation_keys.ASSIGNED_NODE: "a",
                },
            },
            "spec": {"containers": [builders.container(gpu=1, memory=7000)], "nodeName": "a"},
        },
    ],
    "/api/v1/namespaces/team/resourcequotas": [],
    "/api/v1/namespaces/team/events": [
        {"message": "early", "eventTime": "2026-02-03T04:00:01.000000Z"},
        {"message": "late", "lastTimestamp": "2026-02-03T04:10:00Z"},
        {"message": "between", "lastTimestamp": "2026-02-03T04:05:00Z"},
    ],
}
DENIED = {
    "/api/v1/namespaces/team/pods/secret": (403, "Forbidden", "pods is forbidden"),
    "/api/v1/namespaces/team/pods/unknown": (401, "Unauthorized", "Unauthorized"),
}


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in PODS:
            self._answer(200, PODS[path])
            return
        if path in LISTS and self.headers["Authorization"] == "Bearer t":
            found = {"metadata": {"resourceVersion": "7"}, "items": LISTS[path]}
            self._answer(200, json.dumps(found).encode())
            return
        if path in LISTS:
            denied = (403, "Forbidden", f"{path.rpartition('/')[2]} is forbidden")
        else:
            denied = (404, "NotFound", "pods not found")
        status, reason, message = DENIED.get(path, denied)
        reply = {"kind": "Status", "code": status, "reason": reason, "message": message}
        self._answer(status, json.dumps(reply).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    with contextlib.closing(serving.socket):
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()
        serving.server_close()


@pytest.fixture
def config(server: str, tmp_path: pathlib.Path) -> str:
    contexts = {
        "team": ("here", "team", "me"),
        "plain": ("here", "", "me"),
        "away": ("nowhere", "team", "me"),
        "tenant": ("here", "team", "tenant"),
    }
    document = {
        "current-context": "team",
        "clusters": [
            {"name": "here", "cluster": {"server": server}},
            {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [
            {"name": "me", "user": {"token": "t"}},
            {"name": "tenant", "user": {"token": "reads pods of team"}},
        ],
        "contexts": [
            {"name": name, "context": {"cluster": cluster, "user": user, "namespace": namespace}}
            for name, (cluster, namespace, user) in contexts.items()
        ],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["explain", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    "words", [["train"], ["team/train"], ["train", "-n", "team"], ["train", "--context=team"]]
)
def test_a_pod_is_found_by_namespace_argument_or_context(
    capsys: pytest.CaptureFixture[str], config: str, words: list[str]
) -> None:
    code, out, err = run(capsys, *words, f"--kubeconfig={config}")
    assert (code, err) == (0, "")
    assert out.startswith("team/train waits since 2026-02-03T04:00:00Z")


def test_another_context_may_have_another_namespace(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, _ = run(capsys, "web", "--context=plain", f"--kubeconfig={config}")
    assert code == 0
    assert "asks for no card" in out


def test_as_json_it_is_one_object(capsys: pytest.CaptureFixture[str], config: str) -> None:
    code, out, _ = run(capsys, "train", "-o", "json", f"--kubeconfig={config}")
    assert code == 0
    story = json.loads(out)
    assert (story["namespace"], story["name"], story["state"]) == ("team", "train", "waiting")
    assert story["asks"] == {
        "main": [{"word": "NVIDIA", "count": 1, "memory": 2048, "percentage": 0, "cores": 30}]
    }


def test_of_a_pod_that_no_filter_has_seen_hamis_own_decision_follows(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, _ = run(capsys, "seen", f"--kubeconfig={config}")
    assert code == 0
    first, second = out.splitlines()[3:]
    assert first == "kube-scheduler says: 0/2 nodes are available: 2 Insufficient cpu."
    assert second.startswith(
        "hami has given no reasons; by its cards alone it would be placed on b"
    )
    _, out, _ = run(capsys, "large", f"--kubeconfig={config}")
    lines = out.splitlines()[3:]
    assert lines[0] == "kube-scheduler says: 0/2 nodes are available: 2 Insufficient cpu."
    assert lines[1].startswith("hami has given no reasons yet; by its cards alone, no node fits: 2")
    assert lines[2] == "  CardInsufficientMemory: 2 nodes, 2 cards"


def test_what_is_not_in_the_pods_condition_may_be_in_an_event(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    _, out, _ = run(capsys, "train", f"--kubeconfig={config}")
    assert out.splitlines()[3] == "kube-scheduler says: late"


def test_a_user_who_may_only_read_the_pod_gets_what_the_pod_says(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, err = run(capsys, "seen", "--context=tenant", f"--kubeconfig={config}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[3] == "kube-scheduler says: 0/2 nodes are available: 2 Insufficient cpu."
    assert lines[5].startswith("own filters; ")
    assert "403 Forbidden: nodes is forbidden" in lines[5]


def test_the_name_of_the_scheduler_can_be_given(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    _, out, _ = run(capsys, "train", "--scheduler-name=mine", f"--kubeconfig={config}")
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
def test_what_prevents_it_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], config: str, words: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *words, f"--kubeconfig={config}")
    assert (found, out) == (code, "")
    assert err.startswith("hami explain: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_kubeconfig_that_cannot_be_read_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    code, out, err = run(capsys, "train", f"--kubeconfig={tmp_path / 'none'}")
    assert (code, out) == (2, "")
    assert str(tmp_path / "none") in err


def test_kubeconfig_may_list_files_of_which_some_are_missing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    tmp_path: pathlib.Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{config}")
    assert run(capsys, "train")[0] == 0
    assert run(capsys, "web", "--context=plain")[0] == 0


def test_a_context_without_any_kubeconfig_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, err = run(capsys, "train", "--context=plain")
    assert code == 2
    assert "--context: 'plain' is in no kubeconfig, as there is none" in err
    code, _, err = run(capsys, "train")
    assert code == 2
    assert "no API server" in err


async def test_pods_deleted_while_a_list_begins_again_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 1)
    async with ScriptedApi() as api, Client(api.access(), user_agent="hami-tests") as client:
        api.put(rig.node("a"))
        api.put(LISTS["/api/v1/pods"][1] | {"kind": "Pod"})
        api.put(rig.pod("z"))
        api.fault(
            path="/api/v1/pods",
            when=lambda request: "continue" in request.query,
            status=410,
            reason="Expired",
            on_hit=lambda: api.remove("pods", "other"),
        )
        waiting = builders.pod("waits", builders.container(gpu=1, memory=7000))
        now = dt.datetime(2026, 2, 3, tzinfo=dt.UTC)
        found = await cards_now.decision(client, waiting, builders.VENDORS, now=now)
        assert found is not None
        assert "placed on a" in found.summary
