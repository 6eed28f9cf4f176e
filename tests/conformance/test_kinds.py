"""Kinds of the product besides pods and nodes, and the form of values."""

from __future__ import annotations

import base64

import pytest

from tests.conformance.objects import config_map, container, lease, pod, refused
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import config_maps, core, group, leases, nodes, pods

MICRO = "2026-01-02T03:04:05.123456Z"


def event(namespace: str, **fields: object) -> Object:
    return {
        "metadata": {"generateName": "placed-"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": "p",
            "uid": "u-1",
        },
        "type": "Normal",
        "reason": "Placed",
        "message": "node n, card 0",
        "source": {"component": "hami-scheduler"},
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
        **fields,
    }


def test_an_event_is_stored_as_it_was_told(api: Client, namespace: str) -> None:
    made = api.create(core("events", namespace), event(namespace))
    for field in ("involvedObject", "type", "reason", "message", "source", "count"):
        assert made[field] == event(namespace)[field]
    assert made["firstTimestamp"] == "2026-01-02T03:04:05Z"


def test_an_event_that_happens_again_is_patched(api: Client, namespace: str) -> None:
    made = api.create(core("events", namespace), event(namespace))
    path = core("events", namespace, made["metadata"]["name"])
    patch = {"count": 2, "lastTimestamp": "2026-01-02T04:00:00Z"}
    patched = api.patch(path, patch, "application/strategic-merge-patch+json")
    assert (patched["count"], patched["lastTimestamp"]) == (2, "2026-01-02T04:00:00Z")
    assert patched["firstTimestamp"] == made["firstTimestamp"]


def test_an_event_about_another_namespace_is_refused(api: Client, namespace: str) -> None:
    with refused(422, "Invalid"):
        api.create(core("events", namespace), event("default"))


def test_both_event_apis_show_the_same_events(api: Client, namespace: str) -> None:
    made = api.create(core("events", namespace), event(namespace))
    name = made["metadata"]["name"]
    new = api.get(group("events.k8s.io/v1", "events", namespace, name))
    assert new["metadata"]["uid"] == made["metadata"]["uid"]
    assert (new["note"], new["regarding"]["name"]) == ("node n, card 0", "p")
    assert new["deprecatedCount"] == 1


def test_a_lease_keeps_microseconds_and_is_renewed_by_replacing_it(
    api: Client, namespace: str
) -> None:
    wish = lease("leader", holder="one")
    wish["spec"].update(
        {
            "leaseDurationSeconds": 15,
            "acquireTime": MICRO,
            "renewTime": MICRO,
            "leaseTransitions": 0,
        }
    )
    made = api.create(leases(namespace), wish)
    assert made["spec"] == wish["spec"]
    made["spec"]["renewTime"] = "2026-01-02T03:04:06.000001Z"
    renewed = api.replace(leases(namespace, "leader"), made)
    assert renewed["spec"]["renewTime"] == "2026-01-02T03:04:06.000001Z"
    with refused(409, "Conflict"):
        api.replace(leases(namespace, "leader"), made)


def test_a_lease_with_a_nonsensical_duration_is_refused(api: Client, namespace: str) -> None:
    wish = lease("leader")
    wish["spec"]["leaseDurationSeconds"] = 0
    with refused(422, "Invalid"):
        api.create(leases(namespace), wish)


def test_a_config_map_holds_text_and_bytes_under_different_keys(
    api: Client, namespace: str
) -> None:
    blob = base64.b64encode(b"\x00\xff").decode()
    wish = {**config_map("m", {"text": "zäh\n"}), "binaryData": {"blob": blob}}
    api.create(config_maps(namespace), wish)
    stored = api.get(config_maps(namespace, "m"))
    assert (stored["data"], stored["binaryData"]) == ({"text": "zäh\n"}, {"blob": blob})
    with refused(422, "Invalid"):
        api.patch(config_maps(namespace, "m"), {"binaryData": {"text": blob}})


def test_an_immutable_config_map_cannot_be_changed(api: Client, namespace: str) -> None:
    api.create(config_maps(namespace), {**config_map("m", {"k": "v"}), "immutable": True})
    with refused(422, "Invalid"):
        api.patch(config_maps(namespace, "m"), {"data": {"k": "w"}})
    with refused(422, "Invalid"):
        api.patch(config_maps(namespace, "m"), {"immutable": False})


def test_a_secret_takes_text_and_gives_base64(api: Client, namespace: str) -> None:
    wish = {"metadata": {"name": "s"}, "stringData": {"k": "v"}}
    made = api.create(core("secrets", namespace), wish)
    assert (made["type"], made["data"]) == ("Opaque", {"k": base64.b64encode(b"v").decode()})
    assert "stringData" not in made


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("2048Mi", "2Gi"),
        ("1e3", "1e3"),
        ("1000k", "1M"),
        ("0.0001", "1m"),  # a thousandth is the least, rounded up
        (3, "3"),
    ],
)
def test_a_quantity_is_given_back_in_its_canonical_form(
    api: Client, node: str, written: object, read: str
) -> None:
    answer = api.patch(nodes(node, "status"), {"status": {"capacity": {"cpu": written}}})
    assert answer["status"]["capacity"]["cpu"] == read


def test_an_extended_resource_of_a_node_is_a_whole_number(api: Client, node: str) -> None:
    capacity = {"nvidia.com/gpu": "1.5"}
    with refused(422, "Invalid") as refusal:
        api.patch(nodes(node, "status"), {"status": {"capacity": capacity}})
    assert "must be an integer" in refusal.message


def test_a_quantity_that_is_none_is_refused(api: Client, namespace: str) -> None:
    resources = {"limits": {"cpu": "much"}}
    answer = api.request(
        "POST",
        pods(namespace),
        body=pod("p", {"containers": [container(resources=resources)]}),
    )
    assert answer.status == 400
    assert "quantities must match" in answer.json()["message"]


def test_a_node_keeps_large_annotations_exactly(api: Client, node: str) -> None:
    """Registers of devices are tens of kilobytes of JSON inside an annotation."""
    value = '[{"id":"GPU-\\u00e9","n":' + "9" * 60_000 + "}]"
    api.patch(nodes(node), {"metadata": {"annotations": {"hami.io/register": value}}})
    assert api.get(nodes(node))["metadata"]["annotations"]["hami.io/register"] == value


def test_a_node_has_no_namespace_and_its_name_must_be_a_dns_name(api: Client) -> None:
    with refused(422, "Invalid"):
        api.create(nodes(), {"metadata": {"name": "Not_A_Node"}})
    assert api.request("GET", core("nodes", "default")).status == 404


def test_a_quota_is_kept_and_its_amounts_are_canonical(api: Client, namespace: str) -> None:
    hard = {"requests.nvidia.com/gpu": "4", "limits.memory": "1024Mi"}
    path = core("resourcequotas", namespace)
    made = api.create(path, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    assert made["spec"]["hard"] == {"requests.nvidia.com/gpu": "4", "limits.memory": "1Gi"}
