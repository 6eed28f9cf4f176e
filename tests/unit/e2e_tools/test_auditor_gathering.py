"""Evidence from node folders and the API, and the timeline from watches."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, Self, cast

import pytest

from tests.e2e.auditor import __main__ as command
from tests.e2e.auditor import auditing, node_root, reading, timeline
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.layouts import ALL, BARE, HAMI
from tests.e2e.auditor.recording import Recorder
from tests.e2e.kubelet_api import pod_resources
from tests.e2e.kubelet_api.pod_resources import PodDevices, PodResourcesError
from tests.kubeapi.client import ApiError, Client
from tests.unit.e2e_tools import auditor_world as world
from tests.unit.e2e_tools.auditor_world import NODE, FakeApi


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return world.node_root(tmp_path / "root")


def sources(root: pathlib.Path) -> Sources:
    return Sources(client=world.api(), roots={NODE: root})


def test_a_node_that_is_in_order_has_no_finding(root: pathlib.Path) -> None:
    evidence = sources(root).gather()
    files = evidence.files[NODE]
    assert [(one.token, one.layout) for one in files.specs] == [(world.TOKEN, BARE)]
    assert [entry.cdi_devices for entry in files.checkpoint] == [
        (f"{BARE.cdi_kind}={world.TOKEN}",)
    ]
    assert auditing.audit(evidence) == []


def test_everything_of_a_token_is_read(root: pathlib.Path) -> None:
    for seen in (f"{HAMI.tokens}/t/policy", f"{HAMI.states}/t", f"{HAMI.ledger}/a"):
        path = root / seen.lstrip("/")
        path.parent.mkdir(parents=True)
        path.write_text('{"uid": "x"}')
    run = root / "run/cdi"
    run.mkdir(parents=True)
    (run / f"{HAMI.spec_prefix}t.json").write_text("{}")
    (root / "var/run").symlink_to("/run")
    found = auditing.audit(sources(root).gather())
    assert {finding.kind for finding in found} == {
        Kind.FOLDER_LEFT,
        Kind.STATE_LEFT,
        Kind.LEDGER_LEFT,
        Kind.SPEC_LEFT,
        Kind.SPEC_MALFORMED,
        Kind.POLICY_MALFORMED,
    }


def test_a_spec_is_read_once_if_two_folders_are_one(root: pathlib.Path) -> None:
    (root / "var/run").mkdir(parents=True)
    (root / "var/run/cdi").symlink_to("../../etc/cdi")
    assert len(sources(root).gather().files[NODE].specs) == 1


def test_links_are_followed_within_the_node(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/up").symlink_to("../..//../a/b")
    (tmp_path / "abs").symlink_to("/a/up")
    assert node_root.inside(tmp_path, "/abs/file") == tmp_path / "a/b/file"
    (tmp_path / "loop").symlink_to("/loop")
    with pytest.raises(OSError, match="links"):
        node_root.inside(tmp_path, "/loop")


def test_a_checkpoint_that_does_not_parse_is_a_finding(root: pathlib.Path) -> None:
    path = root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    path.write_text("{")
    assert Kind.UNREADABLE in {one.kind for one in auditing.audit(sources(root).gather())}


def test_an_answer_that_does_not_parse_is_a_finding(root: pathlib.Path) -> None:
    world.write_checkpoint(root, world.entry(), world.entry(PodUID="x", AllocResp="/w=="))
    found = auditing.audit(sources(root).gather())
    assert [one.kind for one in found] == [Kind.UNREADABLE]


def test_a_cdi_device_in_an_annotation_names_the_token_too(root: pathlib.Path) -> None:
    noted = {"cdi.k8s.io/x": f"other/kind=1,{BARE.cdi_kind}=b", "else": "c"}
    world.write_checkpoint(root, world.entry(AllocResp=world.answer(annotations=noted)))
    (held,) = reading.NodeReader(root, ALL).read().checkpoint
    assert held.cdi_devices == ("other/kind=1", f"{BARE.cdi_kind}=b")


def test_a_root_that_is_not_there_is_a_finding(tmp_path: pathlib.Path) -> None:
    gathered = sources(tmp_path / "gone").gather()
    assert [one.kind for one in auditing.audit(gathered)] == [Kind.UNREADABLE]


def test_a_folder_that_is_none_is_a_finding(root: pathlib.Path) -> None:
    (root / "usr/local/vgpu").mkdir(parents=True)
    (root / "usr/local/vgpu/tokens").write_text("")
    assert [one.kind for one in auditing.audit(sources(root).gather())] == [Kind.UNREADABLE]


@pytest.mark.parametrize(
    ("ids", "kinds"), [({"vgpu-000"}, []), ({"vgpu-001"}, [Kind.RESOURCES_DIFFER])]
)
def test_pod_resources_are_compared(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ids: set[str], kinds: list[Kind]
) -> None:
    _socket(root)
    row = PodDevices("team", "one", "main", world.RESOURCE, frozenset(ids))
    monkeypatch.setattr(pod_resources, "list_pod_resources", lambda _: (row,))
    assert [one.kind for one in auditing.audit(sources(root).gather())] == kinds


def test_a_kubelet_that_does_not_answer_is_a_finding(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: pathlib.Path) -> None:
        raise PodResourcesError("UNAVAILABLE")

    _socket(root)
    monkeypatch.setattr(pod_resources, "list_pod_resources", refuse)
    assert [one.kind for one in auditing.audit(sources(root).gather())] == [Kind.UNREADABLE]
    silent = dataclasses.replace(sources(root), ask_kubelet=False)
    assert auditing.audit(silent.gather()) == []


def _socket(root: pathlib.Path) -> None:
    path = root / str(pod_resources.SOCKET).lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text("")


def test_the_command_prints_a_line_for_each_finding_and_fails(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / f"etc/cdi/{HAMI.spec_prefix}lost.json").write_text("{}")
    _command(monkeypatch, root)
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["spec-left", "spec-malformed"]
    os.unlink(root / f"etc/cdi/{HAMI.spec_prefix}lost.json")  # noqa: PTH108 - as somebody would
    assert command.main() == 0


def _command(monkeypatch: pytest.MonkeyPatch, root: pathlib.Path) -> None:
    class Context(FakeApi):
        def __enter__(self) -> FakeApi:
            return world.api()

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(Client, "from_kubeconfig", lambda _: Context())
    words = ["auditor", "--kubeconfig", "x", "--node", f"{NODE}={root}", "--once"]
    monkeypatch.setattr(sys, "argv", words)


# The recorder.


class FakeWatch:
    """Sends what the fake API's history has from a version on, until it is closed."""

    def __init__(self, api: WatchedApi, kind: str, version: int) -> None:
        self._api, self._kind, self._version = api, kind, version
        self._closed = False
        self.headers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            with self._api.changed:
                event = self._api.changed.wait_for(lambda: self._next() or self._closed, 10)
            if not isinstance(event, tuple):
                return
            if event[0] != "ERROR":
                self._version = int(event[1]["metadata"]["resourceVersion"])
            yield {"type": event[0], "object": event[1]}
            if self._api.short:
                return

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        if self._api.lose:
            self._api.lose = False
            return "ERROR", {"kind": "Status", "code": 410}
        for change, thing in self._api.history:
            newer = int(thing["metadata"]["resourceVersion"]) > self._version
            if newer and thing["kind"] == self._kind:
                return change, thing
        if self._version < self._api.version:
            metadata = {"resourceVersion": str(self._api.version)}
            return "BOOKMARK", {"kind": self._kind, "metadata": metadata}
        return None

    def close(self) -> None:
        with self._api.changed:
            self._closed = True
            self._api.changed.notify_all()


class WatchedApi(FakeApi):
    short = False
    """Each watch ends after one event."""
    lose = False
    """The next event is that the server has forgotten where we were."""
    refusals = 0
    """So many watches are refused first."""

    def watch(self, path: str, query: dict[str, str]) -> FakeWatch:
        if self.refusals:
            self.refusals -= 1
            raise ApiError(410, "Expired", "too old", {})
        kind = {"pods": "Pod", "nodes": "Node"}[path.rsplit("/", 1)[1]]
        return FakeWatch(self, kind, int(query["resourceVersion"]))


def _watched() -> WatchedApi:
    api = WatchedApi()
    api.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": NODE}})
    return api


def _pod(name: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {}}


PODS = "/api/v1/namespaces/team/pods"


def _record(api: WatchedApi, path: pathlib.Path) -> Recorder:
    return Recorder(cast("Client", api), path, clock=lambda: 1.0, silence=60.0)


@pytest.mark.parametrize("short", [False, True])
def test_the_recorder_writes_every_change_in_order(tmp_path: pathlib.Path, *, short: bool) -> None:
    api = _watched()
    api.short = short
    with _record(api, tmp_path / "t") as recorder:
        for name in ("a", "b"):
            api.create(PODS, _pod(name))
        api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}})
        api.delete(f"{PODS}/a")
        recorder.catch_up()
        text = recorder.path.read_text()
    seen, bad = timeline.read(text)
    assert bad == []
    pods = [(one.type, one.object["metadata"].get("name")) for one in seen if one.kind == "Pod"]
    assert pods == [
        ("LIST", None),
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]


@pytest.mark.parametrize("refused", [0, 1])
def test_the_recorder_lists_again_after_a_gap(tmp_path: pathlib.Path, refused: int) -> None:
    api = _watched()
    api.lose, api.refusals = not refused, refused
    with _record(api, tmp_path / "t") as recorder:
        api.create(PODS, _pod("a"))
        recorder.catch_up()
        seen, _ = timeline.read(recorder.path.read_text())
    assert [one.type for one in seen].count("LIST") == 3


def test_what_is_deleted_while_one_waits_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    api = _watched()
    with _record(api, tmp_path / "t") as recorder:
        api.create(PODS, _pod("a"))
        before = api.get("/api/v1/pods")
        api.delete(f"{PODS}/a")
        recorder.catch_up()
        assert recorder._has("/api/v1/pods", before)


def test_a_record_that_stays_behind_is_an_error(tmp_path: pathlib.Path) -> None:
    api = _watched()
    recorder = Recorder(cast("Client", api), tmp_path / "t", silence=0.0).start()
    recorder.stop()
    api.create(PODS, _pod("a"))
    with pytest.raises(TimeoutError, match="behind"):
        recorder.catch_up(timeout=0.0)


def test_the_timeline_of_a_recorder_is_part_of_the_evidence(tmp_path: pathlib.Path) -> None:
    api = _watched()
    with _record(api, tmp_path / "t") as recorder:
        api.create(PODS, _pod("a"))
        gathered = Sources(client=api, recorder=recorder).gather()
    assert '"ADDED"' in gathered.timeline
    again = Sources(client=api, timeline=recorder.path).gather()
    assert '"ADDED"' in again.timeline
