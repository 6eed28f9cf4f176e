"""Deletion, eviction, scale, and definitions of kinds."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.apiserver.refusals import Refusal
from sandbox.tests.unit.apiserver.rig import MERGE, Rig

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.account()
    return rig


def eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


async def budget(rig: Rig, app: str, allowed: int) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    await rig.ask("POST", BUDGETS, {"metadata": {"name": app}, "spec": spec})
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1}
    await rig.patch(f"{BUDGETS}/{app}/status", {"status": {**status, "expectedPods": 1}})


async def test_an_eviction_deletes_unless_a_budget_is_used_up(rig: Rig) -> None:
    for name, allowed in (("free", 1), ("full", 0)):
        await rig.pod(name)
        await budget(rig, name, allowed)
    await rig.pod("other")
    for name in ("free", "other"):
        answer = await rig.ask("POST", f"{PODS}/{name}/eviction", eviction(name))
        assert (answer["status"], answer["code"]) == ("Success", 201)
        assert rig.store.find("", "pods", "default", name) is None
    with pytest.raises(Refusal) as refused:
        await rig.ask("POST", f"{PODS}/full/eviction", eviction("full"))
    assert (refused.value.status, refused.value.reason) == (429, "TooManyRequests")
    assert rig.store.find("", "pods", "default", "full") is not None


@pytest.mark.parametrize(
    ("policy", "holder"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]
)
async def test_the_garbage_collector_has_its_say_where_it_is_wanted(
    rig: Rig, policy: str, holder: str
) -> None:
    await rig.pod("p")
    answer = await rig.ask("DELETE", f"{PODS}/p", {"propagationPolicy": policy})
    assert answer["metadata"]["finalizers"] == [holder]
    assert "deletionTimestamp" in answer["metadata"]
    await rig.patch(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert rig.store.find("", "pods", "default", "p") is None


async def test_a_namespace_goes_when_its_contents_have_and_the_three_first_never(rig: Rig) -> None:
    await rig.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
    marked = await rig.ask("DELETE", "/api/v1/namespaces/n")
    assert marked["status"]["phase"] == "Terminating"
    assert rig.store.find("", "namespaces", "", "n") is not None
    marked["spec"] = {"finalizers": []}
    await rig.ask("PUT", "/api/v1/namespaces/n/finalize", marked)
    assert rig.store.find("", "namespaces", "", "n") is None
    with pytest.raises(Refusal, match="this namespace may not be deleted"):
        await rig.ask("DELETE", "/api/v1/namespaces/kube-system")


async def replica_set(rig: Rig) -> None:
    labels = {"app": "a", "tier": "b"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await rig.ask("POST", SETS, {"metadata": {"name": "r"}, "spec": spec})


async def test_a_scale_is_read_patched_and_replaced(rig: Rig) -> None:
    await replica_set(rig)
    scale = await rig.ask("GET", f"{SETS}/r/scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"]["selector"] == "app=a,tier=b"
    patch = {"spec": {"replicas": 3}}
    patched = await rig.ask("PATCH", f"{SETS}/r/scale", patch, content_type=MERGE)
    assert patched["spec"] == {"replicas": 3}
    stored = await rig.ask("GET", f"{SETS}/r")
    assert (stored["spec"]["replicas"], stored["metadata"]["generation"]) == (3, 2)
    with pytest.raises(Refusal) as refused:
        await rig.ask("PUT", f"{SETS}/r/scale", {**scale, "spec": {"replicas": 1}})
    assert refused.value.reason == "Conflict"  # the scale was read before the patch
    await rig.ask("PUT", f"{SETS}/r/scale", {**patched, "spec": {"replicas": 1}})
    assert (await rig.ask("GET", f"{SETS}/r"))["spec"]["replicas"] == 1
    with pytest.raises(Refusal) as refused:
        await rig.ask("PATCH", f"{SETS}/r/scale", {"spec": {"replicas": -1}}, content_type=MERGE)
    assert refused.value.reason == "Invalid"


async def test_a_defined_kind_is_served_until_its_definition_goes(rig: Rig) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "shortNames": ["th"]}
    versions = [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}]
    spec = {"group": "x.example", "scope": "Cluster", "names": names, "versions": versions}
    await rig.ask("POST", definitions, {"metadata": {"name": "things.x.example"}, "spec": spec})
    accepted = await rig.ask("GET", f"{definitions}/things.x.example")
    conditions = {c["type"]: c["status"] for c in accepted["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    things = "/apis/x.example/v1/things"
    made = await rig.ask("POST", things, {"metadata": {"name": "t"}, "any": {"field": [1]}})
    assert (made["kind"], made["any"]) == ("Thing", {"field": [1]})
    status = await rig.patch(f"{things}/t/status", {"status": {"ok": True}, "any": None})
    assert (status["status"], status["any"]) == ({"ok": True}, {"field": [1]})
    groups = await rig.ask("GET", "/apis")
    assert "x.example" in {group["name"] for group in groups["groups"]}
    await rig.ask("DELETE", f"{definitions}/things.x.example")
    with pytest.raises(Refusal) as refused:
        await rig.ask("GET", things)
    assert refused.value.status == 404
