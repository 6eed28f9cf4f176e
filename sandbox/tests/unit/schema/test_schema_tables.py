"""Tables of kubectl: columns, the words for a pod's state, ages."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.schema import pod_rows, tables
from sandbox.tests.unit.schema.given import CONFIG_MAP, NODE, NOW, POD, Object, kind, named, pod


def row(of: Kind, obj: Object) -> dict[str, Any]:
    found = tables.table(of, [obj], now=NOW)
    header = [column["name"] for column in found["columnDefinitions"]]
    [line] = found["rows"]
    return dict(zip(header, line["cells"], strict=True))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 300, "3h5m"),
        (8 * 3600 + 300, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400 + 3600, "8d"),
        (700 * 86400, "700d"),
        (730 * 86400, "2y"),
        (740 * 86400, "2y10d"),
        (3650 * 86400, "10y"),
    ],
)
def test_a_span_is_told_in_one_or_two_units(seconds: int, told: str) -> None:
    assert pod_rows.duration(seconds) == told


def test_an_age_that_nobody_knows_is_unknown() -> None:
    assert pod_rows.age(None, NOW) == "<unknown>"
    assert pod_rows.age("soon", NOW) == "<unknown>"
    assert pod_rows.age("2026-01-02T03:03:05Z", NOW) == "60s"


def status(**fields: object) -> Object:
    return {**pod(), "status": {"phase": "Running", **fields}}


def one(state: Object, **fields: object) -> list[Object]:
    return [{"name": "main", "ready": False, "restartCount": 0, "state": state, **fields}]


@pytest.mark.parametrize(
    ("obj", "word"),
    [
        (status(phase="Pending"), "Pending"),
        (status(containerStatuses=one({"running": {}}, ready=True)), "Running"),
        (status(containerStatuses=one({"waiting": {"reason": "ImagePullBackOff"}})),
         "ImagePullBackOff"),
        (status(containerStatuses=one({"terminated": {"reason": "OOMKilled", "exitCode": 137}})),
         "OOMKilled"),
        (status(containerStatuses=one({"terminated": {"exitCode": 3}})), "ExitCode:3"),
        (status(containerStatuses=one({"terminated": {"exitCode": 0, "signal": 9}})), "Signal:9"),
        (status(phase="Succeeded", containerStatuses=one({"terminated": {"reason": "Completed"}})),
         "Completed"),
        (status(phase="Failed", reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError"),
        (status(phase="Pending", conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
         "SchedulingGated"),
    ],
)  # fmt: skip
def test_a_pods_state_has_a_word(obj: Object, word: str) -> None:
    assert row(POD, obj)["Status"] == word


@pytest.mark.parametrize(
    ("statuses", "word"),
    [
        ([{"name": "a", "state": {"running": {}}}], "Init:0/2"),
        ([{"name": "a", "state": {"terminated": {"exitCode": 0}}},
          {"name": "b", "state": {"waiting": {"reason": "PodInitializing"}}}], "Init:1/2"),
        ([{"name": "a", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
         "Init:Error"),
        ([{"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
         "Init:CrashLoopBackOff"),
        ([{"name": "a", "state": {"terminated": {"exitCode": 0}}},
          {"name": "b", "started": True, "state": {"running": {}}}], "Running"),
    ],
)  # fmt: skip
def test_while_a_pod_initialises_it_says_how_far_it_is(statuses: Any, word: str) -> None:
    found = status(initContainerStatuses=statuses)
    found["spec"]["initContainers"] = [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}]
    assert row(POD, found)["Status"] == word


def test_a_pod_that_is_being_deleted_is_terminating_unless_it_has_ended() -> None:
    running, ended = status(), status(phase="Succeeded")
    for each in (running, ended):
        each["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert row(POD, running)["Status"] == "Terminating"
    assert row(POD, ended)["Status"] == "Succeeded"


def test_sidecars_count_among_the_containers() -> None:
    found = status(
        containerStatuses=one({"running": {}}, ready=True),
        initContainerStatuses=[
            {"name": "s", "ready": True, "started": True, "restartCount": 2,
             "state": {"running": {}}}
        ],
    )  # fmt: skip
    found["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always"}]
    found_row = row(POD, found)
    assert (found_row["Ready"], found_row["Restarts"]) == ("2/2", "2")


@pytest.mark.parametrize(
    ("initialized", "told"), [("True", ("Completed", "3")), ("False", ("Init:Error", "2"))]
)
def test_a_sidecar_that_was_ended_last_does_not_hide_how_the_pod_ended(
    initialized: str, told: tuple[str, str]
) -> None:
    ended = {"terminated": {"exitCode": 143, "reason": "Error"}}
    found = status(
        phase="Succeeded",
        conditions=[{"type": "Initialized", "status": initialized}],
        containerStatuses=one({"terminated": {"exitCode": 0, "reason": "Completed"}}),
        initContainerStatuses=[
            {"name": "s", "started": False, "restartCount": 2, "state": ended}
        ],
    )  # fmt: skip
    found["status"]["containerStatuses"][0]["restartCount"] = 1
    found["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always"}]
    found_row = row(POD, found)
    assert (found_row["Status"], found_row["Restarts"]) == told


def test_restarts_say_when_the_last_was() -> None:
    last = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T03:00:05Z"}}
    found = status(
        containerStatuses=one({"running": {}}, ready=True, restartCount=3, lastState=last)
    )
    assert row(POD, found)["Restarts"] == "3 (4m ago)"


def test_a_node_tells_its_state_roles_and_addresses() -> None:
    found = named(
        NODE,
        spec={"unschedulable": True},
        status={
            "conditions": [{"type": "Ready", "status": "Unknown"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "Debian"},
        },
    )
    found["metadata"]["labels"] = {
        "node-role.kubernetes.io/gpu": "",
        "node-role.kubernetes.io/a": "",
    }
    cells_of = row(NODE, found)
    assert (cells_of["Status"], cells_of["Roles"]) == ("NotReady,SchedulingDisabled", "a,gpu")
    assert (cells_of["Version"], cells_of["Internal-IP"]) == ("v1.36.3", "10.0.0.1")
    assert (cells_of["External-IP"], cells_of["Kernel-Version"]) == ("<none>", "<unknown>")


def test_a_quota_tells_what_is_used_of_what() -> None:
    of = kind("ResourceQuota")
    hard = {"requests.nvidia.com/gpu": "4", "limits.memory": "1Gi", "pods": "10"}
    found = named(of, status={"hard": hard, "used": {"pods": "3", "limits.memory": "0"}})
    cells_of = row(of, found)
    assert cells_of["Request"] == "pods: 3/10, requests.nvidia.com/gpu: 0/4"
    assert cells_of["Limit"] == "limits.memory: 0/1Gi"


@pytest.mark.parametrize("group", ["v1", "events.k8s.io/v1"])
def test_both_kinds_of_events_print_the_same(group: str) -> None:
    of = kind("Event", group)
    about = {"kind": "Pod", "name": "p"}
    core: Object = {
        "involvedObject": about,
        "message": "m ",
        "lastTimestamp": "2026-01-02T03:04:00Z",
    }
    new: Object = {
        "regarding": about,
        "note": "m ",
        "deprecatedLastTimestamp": "2026-01-02T03:04:00Z",
    }
    cells_of = row(of, named(of, **(core if group == "v1" else new), type="Normal", reason="R"))
    told = [cells_of[name] for name in ("Last Seen", "Type", "Reason", "Object", "Message")]
    assert told == ["5s", "Normal", "R", "pod/p", "m"]


def test_a_job_tells_how_long_it_took() -> None:
    of = kind("Job", "batch/v1")
    done = {
        "succeeded": 1,
        "startTime": "2026-01-02T03:00:00Z",
        "completionTime": "2026-01-02T03:01:30Z",
        "conditions": [{"type": "Complete", "status": "True"}],
    }
    cells_of = row(of, named(of, spec={"completions": 1}, status=done))
    assert [cells_of[name] for name in ("Status", "Completions", "Duration")] == [
        "Complete",
        "1/1",
        "90s",
    ]


@pytest.mark.parametrize("of", kinds.KINDS, ids=lambda k: k.resource)
def test_the_barest_object_of_every_kind_has_a_cell_for_each_column(of: Kind) -> None:
    assert "x" in row(of, named(of)).values()


def test_a_row_has_as_much_of_its_object_as_asked() -> None:
    obj = {**pod(), "kind": "Pod"}

    def included(include: str) -> Any:
        [line] = tables.table(POD, [obj], now=NOW, include_object=include)["rows"]
        return line.get("object")

    assert included("None") is None
    assert included("") == included("Metadata") == tables.partial(obj)
    assert included("Object") == obj
    with pytest.raises(Refusal) as refused:
        included("Some")
    assert refused.value.status == 400


def test_later_events_of_a_watch_have_no_columns() -> None:
    found = tables.table(POD, [pod()], now=NOW, columns=False)
    assert found["columnDefinitions"] is None
    assert len(found["rows"]) == 1


def test_a_list_of_metadata_has_nothing_else() -> None:
    found = tables.partial_list([named(CONFIG_MAP, data={"a": "1"})], metadata={"continue": "c"})
    assert found["metadata"] == {"continue": "c"}
    assert [item.keys() for item in found["items"]] == [{"kind", "apiVersion", "metadata"}]


def test_now_may_be_told_in_any_zone() -> None:
    east = NOW.astimezone(dt.timezone(dt.timedelta(hours=5)))
    assert pod_rows.age("2026-01-02T03:04:00Z", east) == "5s"
