"""Forms of grants: signed as a node reads them, verified at a start."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from hami.serving.grant_signature import SigningKey
from hami.wire import annotation_keys, grant, signature
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.test_grants import (
    ALLOCATED,
    MAC,
    OTHER,
    annotate,
    foreign,
    messages,
    reported,
)

KEY, NEW = SigningKey(b"s" * 32), SigningKey(b"n" * 32)
V1 = signature.GrantKeys(b"k" * 32)
READS_V1 = f"v1:{signature.key_id(V1.current)}"
FORMS = annotation_keys.NODE_GRANT_FORMS


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make the folder of a scheduler in a cluster that began with v1."""
    (tmp_path / "current").write_bytes(V1.current)
    (tmp_path / "signing-current").write_bytes(KEY.secret)
    return tmp_path


def form(api: ScriptedApi, name: str) -> str:
    pod = api.find("pods", name)
    assert pod is not None
    return ":".join(pod["metadata"]["annotations"][MAC].split(":")[:2])


def announce(api: ScriptedApi, value: str | None) -> None:
    node = api.find("nodes", "a")
    assert node is not None
    node["metadata"]["annotations"].pop(FORMS, None)
    if value is not None:
        node["metadata"]["annotations"][FORMS] = value
    api.put(node)


async def test_each_pod_gets_the_newest_form_that_its_node_reads_at_that_time(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            for name, reads, expected in (
                ("old-agent", None, READS_V1),
                ("upgraded", f"v3:{KEY.id},{READS_V1}", f"v3:{KEY.id}"),
                ("v1-retired", f"v3:{KEY.id}", f"v3:{KEY.id}"),
                ("downgraded", None, READS_V1),
            ):
                announce(api, reads)
                await replica.seen()
                await replica.place(rig.pod(name))
                assert form(api, name) == expected
        # The next leader reads all of them.
        async with rig.running(api, keys=keys, hostname="sched-2") as replica:
            assert (sum(replica.used("a")), await reported(replica)) == (4000, 0)


async def test_a_node_is_signed_for_with_the_old_key_until_it_has_the_new_one(
    keys: pathlib.Path,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        announce(api, f"v3:{KEY.id}")
        async with rig.running(api, keys=keys) as replica:
            (keys / "signing-previous").write_bytes(KEY.secret)
            (keys / "signing-current").write_bytes(NEW.secret)
            await replica.place(rig.pod("before"))
            announce(api, f"v3:{KEY.id},v3:{NEW.id}")
            await replica.seen()
            await replica.place(rig.pod("after"))
            assert form(api, "before") == f"v3:{KEY.id}"
            assert form(api, "after") == f"v3:{NEW.id}"
            assert await reported(replica) == 0


@pytest.mark.parametrize("value", ["", "nonsense", "v9:00000000", ",,:", "v3"])
async def test_a_node_that_says_nonsense_still_gets_pods(keys: pathlib.Path, value: str) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        announce(api, value)
        async with rig.running(api, keys=keys) as replica:
            assert await replica.place(rig.pod("p")) == "a"
            assert await reported(replica) == 0


CHANGES = {
    "less memory": {ALLOCATED: f"{OTHER},NVIDIA,1,0:;"},
    "another form": {MAC: f"v1:{KEY.id}:" + "A" * 43},
    "MIG placements": {
        annotation_keys.MIG_ALLOCATIONS: '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-1",'
        '"profile":"1g.10gb","placement":{"start":0,"size":1}}]'
    },
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
async def test_a_changed_grant_of_form_v3_is_reported(
    keys: pathlib.Path, changes: dict[str, str | None]
) -> None:
    (keys / "current").unlink()
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api, keys=keys) as replica:
            await replica.place(rig.pod("p", memory=3000))
            assert (replica.used("a"), await reported(replica)) == ([0, 3000], 0)
            assert form(api, "p") == f"v3:{KEY.id}"  # a fresh cluster has no key of v1
        annotate(api, "p", **changes)
        async with rig.running(api, keys=keys) as replica:
            assert (sum(replica.used("a")), await reported(replica)) == (3000, 1)


@pytest.mark.parametrize(("accepted", "counts"), [("v1,v3", 0), ("v3", 1)])
async def test_what_a_node_signed_with_a_key_of_v1_is_refused_once_v1_is_off(
    keys: pathlib.Path, accepted: str, counts: int
) -> None:
    """The Secret may still exist: the flag decides."""
    devices = f"{OTHER},NVIDIA,1000,0:;"
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        pod = api.put(foreign("forged", devices))
        mac = signature.sign(V1, uid=pod["metadata"]["uid"], node="a", devices=devices)
        pod["metadata"]["annotations"][MAC] = mac
        api.put(pod)
        async with rig.running(api, keys=keys, accept_grant_forms=accepted) as replica:
            assert await reported(replica) == counts
            await replica.place(rig.pod("next"))
            expected = READS_V1 if accepted == "v1,v3" else f"v3:{KEY.id}"
            assert form(api, "next") == expected


def _signed(pod: rig.Object, key: SigningKey, uid: str = "", node: str = "a") -> str:
    value = grant.Grant(
        uid=uid or pod["metadata"]["uid"],
        node=node,
        devices={ALLOCATED: pod["metadata"]["annotations"][ALLOCATED]},
    )
    return key.sign(value.text())


def _signed_v1(pod: rig.Object, key: bytes) -> str:
    devices = pod["metadata"]["annotations"][ALLOCATED]
    keys = signature.GrantKeys(key)
    return signature.sign(keys, uid=pod["metadata"]["uid"], node="a", devices=devices)


#: What a node has: the public key, and the grants of its own pods.
OF_A_NODE = {
    "the public key as a signing key": lambda pod: _signed(pod, SigningKey(KEY.public.content)),
    "the public key under the id of the true key": lambda pod: _signed(
        pod, SigningKey(KEY.public.content)
    ).replace(SigningKey(KEY.public.content).id, KEY.id),
    "the public key as a key of v1": lambda pod: _signed_v1(pod, KEY.public.content),
    "the grant of a pod of the node": lambda pod: _signed(pod, KEY, uid="uid-of-another"),
    "a grant for the node itself": lambda pod: _signed(pod, KEY, node="b"),
}


@pytest.mark.parametrize("forged", OF_A_NODE.values(), ids=OF_A_NODE)
async def test_a_scheduler_refuses_what_a_node_can_sign_or_copy(
    keys: pathlib.Path, forged: Callable[[rig.Object], str]
) -> None:
    (keys / "current").unlink()
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        for name, sign in (("forged", forged), ("true", lambda pod: _signed(pod, KEY))):
            pod = api.put(foreign(name, f"{OTHER},NVIDIA,1000,0:;"))
            pod["metadata"]["annotations"][MAC] = sign(pod)
            api.put(pod)
        async with rig.running(api, keys=keys) as replica:
            assert await reported(replica) == 1
            await rig.eventually(lambda: bool(messages(api)))
            (message,) = messages(api)
            assert "is not what hami.io/grant-mac was made for" in message
