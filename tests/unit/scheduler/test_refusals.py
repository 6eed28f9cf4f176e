"""Kept refusals: what equal pods are answered, and when a pod is decided again."""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st

from hami.cluster import state
from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.placement.request import PodRequest
from hami.scheduler import refusals
from hami.scheduler.refusals import Refusal, Refusals
from hami.wire import annotation_keys, errors, explanation_note
from tests import builders as b
from tests.oracle import scenarios
from tests.oracle.scenario_flavours import FLAVOURS
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


def alike(pod: PodRequest, number: int, *, renamed: bool) -> PodRequest:
    """Return another pod of the same job; its containers may have other names."""
    containers = pod.containers
    if renamed:
        containers = tuple(
            msgspec.structs.replace(container, name=f"{number}-{index}")
            for index, container in enumerate(containers)
        )
    return msgspec.structs.replace(pod, uid=f"u{number}", name=f"p{number}", containers=containers)


def fresh(cluster: Cluster, pod: PodRequest, names: list[str]) -> Refusal | None:
    decision = decide.decide(cluster, pod, names)
    if decision.winner is not None:
        return None
    return refusals.refusal_of(decision.explanation, len(names))


def change(cluster: Cluster, scenario: scenarios.Scenario, draw: random.Random) -> None:
    """Make one change of any kind, or one that changes nothing."""
    operations: list[state.Operation] = [state.PutNode(node) for node in cluster.nodes.values()]
    operations += [state.DropNode(name) for name in cluster.nodes]
    operations += [state.DropPod(uid) for uid in cluster.pods]
    operations += [state.PutPod(info) for info in cluster.pods.values()]
    operations += [state.PutQuota(limits) for limits in cluster.quotas.all_limits().values()]
    operations += [state.DropQuota(*key) for key in cluster.quotas.all_limits()]
    operations += [state.PutNode(cluster.read_node(node)) for node in scenario.nodes]
    if operations:
        cluster.apply(draw.choice(operations))


@hypothesis.seed(18)
@hypothesis.settings(
    max_examples=300,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
)
@hypothesis.given(
    scenario=st.sampled_from(sorted(FLAVOURS)).flatmap(scenarios.scenarios),
    seed=st.integers(0, 2**32),
)
def test_a_kept_refusal_is_byte_by_byte_a_fresh_one(
    scenario: scenarios.Scenario, seed: int
) -> None:
    cluster = Cluster(b.VENDORS)
    for node in scenario.nodes:
        cluster.observe_node(node)
    for placed in scenario.pods:
        cluster.observe_pod(placed)
    for quota in scenario.quotas:
        cluster.observe_quota(quota)
    try:
        asking = request.parse(scenario.pod, b.VENDORS, request.Defaults())
    except errors.WireError:
        asking = None
    hypothesis.assume(asking is not None)
    assert asking is not None
    kept, draw = Refusals(cluster), random.Random(seed)
    names = list(scenario.names)
    for number in range(8):
        pod = alike(asking, number, renamed=draw.random() < 0.5)
        if draw.random() < 0.2 and cluster.pods:
            holding = draw.choice(sorted(cluster.pods))
            pod = msgspec.structs.replace(pod, uid=holding)
        if draw.random() < 0.5:
            draw.shuffle(names)
        if draw.random() < 0.2:
            names = draw.choices(names, k=len(names))  # some twice
        got = kept.decide(pod, cluster.ask(names), len(names))
        want = fresh(cluster, pod, names)
        assert (got if isinstance(got, Refusal) else None) == want
        if draw.random() < 0.4:
            change(cluster, scenario, draw)


def test_equal_pods_are_decided_once() -> None:
    cluster = b.cluster(b.node("n", [b.card("GPU-a")]))
    kept = Refusals(cluster)
    pod = request.parse(b.pod("p", b.container(gpu=1, memory=9000)), b.VENDORS, request.Defaults())
    assert pod is not None
    asked = cluster.ask(["n"])
    answers = {kept.decide(alike(pod, n, renamed=True), asked, 1).answer for n in range(10)}  # type: ignore[union-attr]  # refused
    assert len(answers) == 1
    assert kept.repeated == 9


def test_each_change_of_the_cluster_ends_a_kept_refusal() -> None:
    cluster = b.cluster(
        b.node("n", [b.card("GPU-a")]), b.granted("other", "n", [("GPU-a", 8000, 0)])
    )
    kept = Refusals(cluster)
    pod = request.parse(b.pod("p", b.container(gpu=1, memory=9)), b.VENDORS, request.Defaults())
    assert pod is not None
    assert isinstance(kept.decide(pod, cluster.ask(["n"]), 1), Refusal)
    (uid,) = cluster.pods
    cluster.forget_pod(uid)
    decision = kept.decide(pod, cluster.ask(["n"]), 1)
    assert not isinstance(decision, Refusal)
    assert decision.winner is not None


def test_pods_of_one_job_share_a_shape_though_their_containers_have_other_names() -> None:
    pod = request.parse(b.pod("p", b.container(gpu=1, memory=9)), b.VENDORS, request.Defaults())
    assert pod is not None
    assert request.shape_of(pod) == request.shape_of(alike(pod, 1, renamed=True))
    other = request.parse(b.pod("p", b.container(gpu=1, memory=8)), b.VENDORS, request.Defaults())
    assert other is not None
    assert request.shape_of(pod) != request.shape_of(other)


def named(name: str, container: str) -> rig.Object:
    pod: dict[str, Any] = rig.pod(name, memory=9000)
    pod["spec"]["containers"][0]["name"] = container
    return pod


async def test_the_note_of_a_pod_refused_like_another_names_its_own_container(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            for name in ("one", "two"):
                answer = await replica.filter(api.put(named(name, f"main-of-{name}")))
                assert answer["NodeNames"] is None, answer
            assert replica.scheduler.placer.refusals.repeated == 1
            times.pass_by(2)
            await replica.scheduler.explanation_notes.write_due()
            for name in ("one", "two"):
                pod = api.find("pods", name)
                assert pod is not None
                text = pod["metadata"]["annotations"][annotation_keys.EXPLANATION]
                note = explanation_note.decode(text)
                assert [miss.container for miss in note.near] == [f"main-of-{name}"]
