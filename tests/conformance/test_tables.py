"""Tables made by the server for kubectl, and objects as metadata only."""

from __future__ import annotations

import json

import pytest

from tests.conformance.objects import bind, config_map, lease, names, pod, revision
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, core, leases, namespaces, nodes, pods

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIALS = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


def table(api: Client, path: str, **query: str) -> Object:
    answer = api.request("GET", path, accept=TABLE, query=query)
    assert answer.status == 200
    found = answer.json()
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    return found


def columns(found: Object, *, wide: bool = False) -> list[str]:
    return [c["name"] for c in found["columnDefinitions"] if wide or c["priority"] == 0]


def cells(found: Object) -> list[dict[str, object]]:
    header = columns(found, wide=True)
    return [dict(zip(header, row["cells"], strict=True)) for row in found["rows"]]


POD = ["Name", "Ready", "Status", "Restarts", "Age"]
POD_WIDE = [*POD, "IP", "Node", "Nominated Node", "Readiness Gates"]
NODE = ["Name", "Status", "Roles", "Age", "Version"]
NODE_WIDE = [
    *NODE,
    "Internal-IP",
    "External-IP",
    "OS-Image",
    "Kernel-Version",
    "Container-Runtime",
]


def test_pods_have_the_columns_that_kubectl_users_know(
    api: Client, namespace: str, node: str
) -> None:
    api.create(pods(namespace), pod("p"))
    bind(api, namespace, "p", node)
    found = table(api, pods(namespace))
    assert columns(found) == POD
    assert columns(found, wide=True) == POD_WIDE
    (row,) = cells(found)
    assert {**row, "Age": ""} == {
        "Name": "p",
        "Ready": "0/1",
        "Status": "Pending",
        "Restarts": "0",
        "Age": "",
        "IP": "<none>",
        "Node": node,
        "Nominated Node": "<none>",
        "Readiness Gates": "<none>",
    }


def test_a_running_pods_row_counts_containers_and_restarts(
    api: Client, namespace: str, node: str
) -> None:
    api.create(pods(namespace), pod("p"))
    bind(api, namespace, "p", node)
    running = {
        "name": "main",
        "ready": True,
        "restartCount": 3,
        "image": "x",
        "imageID": "x",
        "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}},
    }
    status = {"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": [running]}
    api.patch(pods(namespace, "p", "status"), {"status": status})
    (row,) = cells(table(api, pods(namespace)))
    assert (row["Ready"], row["Status"], str(row["Restarts"])[:1]) == ("1/1", "Running", "3")
    waiting = {**running, "ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    status = {"phase": "Running", "containerStatuses": [waiting]}
    api.patch(pods(namespace, "p", "status"), {"status": status})
    (row,) = cells(table(api, pods(namespace)))
    assert (row["Ready"], row["Status"]) == ("0/1", "CrashLoopBackOff")
    api.delete(pods(namespace, "p"))
    (row,) = cells(table(api, pods(namespace)))
    assert row["Status"] == "Terminating"


def test_nodes_have_the_columns_that_kubectl_users_know(api: Client, node: str) -> None:
    api.patch(nodes(node), {"metadata": {"labels": {"node-role.kubernetes.io/gpu": ""}}})
    api.patch(nodes(node, "status"), {"status": {"nodeInfo": {"kubeletVersion": "v1.36.0"}}})
    found = table(api, nodes(), fieldSelector=f"metadata.name={node}")
    assert columns(found) == NODE
    assert columns(found, wide=True) == NODE_WIDE
    (row,) = cells(found)
    assert (row["Name"], row["Status"], row["Roles"], row["Version"]) == (
        node,
        "Ready",
        "gpu",
        "v1.36.0",
    )
    api.patch(nodes(node), {"spec": {"unschedulable": True}})
    (row,) = cells(table(api, nodes(), fieldSelector=f"metadata.name={node}"))
    assert row["Status"] == "Ready,SchedulingDisabled"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("configmaps", ["Name", "Data", "Age"]),
        ("secrets", ["Name", "Type", "Data", "Age"]),
        ("events", ["Last Seen", "Type", "Reason", "Object", "Message"]),
        ("serviceaccounts", ["Name", "Age"]),
    ],
)
def test_other_kinds_have_their_columns_even_without_rows(
    api: Client, namespace: str, resource: str, expected: list[str]
) -> None:
    found = table(api, core(resource, namespace), labelSelector="nothing=here")
    assert columns(found) == expected
    assert found["rows"] == []
    assert int(revision(found)) > 0


def test_leases_and_namespaces_have_their_columns(api: Client, namespace: str) -> None:
    api.create(leases(namespace), lease("l", holder="me"))
    (row,) = cells(table(api, leases(namespace)))
    assert (row["Name"], row["Holder"]) == ("l", "me")
    found = table(api, namespaces(), fieldSelector=f"metadata.name={namespace}")
    (row,) = cells(found)
    assert (columns(found), row["Name"], row["Status"]) == (
        ["Name", "Status", "Age"],
        namespace,
        "Active",
    )


def test_a_config_maps_row_counts_its_entries(api: Client, namespace: str) -> None:
    api.create(config_maps(namespace), config_map("m", {"a": "1", "b": "2"}, labels={"t": "1"}))
    (row,) = cells(table(api, config_maps(namespace), labelSelector="t=1"))
    assert (row["Name"], row["Data"]) == ("m", 2)


def test_one_object_is_a_table_of_one_row(api: Client, namespace: str) -> None:
    api.create(pods(namespace), pod("p"))
    found = table(api, pods(namespace, "p"))
    assert [row["Name"] for row in cells(found)] == ["p"]
    assert revision(found) == revision(api.get(pods(namespace, "p")))


@pytest.mark.parametrize(
    ("include", "kind"),
    [(None, "PartialObjectMetadata"), ("Metadata", "PartialObjectMetadata"), ("Object", "Pod")],
)
def test_a_row_includes_as_much_of_its_object_as_asked(
    api: Client, namespace: str, include: str | None, kind: str
) -> None:
    made = api.create(pods(namespace), pod("p", labels={"k": "v"}))
    found = table(api, pods(namespace), **({"includeObject": include} if include else {}))
    (row,) = found["rows"]
    assert row["object"]["kind"] == kind
    assert row["object"]["metadata"] == made["metadata"]
    assert ("spec" in row["object"]) == (kind == "Pod")


def test_a_row_includes_nothing_if_asked(api: Client, namespace: str) -> None:
    api.create(pods(namespace), pod("p"))
    (row,) = table(api, pods(namespace), includeObject="None")["rows"]
    assert row.get("object") is None
    bad = api.request("GET", pods(namespace), accept=TABLE, query={"includeObject": "Some"})
    assert bad.status == 400


def test_a_table_comes_in_pages_too(api: Client, namespace: str) -> None:
    for name in "abc":
        api.create(pods(namespace), pod(name))
    first = table(api, pods(namespace), limit="2")
    assert [row["Name"] for row in cells(first)] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 1
    rest = table(api, pods(namespace), **{"continue": first["metadata"]["continue"]})
    assert [row["Name"] for row in cells(rest)] == ["c"]


def test_a_watch_sends_tables_whose_columns_come_only_first(api: Client, namespace: str) -> None:
    api.create(pods(namespace), pod("a"))
    with api.watch(pods(namespace), accept=TABLE) as watch:
        first = watch.next()
        api.create(pods(namespace), pod("b"))
        second = watch.next()
    assert first is not None
    assert second is not None
    assert (first["type"], first["object"]["kind"]) == ("ADDED", "Table")
    assert columns(first["object"]) == POD
    assert first["object"]["rows"][0]["cells"][0] == "a"
    assert (second["type"], second["object"].get("columnDefinitions")) == ("ADDED", None)
    assert second["object"]["rows"][0]["cells"][0] == "b"


def test_metadata_alone_can_be_had_of_objects_lists_and_watches(
    api: Client, namespace: str
) -> None:
    made = api.create(pods(namespace), pod("p", annotations={"a": "1"}))
    one = api.request("GET", pods(namespace, "p"), accept=PARTIAL).json()
    assert (one["kind"], one["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert one["metadata"] == made["metadata"]
    assert "spec" not in one
    many = api.request("GET", pods(namespace), accept=PARTIALS).json()
    assert many["kind"] == "PartialObjectMetadataList"
    assert names(many) == ["p"]
    assert all("spec" not in item for item in many["items"])
    with api.watch(pods(namespace), accept=PARTIAL) as watch:
        event = watch.next()
    assert event is not None
    assert (event["type"], event["object"]) == ("ADDED", one)


def test_an_answer_that_cannot_be_given_as_asked_is_not_acceptable(
    api: Client, namespace: str
) -> None:
    answer = api.request("GET", pods(namespace), accept="application/xml")
    assert (answer.status, json.loads(answer.body)["reason"]) == (406, "NotAcceptable")
