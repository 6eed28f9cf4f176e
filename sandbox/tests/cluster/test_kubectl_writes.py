"""Real kubectl writes: both kinds of apply, patches, labels, deletion."""

from __future__ import annotations

import secrets

import pytest

from sandbox.tests.cluster.kubectl import Kubectl, KubectlError, make_node, make_pod
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import config_maps, core, namespaces, nodes, pods


def config_map(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


def test_apply_creates_changes_removes_and_leaves_alone(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    def apply(**data: str) -> str:
        return kubectl("apply", "-f", "-", given=config_map(**data)).strip()

    assert apply(a="1", b="1") == "configmap/m created"
    assert apply(a="1", b="1") == "configmap/m unchanged"
    api.patch(config_maps(namespace, "m"), {"data": {"others": "1"}})
    assert apply(a="2") == "configmap/m configured"
    assert api.get(config_maps(namespace, "m"))["data"] == {"a": "2", "others": "1"}


def test_apply_on_the_server_owns_its_fields(api: Client, kubectl: Kubectl, namespace: str) -> None:
    ours = ("apply", "--server-side", "--field-manager=ours", "-f", "-")
    theirs = ("apply", "--server-side", "--field-manager=theirs", "-f", "-")
    done = kubectl(*ours, given=config_map(a="1", b="1"))
    assert done.strip() == "configmap/m serverside-applied"
    with pytest.raises(KubectlError) as caught:
        kubectl(*theirs, given=config_map(a="2", c="2"))
    assert 'Apply failed with 1 conflict: conflict with "ours": .data.a' in str(caught.value)
    assert api.get(config_maps(namespace, "m"))["data"] == {"a": "1", "b": "1"}
    kubectl(*theirs, "--force-conflicts", given=config_map(a="2", c="2"))
    assert api.get(config_maps(namespace, "m"))["data"] == {"a": "2", "b": "1", "c": "2"}
    kubectl(*ours, given=config_map())
    assert api.get(config_maps(namespace, "m"))["data"] == {"a": "2", "c": "2"}
    shown = kubectl("get", "cm", "m", "-o", "yaml", "--show-managed-fields")
    assert "manager: theirs" in shown


def test_what_a_kind_does_not_have_is_refused_and_nothing_is_stored(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    wish = {**config_map(a="1"), "dta": {}}
    with pytest.raises(KubectlError, match='unknown field "dta"'):
        kubectl("apply", "-f", "-", given=wish)
    dry = kubectl("apply", "-f", "-", "--dry-run=server", given=config_map())
    assert dry.strip() == "configmap/m created (server dry run)"
    assert api.find(config_maps(namespace, "m")) is None


def test_each_kind_of_patch_is_taken(api: Client, kubectl: Kubectl, namespace: str) -> None:
    make_pod(api, namespace, "p")
    image = '{"spec":{"containers":[{"name":"main","image":"two"}]}}'
    kubectl("patch", "pod", "p", "--type=strategic", "-p", image)
    kubectl("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"annotations":{"m":"1"}}}')
    operation = '[{"op":"add","path":"/metadata/annotations/j","value":"1"}]'
    kubectl("patch", "pod", "p", "--type=json", "-p", operation)
    pod = api.get(pods(namespace, "p"))
    assert [each["image"] for each in pod["spec"]["containers"]] == ["two"]
    assert pod["metadata"]["annotations"] == {"m": "1", "j": "1"}
    assert kubectl("patch", "pod", "p", "-p", image).strip() == "pod/p patched (no change)"


def test_labels_and_annotations_are_set_changed_and_taken_away(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    make_pod(api, namespace, "p")
    kubectl("label", "pod", "p", "tier=one")
    with pytest.raises(KubectlError, match="already has a value"):
        kubectl("label", "pod", "p", "tier=two")
    kubectl("label", "pod", "p", "tier=two", "--overwrite")
    kubectl("annotate", "pod", "p", "hami.io/note=a b", "gone=1")
    kubectl("annotate", "pod", "p", "gone-")
    metadata = api.get(pods(namespace, "p"))["metadata"]
    assert metadata["labels"] == {"tier": "two"}
    assert metadata["annotations"] == {"hami.io/note": "a b"}


def test_a_bound_pod_gets_its_grace_and_force_ends_it(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    node = f"gpu-{secrets.token_hex(3)}"
    make_node(api, node)
    make_pod(api, namespace, "p", node)
    kubectl("delete", "pod", "p", "--grace-period=5", "--wait=false")
    assert api.get(pods(namespace, "p"))["metadata"]["deletionGracePeriodSeconds"] == 5
    assert kubectl.rows("get", "pods")[0][2] == "Terminating"
    kubectl("delete", "pod", "p", "--grace-period=0", "--force")
    assert api.find(pods(namespace, "p")) is None


def test_delete_takes_selectors_and_waits(api: Client, kubectl: Kubectl, namespace: str) -> None:
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        make_pod(api, namespace, name, app=app)
    done = kubectl("delete", "pods", "-l", "app=x")
    assert [line.split()[1] for line in done.splitlines()] == ['"a"', '"b"']
    assert kubectl("get", "pods", "-o", "name") == "pod/c\n"


def test_a_deleted_namespace_goes_with_all_that_is_in_it(
    api: Client, kubectl: Kubectl, namespace: str
) -> None:
    account = wait_for(
        "the default account", lambda: api.find(core("serviceaccounts", namespace, "default")), 20
    )
    assert account["metadata"]["name"] == "default"
    make_pod(api, namespace, "p")
    kubectl("apply", "-f", "-", given=config_map())
    kubectl("delete", "namespace", namespace)
    assert api.find(namespaces(namespace)) is None
    assert api.find(pods(namespace, "p")) is None
    assert api.find(config_maps(namespace, "m")) is None


def test_a_node_is_cordoned_and_let_in_again(api: Client, kubectl: Kubectl) -> None:
    node = f"gpu-{secrets.token_hex(3)}"
    make_node(api, node)
    kubectl("cordon", node)
    assert api.get(nodes(node))["spec"]["unschedulable"] is True
    assert kubectl.rows("get", "node", node)[0][1] == "Ready,SchedulingDisabled"
    kubectl("uncordon", node)
    assert "unschedulable" not in api.get(nodes(node))["spec"]
