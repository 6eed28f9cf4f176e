"""Only hami writes grants and nodes' cards: the API server refuses others.

The grant that pods carry here holds no card. So the auditor, who looks after each test, finds
nothing wrong with it, and would report a forged one that came through.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest

from hami.vendors import table
from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.chart import metadata_writes, policy
from tests.e2e.chart.metadata_writes import path_of
from tests.e2e.chart.our_keys import (
    OF_THE_AGENT_ON_NODES,
    OF_THE_AGENT_ON_PODS,
    OF_THE_SCHEDULER_ON_NODES,
    OF_USERS_ON_PODS,
    OURS_ON_NODES,
    OURS_ON_PODS,
    RESTORED_BY_THE_AGENT_ON_PODS,
    VENDORS,
)
from tests.e2e.chart.policy import AGENT, ELSEWHERE, NODE, SCHEDULER, Stage
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import audit
from tests.e2e.install.nodes import KEYS
from tests.kubeapi.client import MERGE_PATCH, ApiError, Client, Object, wait_for
from tests.kubeapi.paths import core, group, nodes
from tests.kubeapi.paths import pods as pods_path

GRANT = {annotation_keys.ASSIGNED_NODE: ELSEWHERE, KEYS.allocated: ";"}
STOLEN = "GPU-stolen,NVIDIA,80000,100:;"
NOTE = "example.com/note"
LABEL = f"label {annotation_keys.ASSIGNED_NODE}"

#: Half of what the API lets a pod have, and more than anybody has.
MANY_ANNOTATIONS = 20_000
DONE_S = 60
TOLD_S = 30
NODE_CLAIM = "authentication.kubernetes.io%2Fnode-name"

Write = Callable[[Client, Object, Object], Object]
Plant = Callable[..., Object]


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Stage]:
    with policy.stage(cluster) as stage:
        yield stage


@pytest.fixture(scope="module")
def trusted(stage: Stage) -> Client:
    """Give the account that the chart was told to trust; it plants what the tests begin with."""
    return stage.speak_as(policy.TRUSTED)


@pytest.fixture(scope="module")
def scheduler(stage: Stage) -> Client:
    return stage.speak_as(SCHEDULER)


@pytest.fixture(scope="module")
def agent(stage: Stage) -> Client:
    """Give an agent as it really is: with the token that kubelet mounts into its pod."""
    show = ("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    spec = {"serviceAccountName": AGENT, "nodeName": NODE, "restartPolicy": "Never"}
    pods.create(stage.admin, stage.namespace, pods.pod("agent", show, **spec))
    pods.await_phase(stage.admin, stage.namespace, "agent", "Succeeded")
    return stage.speak_with(pods.logs(stage.admin, stage.namespace, "agent"))


@pytest.fixture
def plant(stage: Stage, trusted: Client) -> Iterator[Plant]:
    """Give what makes pods, with annotations of any kind; they go with the test."""
    planted: list[Object] = []

    def make(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
        body = pods.pod(
            f"planted-{secrets.token_hex(4)}",
            metadata={"annotations": annotations or {}},
            container={"resources": {"limits": {"cpu": "10m"}}},
            **spec,
        )
        planted.append(trusted.create(pods_path(stage.namespace), body))
        return planted[-1]

    yield make
    for pod in planted:
        # Only a kubelet would end a pod in good time.
        served = pod["spec"].get("nodeName") == NODE
        stage.admin.delete(path_of(pod), gracePeriodSeconds=pods.GRACE_S if served else 0)


def annotated(key: str, value: str | None = "1") -> Object:
    return {"annotations": {key: value}}


def labelled(value: str | None) -> Object:
    return {"labels": {annotation_keys.ASSIGNED_NODE: value}}


def refused(policy_name: str, *words: str) -> Any:
    """Expect a refusal in which the policy stands, and all that the person must know."""
    every = "".join(f"(?=.*{re.escape(word)})" for word in (f"'{policy_name}'", *words))
    return pytest.raises(ApiError, match=f"(?s)^403 Forbidden{every}")


def refused_to_a_stranger(user: str, *keys: str, policy_name: str = policy.POD_POLICY) -> Any:
    return refused(
        policy_name, *keys, f"{user} must not", SCHEDULER, AGENT, "admissionPolicy.trustedAccounts"
    )


REGISTER: Object = {"metadata": annotated(KEYS.register)}
PHASE: Object = {"metadata": annotated(annotation_keys.BIND_PHASE, "success")}


def written(stage: Stage, pod: Object) -> tuple[Object, Object]:
    """Read the metadata that anybody may have changed: annotations and labels."""
    meta = stage.admin.get(path_of(pod))["metadata"]
    return meta.get("annotations", {}), meta.get("labels", {})


# Users and pods.


@pytest.mark.parametrize(
    ("right", "verb", "write"),
    [
        ("pods", "patch", metadata_writes.patch),
        ("pods", "update", metadata_writes.replace),
        ("pods/status", "patch", metadata_writes.status),
    ],
)
def test_who_may_write_a_pod_in_this_way_can_change_anything_but_its_grant(
    stage: Stage, plant: Plant, right: str, verb: str, write: Write
) -> None:
    name = f"{verb}-{right.replace('/', '-')}"
    user, account = stage.user(name), stage.account(name, {right: [verb]})
    plain, granted = plant(nodeName=ELSEWHERE), plant(GRANT, nodeName=ELSEWHERE)
    for pod, change in (
        (plain, annotated(KEYS.allocated, STOLEN)),
        (granted, annotated(KEYS.allocated, STOLEN)),
        (granted, annotated(KEYS.allocated, None)),
    ):
        with refused_to_a_stranger(user, KEYS.allocated):
            write(account, pod, change)
    with refused_to_a_stranger(user, LABEL):
        write(account, plain, labelled("elsewhere"))
    write(account, plain, annotated(NOTE))
    write(account, granted, annotated(NOTE))
    assert written(stage, plain) == ({NOTE: "1"}, {})
    assert written(stage, granted) == ({**GRANT, NOTE: "1"}, {})


@pytest.mark.parametrize(
    ("right", "write"),
    [
        ("pods/ephemeralcontainers", metadata_writes.ephemeral_containers),
        ("pods/resize", metadata_writes.resize),
    ],
)
def test_a_grant_that_is_sent_along_with_a_change_of_containers_is_not_written(
    stage: Stage, plant: Plant, right: str, write: Write
) -> None:
    """The API server itself drops the rest of such a write; where it would not, it is refused."""
    account = stage.account(right.replace("/", "-"), {right: ["patch"]})
    plain, granted = plant(nodeName=ELSEWHERE), plant(GRANT, nodeName=ELSEWHERE)
    for pod, value in ((plain, STOLEN), (granted, STOLEN), (granted, None)):
        change = annotated(KEYS.allocated, value) | labelled("elsewhere")
        after = write(account, pod, change)
        assert after["spec"] != pod["spec"]
    assert written(stage, plain) == ({}, {})
    assert written(stage, granted) == (GRANT, {})


def test_server_side_apply_neither_takes_a_grant_nor_gives_one(stage: Stage, plant: Plant) -> None:
    user, account = stage.user("applier"), stage.account("applier", {"pods": ["patch"]})
    plain, granted = plant(nodeName=ELSEWHERE), plant(GRANT, nodeName=ELSEWHERE)
    for pod in (plain, granted):
        with refused_to_a_stranger(user, KEYS.allocated):
            metadata_writes.apply(account, pod, annotated(KEYS.allocated, STOLEN))
    # Whoever applies what is there becomes an owner, too, and can give up no more than that.
    metadata_writes.apply(account, granted, annotated(KEYS.allocated, GRANT[KEYS.allocated]))
    metadata_writes.apply(account, granted, annotated(NOTE))
    assert written(stage, granted) == ({**GRANT, NOTE: "1"}, {})
    assert written(stage, plain) == ({}, {})


@pytest.mark.parametrize(
    ("right", "bind"),
    [
        ("pods/binding", metadata_writes.bind),
        ("bindings", metadata_writes.bind_the_old_way),
    ],
)
def test_who_may_bind_pods_can_bind_them_but_not_with_a_grant(
    stage: Stage, plant: Plant, right: str, bind: Callable[..., Object]
) -> None:
    name = f"create-{right.replace('/', '-')}"
    user, account = stage.user(name), stage.account(name, {right: ["create"]})
    plain, granted = plant(schedulerName="nobody"), plant(GRANT, schedulerName="nobody")
    for pod in (plain, granted):
        with refused_to_a_stranger(user, KEYS.allocated):
            bind(account, pod, annotated(KEYS.allocated, STOLEN), node=ELSEWHERE)
        with refused_to_a_stranger(user, LABEL):
            bind(account, pod, labelled("elsewhere"), node=ELSEWHERE)
    bind(account, plain, {}, node=ELSEWHERE)
    bind(account, granted, annotated(NOTE), node=ELSEWHERE)
    assert written(stage, plain) == ({}, {})
    assert written(stage, granted) == ({**GRANT, NOTE: "1"}, {})
    assert stage.admin.get(path_of(granted))["spec"]["nodeName"] == ELSEWHERE


def test_no_annotation_of_ours_comes_with_a_new_pod(stage: Stage) -> None:
    account = stage.account("creator", {"pods": ["create"]})
    for key in sorted(OURS_ON_PODS):
        body = pods.pod("forged", metadata=annotated(key))
        with refused_to_a_stranger(stage.user("creator"), key):
            account.create(pods_path(stage.namespace), body, dryRun="All")


def test_what_users_and_the_webhook_write_on_a_pod_stays_theirs(stage: Stage) -> None:
    wishes = {"annotations": dict.fromkeys(OF_USERS_ON_PODS, "1")}
    account = stage.account("wisher", {"pods": ["create"]})
    made = account.create(pods_path(stage.namespace), pods.pod("w", metadata=wishes), dryRun="All")
    assert made["metadata"]["annotations"] == wishes["annotations"]


def test_a_controller_makes_no_pods_with_a_grant_for_anybody(stage: Stage) -> None:
    meta = {"labels": {"app": "thief"}, **annotated(KEYS.allocated, STOLEN)}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "thief"}},
        "template": {"metadata": meta, "spec": pods.pod("thief")["spec"]},
    }
    sets = group("apps/v1", "replicasets", stage.namespace)
    stage.admin.create(sets, {"metadata": {"name": "thief"}, "spec": spec})

    def failure() -> str | None:
        query = "involvedObject.name=thief,reason=FailedCreate"
        events = stage.admin.get(core("events", stage.namespace), fieldSelector=query)["items"]
        return str(events[0]["message"]) if events else None

    message = wait_for("the controller to say why it makes no pod", failure, TOLD_S)
    assert KEYS.allocated in message
    assert "replicaset-controller must not" in message
    stage.admin.delete(f"{sets}/thief")


def test_a_pod_with_very_many_annotations_still_reports_its_status(
    stage: Stage, plant: Plant
) -> None:
    many = {f"k{number}": "" for number in range(MANY_ANNOTATIONS)}
    pod = plant(GRANT | many, nodeName=ELSEWHERE)
    condition = {"type": "Ready", "status": "False"}
    stage.admin.patch(path_of(pod, "status"), {"status": {"conditions": [condition]}})
    metadata_writes.status(stage.admin, pod, annotated(NOTE))
    with refused_to_a_stranger("admin", KEYS.allocated):
        metadata_writes.status(stage.admin, pod, annotated(KEYS.allocated, None))


# The cluster's own work.


@pytest.mark.usefixtures("stage")
def test_ordinary_pods_come_run_and_go_as_ever(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    mark = audit.mark(cluster)
    here = {"kubernetes.io/hostname": NODE}
    template = pods.pod("done", ("true",), restartPolicy="Never", nodeSelector=here)
    jobs = group("batch/v1", "jobs", namespace)
    spec = {"template": {"metadata": {}, "spec": template["spec"]}, "ttlSecondsAfterFinished": 0}
    client.create(jobs, {"metadata": {"name": "done"}, "spec": spec})
    wait_for("the job to be done and gone", lambda: client.find(f"{jobs}/done") is None, DONE_S)
    pods.await_gone(client, namespace)
    entries = [
        e for e in mark.entries() if e.namespace == namespace or e.resource == "nodes/status"
    ]
    assert {e.user for e in entries} >= {f"system:node:{NODE}", "system:kube-scheduler"}
    assert [e for e in entries if e.code == HTTPStatus.FORBIDDEN] == []


@pytest.mark.usefixtures("stage")
def test_kubelet_reports_a_nodes_status_but_cannot_register_cards(cluster: Cluster) -> None:
    with Client.from_kubeconfig(cluster.layout.secrets / f"{NODE}.conf") as kubelet:
        now = kubelet.get(nodes(NODE))["status"]["conditions"]
        answer = kubelet.patch(nodes(NODE, "status"), {"status": {"conditions": now}})
        assert answer["status"]["conditions"] == now
        for path in (nodes(NODE), nodes(NODE, "status")):
            with refused_to_a_stranger(
                f"system:node:{NODE}", KEYS.register, policy_name=policy.NODE_POLICY
            ):
                kubelet.patch(path, {"metadata": annotated(KEYS.register)}, dryRun="All")


def test_an_administrator_closes_cards_but_writes_nothing_that_is_ours(stage: Stage) -> None:
    cordon = {"metadata": annotated(KEYS.cordon, "GPU-broken")}
    after = stage.admin.patch(nodes(ELSEWHERE), cordon)
    assert after["metadata"]["annotations"][KEYS.cordon] == "GPU-broken"
    for key in sorted(OURS_ON_NODES):
        with refused_to_a_stranger("admin", key, policy_name=policy.NODE_POLICY):
            stage.admin.patch(nodes(ELSEWHERE), {"metadata": annotated(key)}, dryRun="All")
        with refused_to_a_stranger("admin", key, policy_name=policy.NODE_POLICY):
            new = {"metadata": {"name": "new", **annotated(key)}}
            stage.admin.create(nodes(), new, dryRun="All")


def test_cards_that_are_registered_stay_so_until_their_agent_says_otherwise(
    stage: Stage, trusted: Client
) -> None:
    trusted.patch(nodes(ELSEWHERE), {"metadata": annotated(KEYS.register, "[]")})
    for value in (None, "[{}]"):
        for sub in (None, "status"):
            with refused_to_a_stranger("admin", KEYS.register, policy_name=policy.NODE_POLICY):
                change = {"metadata": annotated(KEYS.register, value)}
                stage.admin.patch(nodes(ELSEWHERE, sub), change)
    trusted.patch(nodes(ELSEWHERE), {"metadata": annotated(KEYS.register, None)})


def test_an_account_that_the_chart_trusts_writes_everything(plant: Plant, trusted: Client) -> None:
    pod = plant(nodeName=ELSEWHERE)
    ours = {"annotations": dict.fromkeys(OURS_ON_PODS, "1"), **labelled("elsewhere")}
    trusted.patch(path_of(pod), {"metadata": ours}, dryRun="All")
    ours = {"annotations": dict.fromkeys(OURS_ON_NODES, "1")}
    trusted.patch(nodes(ELSEWHERE), {"metadata": ours}, dryRun="All")


# The scheduler.


def test_the_scheduler_binds_a_pod_with_its_grant(
    stage: Stage, plant: Plant, scheduler: Client
) -> None:
    pod = plant(schedulerName="nobody")
    change = {"annotations": GRANT, **labelled(ELSEWHERE)}
    metadata_writes.bind(scheduler, pod, change, node=ELSEWHERE)
    assert written(stage, pod) == (GRANT, {annotation_keys.ASSIGNED_NODE: ELSEWHERE})
    metadata_writes.patch(scheduler, pod, annotated(annotation_keys.REQUEUE))


@pytest.mark.parametrize("node", [NODE, ELSEWHERE])
def test_the_scheduler_writes_its_part_of_every_node(scheduler: Client, node: str) -> None:
    ours = {"annotations": dict.fromkeys(OF_THE_SCHEDULER_ON_NODES, "1")}
    scheduler.patch(nodes(node), {"metadata": ours}, dryRun="All")
    for key in sorted(OF_THE_AGENT_ON_NODES - OF_THE_SCHEDULER_ON_NODES):
        with refused(policy.NODE_POLICY, key, SCHEDULER):
            scheduler.patch(nodes(node), {"metadata": annotated(key)}, dryRun="All")


# Device plugins of other vendors.


HYGON, AMD = (
    next(vendor.annotations for vendor in VENDORS if vendor.section == name)
    for name in ("hygon", "amd")
)


def of_plugin(keys: table.AnnotationKeys) -> dict[str, str]:
    """Return what a vendor's plugin writes on a pod that it has given its cards."""
    return {annotation_keys.BIND_PHASE: "success", keys.to_allocate: ";"}


def test_a_plugin_whose_account_is_named_writes_its_keys_on_its_own_node(
    stage: Stage, plant: Plant, trusted: Client
) -> None:
    owner = plant(serviceAccountName=policy.PLUGIN, nodeName=ELSEWHERE)
    plugin = stage.speak_as(policy.PLUGIN, bound_to=owner)
    cards = {"metadata": {"annotations": {HYGON.register: "c:", HYGON.handshake: "Reported_1"}}}
    lock = {"metadata": annotated(annotation_keys.NODE_LOCK)}
    with refused_to_a_stranger("admin", HYGON.register, policy_name=policy.NODE_POLICY):
        stage.admin.patch(nodes(ELSEWHERE), cards)
    with refused(policy.NODE_POLICY, f"names node {ELSEWHERE}", f"this is {NODE}"):
        plugin.patch(nodes(NODE), cards, dryRun="All")
    with refused(policy.NODE_POLICY, annotation_keys.NODE_LOCK, stage.user(policy.PLUGIN)):
        plugin.patch(nodes(ELSEWHERE), lock, dryRun="All")
    for change in (cards, lock):
        plugin.patch(nodes(ELSEWHERE), change)
    gone = dict.fromkeys((HYGON.register, HYGON.handshake, annotation_keys.NODE_LOCK))
    with refused_to_a_stranger("admin", HYGON.register, policy_name=policy.NODE_POLICY):
        stage.admin.patch(nodes(ELSEWHERE), {"metadata": {"annotations": gone}})
    trusted.patch(nodes(ELSEWHERE), {"metadata": {"annotations": gone}})

    granted = {annotation_keys.ASSIGNED_NODE: ELSEWHERE, HYGON.allocated: ";"}
    pod, other = plant(granted, nodeName=ELSEWHERE), plant(GRANT, nodeName=ELSEWHERE)
    metadata_writes.patch(plugin, pod, {"annotations": of_plugin(HYGON)})
    assert written(stage, pod)[0] == granted | of_plugin(HYGON)
    for key in (HYGON.allocated, annotation_keys.GRANT_MAC, AMD.to_allocate):
        with refused(policy.POD_POLICY, key, stage.user(policy.PLUGIN)):
            metadata_writes.patch(plugin, pod, annotated(key, "2"))
    with refused(policy.POD_POLICY, annotation_keys.BIND_PHASE, stage.user(policy.PLUGIN)):
        metadata_writes.patch(plugin, other, PHASE["metadata"])
    with refused_to_a_stranger("admin", annotation_keys.BIND_PHASE, HYGON.to_allocate):
        stage.admin.patch(
            path_of(pod), {"metadata": {"annotations": dict.fromkeys(of_plugin(HYGON))}}
        )


def test_the_keys_of_a_vendor_without_an_account_are_open_where_its_cards_are(
    stage: Stage, plant: Plant
) -> None:
    for key in (AMD.register, annotation_keys.NODE_LOCK):
        stage.admin.patch(nodes(ELSEWHERE), {"metadata": annotated(key, "[]")})
    for key in (annotation_keys.NODE_LOCK, AMD.register):
        stage.admin.patch(nodes(ELSEWHERE), {"metadata": annotated(key, None)})
    granted = {annotation_keys.ASSIGNED_NODE: ELSEWHERE, AMD.allocated: ";"}
    pod = plant(granted, nodeName=ELSEWHERE)
    stage.admin.patch(path_of(pod), {"metadata": {"annotations": of_plugin(AMD)}})
    for key in (AMD.allocated, HYGON.to_allocate, KEYS.to_allocate):
        with refused_to_a_stranger("admin", key):
            stage.admin.patch(path_of(pod), {"metadata": annotated(key, "2")})


# The agent.


def test_an_agent_writes_its_part_of_the_pods_on_its_node(
    stage: Stage, plant: Plant, agent: Client
) -> None:
    here = plant(GRANT | {annotation_keys.ASSIGNED_NODE: NODE}, nodeName=NODE)
    done = {annotation_keys.BIND_PHASE: "success", KEYS.to_allocate: ";"}
    metadata_writes.patch(agent, here, {"annotations": done, **labelled(NODE)})
    annotations, labels = written(stage, here)
    assert annotations.items() >= done.items()
    assert labels == {annotation_keys.ASSIGNED_NODE: NODE}
    mine = {"annotations": dict.fromkeys(OF_THE_AGENT_ON_PODS)}
    agent.patch(path_of(here), {"metadata": mine}, dryRun="All")
    for key in sorted(OURS_ON_PODS - OF_THE_AGENT_ON_PODS - RESTORED_BY_THE_AGENT_ON_PODS):
        with refused(policy.POD_POLICY, key, stage.user(AGENT)):
            metadata_writes.patch(agent, here, annotated(key, "2"))


@pytest.mark.parametrize("key", [annotation_keys.OVERUSE, annotation_keys.START_REFUSED])
def test_a_node_marks_its_own_pods_for_an_eviction_and_no_others(
    stage: Stage, plant: Plant, agent: Client, key: str
) -> None:
    here, there = plant(nodeName=NODE), plant(nodeName=ELSEWHERE)
    for value in ("{}", "{ }", None):
        metadata_writes.patch(agent, here, annotated(key, value))
        assert written(stage, here)[0].get(key) == value
    with refused(policy.POD_POLICY, key, f"names node {NODE}", f"the pod is on {ELSEWHERE}"):
        metadata_writes.patch(agent, there, annotated(key, "{}"))
    user = stage.account(f"marker-{secrets.token_hex(4)}", {"pods": ["get", "patch"]})
    with refused(policy.POD_POLICY, key):
        metadata_writes.patch(user, here, annotated(key, "{}"))


def test_an_agent_writes_a_grant_back_on_the_pods_of_its_node_and_of_no_other(
    stage: Stage, plant: Plant, agent: Client
) -> None:
    other = GRANT | {annotation_keys.ASSIGNED_NODE: NODE}
    grant = other | dict.fromkeys(table.device_lists(VENDORS), ";;")
    grant |= {annotation_keys.GRANT_MAC: "v1:a:b"}
    assert set(grant) == RESTORED_BY_THE_AGENT_ON_PODS
    stripped, rewritten = plant(nodeName=NODE), plant(other, nodeName=NODE)
    for pod in (stripped, rewritten):
        agent.patch(path_of(pod), {"metadata": {"annotations": grant}}, dryRun="All")
    # It takes none away, and puts no pod on another node.
    for key in sorted(other):
        for value in (None, ""):
            with refused(policy.POD_POLICY, key, stage.user(AGENT)):
                metadata_writes.patch(agent, rewritten, annotated(key, value))
    with refused(policy.POD_POLICY, annotation_keys.ASSIGNED_NODE, stage.user(AGENT)):
        metadata_writes.patch(agent, stripped, annotated(annotation_keys.ASSIGNED_NODE, ELSEWHERE))
    elsewhere, nowhere = plant(nodeName=ELSEWHERE), plant(schedulerName="nobody")
    for pod, where in ((elsewhere, ELSEWHERE), (nowhere, "no node")):
        with refused(policy.POD_POLICY, KEYS.allocated, f"the pod is on {where}"):
            metadata_writes.patch(agent, pod, annotated(KEYS.allocated, ";"))


def test_an_agent_marks_a_pod_with_very_many_labels(
    stage: Stage, plant: Plant, agent: Client
) -> None:
    """Its user could otherwise make the policy too costly, and escape the mark."""
    pod = plant(nodeName=NODE)
    many = {"labels": {f"k{number}": "" for number in range(MANY_ANNOTATIONS)}}
    stage.admin.patch(path_of(pod), {"metadata": many})
    mark = annotated(annotation_keys.OVERUSE)
    agent.patch(path_of(pod), {"metadata": mark}, dryRun="All")
    label = {"labels": {f"k{MANY_ANNOTATIONS - 1}": "1"}}
    with refused(policy.POD_POLICY, "no other labels", stage.user(AGENT)):
        agent.patch(path_of(pod), {"metadata": label}, dryRun="All")


def test_an_agent_writes_on_no_pod_that_is_not_on_its_node(
    stage: Stage, plant: Plant, agent: Client
) -> None:
    phase = PHASE["metadata"]
    there, nowhere = plant(GRANT, nodeName=ELSEWHERE), plant(schedulerName="nobody")
    with refused(policy.POD_POLICY, f"names node {NODE}", f"the pod is on {ELSEWHERE}"):
        metadata_writes.patch(agent, there, phase)
    for write in (metadata_writes.patch, metadata_writes.status):
        with refused(policy.POD_POLICY, annotation_keys.BIND_PHASE, "the pod is on no node"):
            write(agent, nowhere, phase)
    with refused(policy.POD_POLICY, annotation_keys.BIND_PHASE):
        metadata_writes.bind(agent, nowhere, phase, node=NODE)
    with refused(policy.POD_POLICY, annotation_keys.BIND_PHASE):
        body = pods.pod("forged", metadata=phase, nodeName=NODE)
        agent.create(pods_path(stage.namespace), body)
    # Nor anything else: pods there could be given other images.
    with refused(policy.POD_POLICY, f"the pod is on {ELSEWHERE}"):
        metadata_writes.patch(agent, there, annotated(NOTE))


def test_an_agent_writes_its_part_of_its_own_node_and_of_no_other(agent: Client) -> None:
    mine = {"metadata": {"annotations": dict.fromkeys(OF_THE_AGENT_ON_NODES, "1")}}
    for sub in (None, "status"):
        agent.patch(nodes(NODE, sub), mine, dryRun="All")
        with refused(policy.NODE_POLICY, KEYS.register, f"names node {NODE}", ELSEWHERE):
            agent.patch(nodes(ELSEWHERE, sub), mine, dryRun="All")
    with refused(policy.NODE_POLICY, annotation_keys.REQUEUE, AGENT):
        agent.patch(nodes(NODE), {"metadata": annotated(annotation_keys.REQUEUE)}, dryRun="All")


def test_a_token_that_was_made_for_a_node_is_as_good_as_that_of_a_pod_there(
    stage: Stage, plant: Plant
) -> None:
    for owner in (
        plant(serviceAccountName=AGENT, nodeName=ELSEWHERE),
        stage.admin.get(nodes(ELSEWHERE)),
    ):
        agent = stage.speak_as(AGENT, bound_to=owner)
        agent.patch(nodes(ELSEWHERE), REGISTER, dryRun="All")
        with refused(policy.NODE_POLICY, f"names node {ELSEWHERE}", f"this is {NODE}"):
            agent.patch(nodes(NODE), REGISTER, dryRun="All")


def test_an_agents_token_that_names_no_node_writes_nothing(stage: Stage, plant: Plant) -> None:
    agent = stage.speak_as(AGENT)
    with refused(policy.NODE_POLICY, KEYS.register, "the token names no node"):
        agent.patch(nodes(ELSEWHERE), REGISTER)
    for pod in (plant(nodeName=ELSEWHERE), plant(schedulerName="nobody")):
        with refused(policy.POD_POLICY, annotation_keys.BIND_PHASE, "the token names no node"):
            agent.patch(path_of(pod), PHASE)


def test_an_agent_that_claims_two_nodes_writes_on_neither(stage: Stage, plant: Plant) -> None:
    pod = plant(nodeName=ELSEWHERE)
    for claimed, answer in (
        ([ELSEWHERE], HTTPStatus.OK),
        ([ELSEWHERE, NODE], HTTPStatus.FORBIDDEN),
    ):
        assert _as_agent_of(stage, claimed, nodes(ELSEWHERE), REGISTER) == answer
        assert _as_agent_of(stage, claimed, path_of(pod), PHASE) == answer


def test_an_agents_account_that_the_chart_is_told_to_trust_needs_no_node(
    stage: Stage, plant: Plant
) -> None:
    agent = stage.speak_as(AGENT)
    pod = plant(nodeName=ELSEWHERE)

    def may_write() -> bool:
        return not (
            policy.refuses(lambda: agent.patch(nodes(ELSEWHERE), REGISTER, dryRun="All"))
            or policy.refuses(lambda: agent.patch(path_of(pod), PHASE, dryRun="All"))
        )

    assert not may_write()
    stage.trust(policy.TRUSTED, AGENT)
    try:
        wait_for("the agent to be trusted", may_write, TOLD_S)
    finally:
        stage.trust(policy.TRUSTED)
        wait_for("the agent to be trusted no more", lambda: not may_write(), TOLD_S)


def _as_agent_of(stage: Stage, claimed: list[str], path: str, body: Object) -> int:
    """Write as an agent whose token would name these nodes; a real one names one at most."""
    # Two spellings of a header are two values of one.
    spellings = ("Impersonate-Extra-", "impersonate-extra-")
    claims = {f"{word}{NODE_CLAIM}": name for word, name in zip(spellings, claimed, strict=False)}
    answer = stage.admin.request(
        "PATCH",
        path,
        body=body,
        query={"dryRun": "All"},
        content_type=MERGE_PATCH,
        headers={"Impersonate-User": stage.user(AGENT), **claims},
    )
    return answer.status
