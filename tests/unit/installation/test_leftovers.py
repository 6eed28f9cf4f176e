"""After an uninstall: what is ours goes, what is others' stays."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hami.installation import cleanup
from hami.kube import listwatch
from tests.scripted_api.server import Lost
from tests.unit.installation.rig import NAMESPACE, Rig

LEASE = "hami-scheduler"
MARK = "hami.io/scheduler-wake-up"
OTHER = "hami.io/node-nvidia-register"


async def remove(rig: Rig, *secrets: str, lease: str = LEASE) -> list[str]:
    return await cleanup.remove(
        rig.job, namespace=NAMESPACE, secrets=secrets, lease=lease, marks=(MARK, OTHER)
    )


def put_lease(rig: Rig) -> None:
    rig.api.put({"kind": "Lease", "metadata": {"name": LEASE, "namespace": NAMESPACE}, "spec": {}})


def put_node(rig: Rig, name: str, **annotations: str) -> None:
    meta: dict[str, Any] = {"name": name, "annotations": annotations}
    rig.api.put({"kind": "Node", "metadata": meta})


async def test_what_hami_left_is_removed_and_reported_line_by_line(rig: Rig) -> None:
    put_lease(rig)
    put_node(rig, "node-1", **{MARK: "1800000000.000", OTHER: "[]", "mine": "yes"})
    put_node(rig, "node-2", mine=MARK)
    rig.put_secret("hami-tls", {"tls.crt": b"x"})
    rig.put_secret("hami-grant-key", {"current": b"x"})
    rig.put_secret("another", {"current": b"x"})
    assert await remove(rig, "hami-tls", "hami-grant-key") == []
    assert [secret["metadata"]["name"] for secret in rig.api.objects("secrets")] == ["another"]
    assert rig.api.objects("leases") == []
    node_1, node_2 = rig.api.objects("nodes")
    assert node_1["metadata"]["annotations"] == {"mine": "yes"}
    assert node_2["metadata"]["annotations"] == {"mine": MARK}
    assert len(rig.api.sent("PATCH")) == 1
    assert rig.printed == [
        "Lease kube-system/hami-scheduler: deleted",
        f"Node node-1: annotation {MARK}, {OTHER} removed",
        "Secret kube-system/hami-tls: deleted",
        "Secret kube-system/hami-grant-key: deleted",
    ]


async def test_where_nothing_is_left_that_is_reported_and_no_failure(rig: Rig) -> None:
    assert await remove(rig, "hami-tls") == []
    assert rig.printed == [
        "Lease kube-system/hami-scheduler: there is none",
        "nodes: none has an annotation of ours",
        "Secret kube-system/hami-tls: there is none",
    ]
    assert rig.slept == []


async def test_a_secret_of_the_user_stays(rig: Rig) -> None:
    rig.put_secret("hami-tls", {"tls.crt": b"x"}, ours=False)
    before = rig.secret("hami-tls")
    assert await remove(rig, "hami-tls") == []
    assert rig.secret("hami-tls") == before
    assert "kept, because it lacks the label app.kubernetes.io/managed-by=hami" in rig.printed[-1]


async def test_a_namesake_that_was_made_meanwhile_stays(rig: Rig) -> None:
    rig.put_secret("hami-tls", {"tls.crt": b"x"})

    def replaced() -> None:
        rig.api.remove("secrets", "hami-tls", NAMESPACE)
        rig.put_secret("hami-tls", {"tls.crt": b"mine"}, ours=False)

    rig.api.fault(method="DELETE", path="/secrets/", on_hit=replaced)
    assert await remove(rig, "hami-tls") == []
    assert rig.entries("hami-tls") == {"tls.crt": b"mine"}


async def test_without_a_name_no_lease_is_touched(rig: Rig) -> None:
    put_lease(rig)
    assert await remove(rig, lease="") == []
    assert len(rig.api.objects("leases")) == 1


async def test_a_lease_that_an_ending_scheduler_writes_again_is_deleted_again(rig: Rig) -> None:
    put_lease(rig)
    written = iter([True, True, False])

    async def sleep(seconds: float) -> None:
        rig.monotonic += seconds
        if next(written):
            put_lease(rig)

    rig.job = dataclasses.replace(rig.job, sleep=sleep)
    assert await remove(rig) == []
    assert rig.api.objects("leases") == []
    assert (
        rig.printed[1:3]
        == ["Lease kube-system/hami-scheduler: a scheduler wrote it again; deleted again"] * 2
    )


async def test_a_scheduler_that_never_ends_is_reported(rig: Rig) -> None:
    put_lease(rig)
    rig.put_secret("hami-tls", {"tls.crt": b"x"})

    async def sleep(seconds: float) -> None:
        rig.monotonic += seconds
        put_lease(rig)

    rig.job = dataclasses.replace(rig.job, sleep=sleep)
    [failure] = await remove(rig, "hami-tls")
    assert failure.startswith("Lease kube-system/hami-scheduler: was written again for 60 s")
    assert rig.api.objects("secrets") == []


async def test_one_refusal_does_not_keep_the_rest(rig: Rig) -> None:
    put_lease(rig)
    put_node(rig, "node-1", **{MARK: "1"})
    rig.put_secret("hami-tls", {"tls.crt": b"x"})
    rig.api.fault(method="DELETE", path="/leases/", status=403, reason="Forbidden", message="no")
    rig.api.fault(path="/nodes", status=403, reason="Forbidden", message="never")
    assert await remove(rig, "hami-tls") == [
        "Lease kube-system/hami-scheduler: 403 Forbidden: no",
        "nodes: 403 Forbidden: never",
    ]
    assert rig.api.objects("secrets") == []


@pytest.mark.parametrize("lost", list(Lost))
@pytest.mark.parametrize("path", ["/leases/", "/secrets/"])
async def test_a_lost_answer_is_asked_for_again(rig: Rig, path: str, lost: Lost) -> None:
    put_lease(rig)
    rig.put_secret("hami-tls", {"tls.crt": b"x"})
    rig.api.fault(method="DELETE", path=path, lost=lost)
    assert await remove(rig, "hami-tls") == []
    assert rig.api.objects("leases") == []
    assert rig.api.objects("secrets") == []


async def test_a_node_that_goes_meanwhile_is_no_failure(rig: Rig) -> None:
    for name in ("node-1", "node-2"):
        put_node(rig, name, **{MARK: "1"})
    rig.api.fault(method="PATCH", on_hit=lambda: rig.api.remove("nodes", "node-1"))
    assert await remove(rig) == []
    [left] = rig.api.objects("nodes")
    assert left["metadata"]["annotations"] == {}


async def test_nodes_beyond_a_page_and_a_list_that_expires_are_all_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 2)
    for number in range(5):
        put_node(rig, f"node-{number}", **{MARK: "1"})
    rig.api.fault(
        when=lambda request: bool(request.query.get("continue")), status=410, reason="Expired"
    )
    assert await remove(rig) == []
    assert all(not node["metadata"]["annotations"] for node in rig.api.objects("nodes"))
    assert len(rig.api.sent("PATCH")) == 5
