"""Pods of this node: the fields that are kept."""

from __future__ import annotations

import asyncio

from hami.kube.client import Client
from hami.monitor import pods as node_pods
from hami.monitor.containers import Key
from hami.monitor.pods import Pods
from tests import processes
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes


def test_containers_are_named_init_ones_first() -> None:
    pod = nodes.pod(
        "a", init=["setup"], containers=["main", "side"], ids={"setup": "x", "side": "y"}
    )
    seen = node_pods.seen(nodes.decoded(pod))
    assert seen.containers == ("setup", "main", "side")
    assert seen.ids.items() >= {("x", "setup"), ("y", "side")}


def test_fields_that_are_missing_or_null_are_nothing() -> None:
    statuses: list[dict[str, object]] = [
        {},
        {"containerStatuses": None},
        {"containerStatuses": [None, {}]},
    ]
    for status in statuses:
        pod = nodes.pod("a") | {"status": status}
        seen = node_pods.seen(nodes.decoded(pod))
        assert (seen.ids, seen.finished) == ({}, False)
        assert "main" not in seen.ended


def test_an_ended_init_container_is_over_and_the_others_are_not() -> None:
    pods = nodes.pods(nodes.pod("a", init=["setup"], ended=["setup"]))
    uid = nodes.uid_of("a")
    assert pods.over(Key(uid, "setup"), age=1000)
    assert not pods.over(Key(uid, "main"), age=1000)


def test_a_static_pod_is_found_by_kubelets_uid_too() -> None:
    own = "ab" * 16
    pods = nodes.pods(nodes.pod("a", annotations={"kubernetes.io/config.hash": own}))
    found = pods.get(own)
    assert found is not None
    assert found == pods.get(nodes.uid_of("a"))
    pods.drop(nodes.uid_of("a"))
    assert pods.get(own) is None


async def test_only_pods_of_this_node_are_watched() -> None:
    async with ScriptedApi() as api:
        api.put(nodes.pod("here", node="n1"))
        api.put(nodes.pod("there", node="n2"))
        pods = Pods()
        async with Client(api.access(), user_agent="test") as client:
            watch = node_pods.reflector(client, pods, node="n1", resync=900)
            running = asyncio.create_task(watch.run())
            await processes.eventually(lambda: pods.synced)
            assert {pod.name for pod in pods} == {"here"}
            api.put(nodes.pod("late", node="n1"))
            await processes.eventually(lambda: pods.get(nodes.uid_of("late")) is not None)
            api.remove("pods", "here", "team")
            await processes.eventually(lambda: pods.get(nodes.uid_of("here")) is None)
            running.cancel()
            await asyncio.wait([running])
