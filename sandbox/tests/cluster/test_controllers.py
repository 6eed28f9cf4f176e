"""The sandbox's controllers on its API server: owners, replicas, jobs, namespaces."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from sandbox.tests.cluster.kubectl import READY
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import config_maps, core, group, leases, namespaces, nodes, pods

WAIT_S = 60.0


def replica_sets(namespace: str, *names: str) -> str:
    return group("apps/v1", "replicasets", namespace, *names)


def deployments(namespace: str, *names: str) -> str:
    return group("apps/v1", "deployments", namespace, *names)


def jobs(namespace: str, *names: str) -> str:
    return group("batch/v1", "jobs", namespace, *names)


def soon(what: str, check: Callable[[], bool]) -> None:
    wait_for(what, check, WAIT_S, interval=0.03)


def owned(name: str, *owners: Object, block: bool = False) -> Object:
    references = [
        {
            "apiVersion": "v1",
            "kind": owner.get("kind", "ConfigMap"),
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}}


def make(api: Client, namespace: str, name: str, *owners: Object, block: bool = False) -> Object:
    return api.create(config_maps(namespace), owned(name, *owners, block=block))


def gone(api: Client, namespace: str, name: str) -> Callable[[], bool]:
    return lambda: api.find(config_maps(namespace, name)) is None


def test_what_is_owned_goes_with_its_last_owner(api: Client, namespace: str) -> None:
    first, second = (make(api, namespace, name) for name in ("first", "second"))
    child = make(api, namespace, "child", first, second)
    make(api, namespace, "grandchild", child)
    api.delete(config_maps(namespace, "first"))

    def let_go() -> bool:
        found = api.get(config_maps(namespace, "child"))
        return [each["name"] for each in found["metadata"]["ownerReferences"]] == ["second"]

    soon("the first owner to be forgotten", let_go)
    api.delete(config_maps(namespace, "second"))
    soon("the child to go", gone(api, namespace, "child"))
    soon("the grandchild to go", gone(api, namespace, "grandchild"))


def test_an_owner_that_never_was_leaves_nothing_behind(api: Client, namespace: str) -> None:
    real = make(api, namespace, "real")
    impostor = {"metadata": {"name": "real", "uid": "6e0c9e0e-0000-4000-8000-000000000000"}}
    make(api, namespace, "orphan", impostor)
    make(api, namespace, "kept", real)
    soon("the orphan to go", gone(api, namespace, "orphan"))
    assert not gone(api, namespace, "kept")()


def test_an_owner_can_let_go_or_wait(api: Client, namespace: str) -> None:
    parent = make(api, namespace, "parent")
    make(api, namespace, "child", parent)
    api.delete(config_maps(namespace, "parent"), propagationPolicy="Orphan")
    soon("the parent to go", gone(api, namespace, "parent"))
    assert "ownerReferences" not in api.get(config_maps(namespace, "child"))["metadata"]

    parent = make(api, namespace, "parent")
    held = owned("held", parent, block=True)
    held["metadata"]["finalizers"] = ["hami.io/test"]
    api.create(config_maps(namespace), held)
    api.delete(config_maps(namespace, "parent"), propagationPolicy="Foreground")
    soon(
        "the dependent to be marked",
        lambda: "deletionTimestamp" in api.get(config_maps(namespace, "held"))["metadata"],
    )
    assert not gone(api, namespace, "parent")()
    api.patch(config_maps(namespace, "held"), {"metadata": {"finalizers": None}})
    soon("the parent to go", gone(api, namespace, "parent"))


def test_the_lease_of_a_node_goes_with_it(api: Client) -> None:
    name = f"gpu-{secrets.token_hex(3)}"
    made = api.create(nodes(), {"metadata": {"name": name}})
    reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
    metadata = {"name": name, "ownerReferences": [reference]}
    api.create(leases("kube-node-lease"), {"metadata": metadata, "spec": {}})
    api.delete(nodes(name))
    soon("the lease to go", lambda: api.find(leases("kube-node-lease", name)) is None)


def test_a_namespace_waits_for_what_is_held_in_it(api: Client, namespace: str) -> None:
    held = {"metadata": {"name": "held", "finalizers": ["hami.io/test"]}}
    api.create(config_maps(namespace), held)
    make(api, namespace, "free")
    api.delete(namespaces(namespace))
    soon("the free one to go", gone(api, namespace, "free"))
    assert api.get(namespaces(namespace))["status"]["phase"] == "Terminating"
    api.patch(config_maps(namespace, "held"), {"metadata": {"finalizers": None}})
    soon("the namespace to go", lambda: api.find(namespaces(namespace)) is None)


def test_custom_resources_go_with_their_namespace(api: Client, namespace: str) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    definitions = group("apiextensions.k8s.io/v1", "customresourcedefinitions")
    api.create(
        definitions,
        {
            "metadata": {"name": "things.test.hami.io"},
            "spec": {
                "group": "test.hami.io",
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            },
        },
    )
    things = group("test.hami.io/v1", "things", namespace)
    wish = {"apiVersion": "test.hami.io/v1", "kind": "Thing", "metadata": {"name": "t"}}
    wait_for("the kind", lambda: api.request("GET", things).status == 200, WAIT_S)
    api.create(things, wish)
    api.delete(namespaces(namespace))
    soon("the namespace to go", lambda: api.find(namespaces(namespace)) is None)
    assert api.get(group("test.hami.io/v1", "things"))["items"] == []
    api.delete(f"{definitions}/things.test.hami.io")


def test_a_namespace_keeps_its_default_account(api: Client, namespace: str) -> None:
    def uid() -> str | None:
        found = api.find(core("serviceaccounts", namespace, "default"))
        return found["metadata"]["uid"] if found else None

    first = wait_for("the account", uid, WAIT_S)
    api.delete(core("serviceaccounts", namespace, "default"))
    soon("another account", lambda: uid() not in {None, first})


def template(image: str = "one", **spec: object) -> Object:
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": image}], **spec},
    }


def workload(replicas: int, **spec: object) -> Object:
    selector = {"matchLabels": {"app": "x"}}
    wish = {"replicas": replicas, "selector": selector, "template": template(), **spec}
    return {"metadata": {"name": "x"}, "spec": wish}


def living(api: Client, namespace: str) -> list[Object]:
    return [
        each
        for each in api.get(pods(namespace))["items"]
        if "deletionTimestamp" not in each["metadata"]
    ]


def make_ready(api: Client, namespace: str) -> None:
    for each in living(api, namespace):
        api.patch(pods(namespace, each["metadata"]["name"], "status"), {"status": READY})


def test_a_replica_set_replaces_counts_and_gives_up_pods(api: Client, namespace: str) -> None:
    api.create(replica_sets(namespace), workload(3))
    soon("three pods", lambda: len(living(api, namespace)) == 3)
    victim = living(api, namespace)[0]["metadata"]["name"]
    api.delete(pods(namespace, victim))
    soon("another one", lambda: len(living(api, namespace)) == 3)
    (first, *_) = living(api, namespace)
    api.patch(pods(namespace, first["metadata"]["name"], "status"), {"status": READY})

    def status() -> Object:
        found: Object = api.get(replica_sets(namespace, "x"))["status"]
        return found

    soon("the count", lambda: status().get("availableReplicas") == 1)
    scale = {"spec": {"replicas": 1}}
    api.patch(replica_sets(namespace, "x", "scale"), scale)
    soon("one to be left", lambda: len(living(api, namespace)) == 1)
    # The one that works is the one that stays.
    assert living(api, namespace)[0]["metadata"]["uid"] == first["metadata"]["uid"]
    soon("the status", lambda: (status()["replicas"], status()["readyReplicas"]) == (1, 1))


def test_a_replica_set_says_why_it_has_no_pods(api: Client, namespace: str) -> None:
    wish = workload(1)
    wish["spec"]["template"] = template(priorityClassName="none")
    api.create(replica_sets(namespace), wish)

    def failure() -> Object | None:
        status = api.get(replica_sets(namespace, "x"))["status"]
        conditions: list[Object] = status.get("conditions") or []
        return conditions[0] if conditions else None

    found = wait_for("the condition", failure, WAIT_S)
    assert (found["type"], found["reason"]) == ("ReplicaFailure", "FailedCreate")
    assert "no PriorityClass with name none was found" in found["message"]


def test_a_deployment_that_recreates_never_runs_both(api: Client, namespace: str) -> None:
    wish = workload(2, strategy={"type": "Recreate"}, revisionHistoryLimit=0)
    api.create(deployments(namespace), wish)
    soon("two pods", lambda: len(living(api, namespace)) == 2)
    make_ready(api, namespace)
    change = {"spec": {"template": template("two")}}
    with api.watch(pods(namespace)) as watch:
        api.patch(deployments(namespace, "x"), change)
        running: dict[str, str] = {}
        while list(running.values()) != ["two", "two"]:
            event = watch.next()
            assert event is not None
            name = event["object"]["metadata"]["name"]
            running[name] = event["object"]["spec"]["containers"][0]["image"]
            if event["type"] == "DELETED":
                del running[name]
            assert len(set(running.values())) < 2, running
    make_ready(api, namespace)
    soon("the old set to go", lambda: len(api.get(replica_sets(namespace))["items"]) == 1)


def job(**spec: object) -> Object:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": "x"}, "spec": {"template": pod, **spec}}


def end_one(api: Client, namespace: str, phase: str = "Succeeded") -> None:
    def pending() -> Object | None:
        found = [each for each in living(api, namespace) if each["status"]["phase"] == "Pending"]
        return found[0] if found else None

    found = wait_for("a pod of the job", pending, WAIT_S)
    path = pods(namespace, found["metadata"]["name"], "status")
    api.patch(path, {"status": {"phase": phase}})


def ended(api: Client, namespace: str) -> str | None:
    conditions = api.get(jobs(namespace, "x"))["status"].get("conditions") or []
    return next((f"{each['type']} {each['reason']}" for each in conditions), None)


def test_a_job_runs_as_many_pods_as_it_may_until_enough_have_succeeded(
    api: Client, namespace: str
) -> None:
    api.create(jobs(namespace), job(completions=3, parallelism=2))
    soon("two pods", lambda: len(living(api, namespace)) == 2)
    for _ in range(3):
        end_one(api, namespace)
    assert wait_for("the end", lambda: ended(api, namespace), WAIT_S) == (
        "Complete CompletionsReached"
    )
    status = api.get(jobs(namespace, "x"))["status"]
    assert (status["succeeded"], status.get("active")) == (3, None)
    assert len(living(api, namespace)) == 3


@pytest.mark.parametrize(
    ("spec", "end"),
    [
        ({"backoffLimit": 0}, "Failed BackoffLimitExceeded"),
        ({"activeDeadlineSeconds": 1}, "Failed DeadlineExceeded"),
        ({"suspend": True}, "Suspended JobSuspended"),
    ],
)
def test_a_job_that_must_not_go_on_ends_its_pods(
    api: Client, namespace: str, spec: Object, end: str
) -> None:
    wish = job(parallelism=2, completions=2, **spec)
    api.create(jobs(namespace), wish)
    if "backoffLimit" in spec:
        end_one(api, namespace, "Failed")
    assert wait_for("the end", lambda: ended(api, namespace), WAIT_S) == end
    soon(
        "its pods to go",
        lambda: all(each["status"]["phase"] == "Failed" for each in living(api, namespace)),
    )
