"""Attacks with a node agent's token, which root on the node can read."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import parser

from hami.agent.errors import RefusalError
from hami.serving.grant_keys import Keyring
from hami.serving.grant_signature import SigningKey
from hami.wire import annotation_keys, node_register, signature
from hami.wire.grant import Grant
from tests import builders
from tests.attacks import attack as attacks
from tests.attacks import gate
from tests.attacks.attack import GAP, NO_GAIN, REFUSED, Attacker, Result
from tests.attacks.gate import Gate, Object, Request, agent_of, default_gate, merged
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import rig as agents
from tests.unit.agent.records import devices
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_attack_grants import bound, keys
from tests.unit.serving import servers

__all__ = ["keys"]

attack = attacks.by(Attacker.NODE)

HERE, ELSEWHERE = "gpu-1", "gpu-2"
THIEF = agent_of(HERE)
REGISTER = NVIDIA.annotations.register
GRANT_KEYS = (annotation_keys.SIGNED_DEVICES, annotation_keys.GRANT_MAC)


def node(name: str) -> Object:
    metadata = {"name": name, "labels": {"pool": "gpu"}, "annotations": {REGISTER: "[]"}}
    return {"metadata": metadata, "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}


def pod(on: str) -> Object:
    spec = {"containers": [{"name": "c", "image": "good"}], **({"nodeName": on} if on else {})}
    metadata = {"name": "p", "namespace": "team", "labels": {"app": "trainer"}, "annotations": {}}
    return {"metadata": metadata, "spec": spec}


def annotated(key: str, value: str | None = "1") -> Object:
    return {"metadata": {"annotations": {key: value}}}


def writes(resource: str, old: Object, *changes: Object) -> list[Request]:
    return [(THIEF, "patch", resource, old, merged(old, change)) for change in changes]


# Other nodes.


@attack(
    "other-nodes-cards",
    "registers cards, or takes the lock, of another node",
    REFUSED,
    "an admission policy keeps the account to the node that its token names",
    also=("e2e",),
)
def test_another_nodes_register() -> Result:
    other = node(ELSEWHERE)
    keys_of_nodes = (REGISTER, annotation_keys.NODE_LOCK, NVIDIA.annotations.binding)
    changes = [annotated(key) for key in keys_of_nodes]
    return default_gate().tries(
        *writes("nodes", other, *changes), *writes("nodes/status", other, *changes)
    )


@attack(
    "other-nodes-pods",
    "writes on pods of other nodes, or of none",
    REFUSED,
    "an admission policy keeps the account to pods of the node that its token names",
    also=("e2e",),
)
def test_another_nodes_pods() -> Result:
    changes = [annotated(key) for key in (*GRANT_KEYS, annotation_keys.BIND_PHASE, "note")]
    requests: list[Request] = [
        each for on in (ELSEWHERE, "") for each in writes("pods", pod(on), *changes)
    ]
    return default_gate().tries(*requests, namespace="team")


@attack(
    "token-without-node",
    "uses a token of the account that names no node, or two",
    REFUSED,
    "the policy wants exactly one node in the token",
)
def test_a_token_of_no_node() -> Result:
    user = agent_of(HERE)
    change = annotated(REGISTER)
    old = node(HERE)
    requests: list[Request] = []
    for nodes in ((), (HERE, ELSEWHERE)):
        claims = {gate.NODE_CLAIM: nodes} if nodes else {}
        thief = type(user)(username=user.username, groups=user.groups, extra=claims)
        requests.append((thief, "patch", "nodes", old, merged(old, change)))
    return default_gate().tries(*requests)


# Its own node: no more than kubelet's own account may.


@attack(
    "own-nodes-taints",
    "removes taints of its node, or adds labels, so that pods of others come to it",
    REFUSED,
    "an admission policy lets the account change annotations of nodes, no labels and no spec",
    also=("e2e",),
)
def test_its_nodes_labels_and_taints() -> Result:
    here = node(HERE)
    changes: tuple[Object, ...] = (
        {"spec": {"taints": []}},
        {"spec": {"taints": None}},
        {"spec": {"unschedulable": True}},
        {"metadata": {"labels": {"node-restriction.kubernetes.io/team": "payments"}}},
        {"metadata": {"labels": {"pool": None}}},
    )
    return default_gate().tries(
        *writes("nodes", here, *changes), *writes("nodes/status", here, *changes[3:])
    )


@attack(
    "own-nodes-pods",
    "changes image, labels or owner of a pod on its node, so that it serves for another service",
    REFUSED,
    "an admission policy lets the account change annotations of pods, and one label of hami",
    also=("e2e",),
)
def test_its_pods_labels_and_images() -> Result:
    here = pod(HERE)
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "u", "apiVersion": "apps/v1"}
    changes = (
        {"spec": {"containers": [{"name": "c", "image": "evil"}]}},
        {"metadata": {"labels": {"app": "payments"}}},
        {"metadata": {"labels": {"app": None}}},
        {"metadata": {"labels": {"service": "payments"}}},
        {"metadata": {"ownerReferences": [owner]}},
        {"metadata": {"finalizers": ["example.com/never"]}},
    )
    return default_gate().tries(*writes("pods", here, *changes), namespace="team")


@attack(
    "grant-taken-away",
    "removes the grants of pods on its node, or moves them to another node's name",
    REFUSED,
    "the account may set a grant that was lost, but never remove one",
)
def test_a_grant_taken_away() -> Result:
    here = merged(pod(HERE), {"metadata": {"annotations": dict.fromkeys(GRANT_KEYS, "x")}})
    changes = [annotated(key, value) for key in GRANT_KEYS for value in (None, "")]
    changes.append(annotated(annotation_keys.ASSIGNED_NODE, ELSEWHERE))
    changes.append(annotated(annotation_keys.RESIZE, "x"))
    return default_gate().tries(*writes("pods", here, *changes), namespace="team")


# Rights that the account does not have.


@attack(
    "secrets",
    "reads Secrets, also hami's own, and asks for tokens of other accounts",
    REFUSED,
    "the account's role has no Secrets and no tokens",
    also=("e2e",),
)
def test_secrets() -> Result:
    requests: list[Request] = [
        (THIEF, verb, "secrets", None, None) for verb in ("get", "list", "watch")
    ]
    requests.append((THIEF, "create", "serviceaccounts/token", None, {}))
    return default_gate().tries(*requests, namespace="hami-system")


@attack(
    "pods-deleted",
    "evicts, deletes, creates or binds pods",
    REFUSED,
    "the account's role has none of these",
    also=("e2e",),
)
def test_eviction() -> Result:
    verbs = (
        ("create", "pods/eviction"),
        ("delete", "pods"),
        ("deletecollection", "pods"),
        ("create", "pods"),
        ("create", "pods/binding"),
        ("create", "pods/exec"),
        ("patch", "pods/status"),
    )
    requests: list[Request] = [
        (THIEF, verb, resource, pod(HERE), pod(HERE)) for verb, resource in verbs
    ]
    evicting = Gate({"devicePlugin.evictRefused": True, "scheduler.overuse.action": "evict"})
    assert evicting.tries(*requests, namespace="team").outcome is REFUSED
    return default_gate().tries(*requests, namespace="team")


@attack(
    "forged-mark",
    "marks pods of other nodes for overuse or a refused start, so that the scheduler evicts them",
    REFUSED,
    "an admission policy keeps the account to pods of the node that its token names",
)
def test_marks_on_pods_of_others() -> Result:
    changes = [annotated(key) for key in (annotation_keys.OVERUSE, annotation_keys.START_REFUSED)]
    assert default_gate().tries(*writes("pods", pod(HERE), *changes), namespace="team").gain == 2
    return default_gate().tries(*writes("pods", pod(ELSEWHERE), *changes), namespace="team")


@attack(
    "lease",
    "takes the scheduler's lease, so that another scheduler leads",
    REFUSED,
    "the account's role has no leases",
)
def test_the_schedulers_lease() -> Result:
    requests: list[Request] = [
        (THIEF, verb, "leases", None, {}) for verb in ("create", "update", "patch")
    ]
    return default_gate().tries(*requests, namespace="hami-system", group="coordination.k8s.io")


@attack(
    "admission-off",
    "switches admission off: webhook, policies, roles",
    REFUSED,
    "the account's role has nothing of admission or RBAC",
)
@pytest.mark.parametrize(
    ("group", "resource"),
    [
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ],
)
def test_admission_switched_off(group: str, resource: str) -> Result:
    requests: list[Request] = [
        (THIEF, verb, resource, None, {}) for verb in ("delete", "patch", "create")
    ]
    return default_gate().tries(*requests, group=group)


@attack(
    "pods-read",
    "reads the pods of all nodes",
    GAP,
    "names and specs of all pods can be read with the token",
    reference="RBAC cannot bind a list to one node; keep secrets out of pod specs",
)
def test_all_pods_read() -> Result:
    requests: list[Request] = [(THIEF, verb, "pods", None, None) for verb in ("list", "watch")]
    return default_gate().tries(*requests)


@attack(
    "false-events",
    "writes Events about pods of others",
    GAP,
    "people may be misled; no part of hami reads Events",
    reference="an Event's object cannot be checked by RBAC or by a policy",
)
def test_events_about_others() -> Result:
    return default_gate().tries((THIEF, "create", "events", None, {}), namespace="other")


# Lies about its own node.


LIES = {
    "another node's cards": node_register.encode_json(builders.cards("a", 2, devmem=2**31 - 1)),
    "a thousand cards": node_register.encode_json(builders.cards("b", 1000)),
    "negative memory": '[{"id":"b-0","count":10,"devmem":-8000,"health":true}]',
    "more than 64 bits": '[{"id":"b-0","count":10,"devmem":99999999999999999999}]',
    "separators in names": '[{"id":"a-0,NVIDIA,1,0:;","count":10,"devmem":8000,"health":true}]',
    "not a list": '{"a-0":{}}',
}


@attack(
    "lying-register",
    "registers cards that its node does not have: a thousand, negative, or another node's",
    NO_GAIN,
    "cards are counted by node and id; a register that cannot be read closes its node alone",
)
@pytest.mark.parametrize("register", LIES.values(), ids=LIES)
async def test_a_register_that_lies(keys: Path, register: str) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        liar = rig.node("b")
        liar["metadata"]["annotations"][REGISTER] = register
        api.put(liar)
        async with rig.running(api, keys=keys) as replica:
            assert await bound(replica, rig.pod("first", memory=3000)) == ""
            moved = rig.pod("there", memory=1000)
            moved["spec"]["nodeName"] = "b"
            moved["metadata"]["annotations"] = {GRANT_KEYS[0]: "a-0,NVIDIA,8000,100:;"}
            api.put(moved)
            await replica.seen()
            taken = sum(replica.used("a")) - 3000
            assert await bound(replica, rig.pod("second", memory=8000)) == ""
            return Result(taken, "MiB of another node's cards, by the scheduler's table")


@attack(
    "register-texts",
    "registers cards whose type and id forge metrics of the scheduler",
    NO_GAIN,
    "labels are escaped, and texts of cards bounded",
)
async def test_texts_of_a_register() -> Result:
    text = 'A100"} 1\nforged_metric{x="'
    async with ScriptedApi() as api:
        forged = rig.node("b")
        cards = node_register.encode_json([builders.card("b" + text.replace(",", ""), type=text)])
        forged["metadata"]["annotations"][REGISTER] = cards
        api.put(forged)
        async with rig.running(api) as replica:
            await replica.seen()
            route = replica.scheduler.metrics_page.route()
            async with servers.serving(route) as server:
                _, _, body = await servers.ask(server.port, "GET", "/metrics")
    found = [family.name for family in parser.text_string_to_metric_families(body.decode())]
    assert any(text[:4] in line for line in body.decode().splitlines())
    return Result(found.count("forged_metric"), "metrics that the node made up")


@attack(
    "forged-grant-on-own-node",
    "writes a larger grant, without a signature, on a pod of its node",
    NO_GAIN,
    "a scheduler keeps the grant that it has signed, and counts an unsigned one on that node only",
)
async def test_a_forged_grant_on_its_node(keys: Path) -> Result:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        api.put(rig.node("b", cards=2))
        async with rig.running(api, keys=keys) as replica:
            assert await bound(replica, rig.pod("p", memory=1000)) == ""
            forged = api.find("pods", "p")
            assert forged is not None
            forged["metadata"]["annotations"][GRANT_KEYS[0]] = "b-0,NVIDIA,8000,100:;"
            api.put(forged)
            await replica.seen()
            changed = sum(replica.used("a")) - 1000 + sum(replica.used("b"))
            return Result(changed, "MiB in the scheduler's table that no scheduler granted")


@attack(
    "stolen-keys",
    "signs a grant for a pod of another node with all keys that a node has",
    REFUSED,
    "grants are signed with a key that only schedulers have; a node has the public key",
)
async def test_a_grant_signed_with_what_a_node_has(tmp_path: Path) -> Result:
    async with ScriptedApi() as api:
        victim = agents.Node(tmp_path, api)
        keys = Keyring(public=(agents.SIGNING.public,))
        async with victim.running(keys=agents.Keys(keys)) as agent:
            granted = devices([[(agents.CARD, agents.WHOLE, 100)]])
            value = Grant(uid="uid-p", node=agents.NODE, devices={GRANT_KEYS[0]: granted})
            mac = SigningKey(keys.public[0].content).sign(value.text())
            asked = {GRANT_KEYS[0]: granted, GRANT_KEYS[1]: mac}
            pod = victim.pod("p", main=[(agents.CARD, 1, 1)], annotations=asked)
            await victim.allocate(agent, pod, "main", "id-0")
            with pytest.raises(RefusalError) as refused:
                await victim.start(agent, "id-0")
            return Result(len(victim.ledger()), "pods, by the ledger", refusal=str(refused.value))


@attack(
    "stolen-key-v1",
    "signs a grant of form v1 with the key of an upgraded cluster, which every node has",
    GAP,
    "an agent starts the pod with it, if someone gets it onto the pod past the admission policy",
    reference="scheduler.grantKey.acceptForms=[v3] ends it; later clusters have no such key",
)
async def test_a_grant_signed_with_a_stolen_key(tmp_path: Path) -> Result:
    async with ScriptedApi() as api:
        victim = agents.Node(tmp_path, api)
        async with victim.running() as agent:
            stolen = signature.GrantKeys(agents.KEYS.current)
            granted = devices([[(agents.CARD, agents.WHOLE, 100)]])
            mac = signature.sign(stolen, uid="uid-p", node=agents.NODE, devices=granted)
            asked = {GRANT_KEYS[0]: granted, GRANT_KEYS[1]: mac}
            pod = victim.pod("p", main=[(agents.CARD, 1, 1)], annotations=asked)
            allocation_id = await victim.run_pod(agent, pod, "main", "id-0")
            (share,) = victim.ledger()["uid-p"]["devices"].split(":")[:1]
            assert allocation_id
            return Result(int(share.split(",")[2]), "MiB that no scheduler granted, by the ledger")
