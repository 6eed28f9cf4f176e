"""Forms of grants on a node: what it verifies, announces, and cannot sign."""

from __future__ import annotations

import pathlib

import pytest

from hami.agent import advertise
from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.serving.grant_keys import Keyring
from hami.serving.grant_signature import SigningKey
from hami.wire import annotation_keys, grant, signature
from tests.loop_time import LoopTime
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, GPU, KEYS, NODE, SIGNING, Keys, Node, Object, uid
from tests.unit.kube.following import until
from tests.unit.scheduler import rig as scheduler_rig

DEVICES, MAC = annotation_keys.SIGNED_DEVICES, annotation_keys.GRANT_MAC
FORMS = annotation_keys.NODE_GRANT_FORMS
PART = (CARD, 4000, 30)
RESIZED, REFUSED = "GPUShareResized", "GPUResizeRefused"
#: What an agent has where v1 is not accepted: no key of it signs.
V3 = Keyring(public=(SIGNING.public,))
V1 = Keyring(KEYS)
READS_V1 = ("v1", signature.key_id(KEYS.current))


def sign(key: SigningKey, pod: Object, *, node: str = NODE, **annotations: str) -> dict[str, str]:
    """Sign a pod's grant as the scheduler does."""
    lists = {DEVICES: devices([[PART]])}
    value = grant.Grant(uid=uid(pod), node=node, devices=lists | annotations)
    return {**lists, **annotations, MAC: key.sign(value.text())}


def v3_pod(node: Node, name: str, key: SigningKey = SIGNING, **changes: str) -> Object:
    pod = node.pod(name, main=[PART])
    node.change(pod, sign(key, pod, **changes))
    return pod


async def test_a_grant_of_form_v3_starts_and_is_restored_without_any_key_that_signs(
    node: Node,
) -> None:
    async with node.running(keys=Keys(V3)) as agent:
        pod = v3_pod(node, "p")
        await node.run_pod(agent, pod, "main", "id-0")
        before = node.says(pod)[MAC]
        node.change(pod, {MAC: "v3:forged", DEVICES: devices([[(CARD, 1, 1)]])})
        await node.seen(agent)
        await agent.grant_annotations.restore()
        assert node.says(pod)[MAC] == before
        assert node.says(pod)[DEVICES] == devices([[PART]])


FORGED = {
    "a key of v1": lambda pod: {
        MAC: signature.sign(KEYS, uid=uid(pod), node=NODE, devices=devices([[PART]]))
    },
    "the public key as a signing key": lambda pod: sign(SigningKey(SIGNING.public.content), pod),
    "the public key as a key of v1": lambda pod: {
        MAC: signature.sign(
            signature.GrantKeys(SIGNING.public.content),
            uid=uid(pod),
            node=NODE,
            devices=devices([[PART]]),
        )
    },
    "a grant for another node": lambda pod: sign(SIGNING, pod, node="gpu-2"),
    "a grant of another pod": lambda pod: sign(SIGNING, {"metadata": {"uid": "uid-q"}}),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_what_a_node_can_sign_or_copy_starts_nothing(node: Node, forged: object) -> None:
    assert callable(forged)
    async with node.running(keys=Keys(V3)) as agent:
        pod = node.pod("p", main=[PART])
        node.change(pod, forged(pod))
        await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match="was not made for this pod"):
            await node.start(agent, "id-0")
        good = v3_pod(node, "q")
        await node.run_pod(agent, good, "main", "id-1")


async def test_the_node_says_what_its_agent_verifies_and_follows_its_keys(node: Node) -> None:
    time = LoopTime()
    keys = Keys(V1)
    async with node.running(keys=keys):
        await until(lambda: node.node_says().get(FORMS) == ":".join(READS_V1))
        keys.ring = Keyring(KEYS, public=(SIGNING.public,))
        await time.forward(advertise._KEYS_EVERY_S)
        both = f"v3:{SIGNING.id},{':'.join(READS_V1)}"
        await until(lambda: node.node_says().get(FORMS) == both)
        keys.ring = V3
        await time.forward(advertise._KEYS_EVERY_S)
        await until(lambda: node.node_says().get(FORMS) == f"v3:{SIGNING.id}")


async def test_an_agent_that_verifies_nothing_announces_nothing(node: Node) -> None:
    async with node.running(keys=None):
        await until(lambda: annotation_keys.NODE_LOCK not in node.node_says())
        assert FORMS not in node.node_says()


# Orders to resize.


def order(node: Node, pod: Object, seq: int, part: tuple[str, int, int]) -> dict[str, str]:
    wanted = devices([[part]])
    value = grant.Resize(uid=uid(pod), node=NODE, seq=seq, devices=wanted)
    asked = {
        annotation_keys.RESIZE: grant.encode_order(seq, wanted),
        annotation_keys.RESIZE_MAC: SIGNING.sign(value.text()),
    }
    node.change(pod, asked)
    return asked


async def test_an_older_order_is_never_applied_again(node: Node) -> None:
    async with node.running() as agent:
        pod = v3_pod(node, "p")
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        first = order(node, pod, 1, (CARD, 9000, 50))
        await until(lambda: node.limits(allocation_id) == [(CARD, 9000, 50)])
        second = order(node, pod, 2, (CARD, 2000, 20))
        await until(lambda: node.limits(allocation_id) == [(CARD, 2000, 20)])
        assert node.ledger()[uid(pod)]["resize_seq"] == 2
        node.change(pod, first)
        await until(lambda: node.events(REFUSED))
        assert "order 1 is not newer than order 2" in node.events(REFUSED)[0]
    async with node.running() as agent:  # what was applied is on disk
        node.resize(pod, [(CARD, 8000, 50)])  # of form v1: before every number
        await until(lambda: "order 0 is not newer than order 2" in "".join(node.events(REFUSED)))
        node.change(pod, second)
        await agent.resizer.apply(uid(pod))
        assert node.limits(allocation_id) == [(CARD, 2000, 20)]
        order(node, pod, 3, (CARD, 3000, 20))
        await until(lambda: node.limits(allocation_id) == [(CARD, 3000, 20)])


async def test_the_number_of_an_order_is_signed_and_its_form_is_its_own(node: Node) -> None:
    async with node.running() as agent:
        pod = v3_pod(node, "p")
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        more = devices([[(CARD, 9000, 50)]])
        signed = grant.Resize(uid=uid(pod), node=NODE, seq=1, devices=more)
        granted = grant.Grant(uid=uid(pod), node=NODE, devices={DEVICES: more})
        v1 = {"uid": uid(pod), "node": NODE}
        numbered = grant.encode_order(1, more)
        forged = [
            (grant.encode_order(2, more), SIGNING.sign(signed.text())),
            (more, SIGNING.sign(signed.text())),
            (numbered, SIGNING.sign(granted.text())),
            (numbered, signature.sign(KEYS, **v1, devices=signature.resize(more))),
            (numbered, signature.sign(KEYS, **v1, devices=signature.resize(numbered))),
            ("2;x;" + more, SIGNING.sign(signed.text())),
        ]
        for value, mac in forged:
            asked = {annotation_keys.RESIZE: value, annotation_keys.RESIZE_MAC: mac}
            node.change(pod, asked)
            await node.seen(agent)
            await agent.resizer.apply(uid(pod))
            assert agent.resizer._refused[uid(pod)] == (value, mac)
        assert node.limits(allocation_id) == [PART]
        assert node.ledger()[uid(pod)]["resize_seq"] == 0


# Upgrades: old and new schedulers and agents, in both orders.


class OldKeys(Keys):
    """An agent before v3, which also announces nothing."""

    def __init__(self) -> None:
        super().__init__(V1)


SCHEDULERS = {"old": "v1", "new": "v1,v3", "v3": "v3"}
AGENTS = {"old": OldKeys(), "new": Keys(), "v3": Keys(V3)}
ORDERS = {
    # The scheduler's version, then the agents', step by step.
    "scheduler first": "old,old new,old new,new v3,new v3,v3",
    "agents first": "old,old old,new new,new new,v3 v3,v3",
    "back again": "new,new old,new new,new",
}


async def announced(replica: scheduler_rig.Replica, forms: str) -> None:
    def shown() -> bool:
        found = replica.scheduler.watched.nodes.by_key(NODE)
        return found is not None and bool(found.info.cards) and found.grant_forms == forms

    await until(shown)


async def known(agent: Agent, pod: Object) -> None:
    await until(lambda: agent.pods.find(uid(pod)) is not None)


@pytest.mark.parametrize("steps", ORDERS.values(), ids=ORDERS)
async def test_an_upgrade_in_either_order_starts_every_pod(
    node: Node, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    folder = tmp_path / "scheduler-keys"
    folder.mkdir()
    (folder / "current").write_bytes(KEYS.current)
    (folder / "signing-current").write_bytes(SIGNING.secret)
    found = node.api.find("nodes", NODE)
    assert found is not None
    found["status"]["allocatable"] = {GPU: "20"}
    node.api.put(found)
    started: list[str] = []
    for number, step in enumerate(steps.split()):
        scheduler, agents = step.split(",")
        keys = AGENTS[agents]
        if agents == "old":
            monkeypatch.setattr("hami.agent.grants.Grants.forms", lambda _: "")
        else:
            monkeypatch.undo()
        async with (
            node.running(keys=keys) as agent,
            scheduler_rig.running(
                node.api, keys=folder, seen=False, accept_grant_forms=SCHEDULERS[scheduler]
            ) as replica,
        ):
            forms = grant.encode_forms(keys.ring.ids()) if agents != "old" else ""
            await announced(replica, forms)
            name = f"p{number}"
            assert await replica.place(scheduler_rig.pod(name, memory=1000)) == NODE
            pod = node.api.find("pods", name)
            assert pod is not None
            await known(agent, pod)
            await node.run_pod(agent, pod, "main", f"id-{number}")
            started.append(f"id-{number}")
            for device_id in started:  # in any form: a container may restart
                await node.start(agent, device_id)
