"""The Secret with the certificate: created, kept, renewed without a gap."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from hami.installation import certificates, pem, tls_secret, webhook_trust
from hami.installation.job import InstallationError
from hami.installation.tls_secret import Wanted
from hami.kube import errors as kube_errors
from tests import authority as authorities
from tests.scripted_api.server import Lost
from tests.unit.installation import rig as rigs
from tests.unit.installation.rig import NAMESPACE, WEBHOOK, Rig
from tests.unit.kube.following import PATIENCE_S

NAME = "hami-scheduler-tls"
HOST = "hami-webhook.kube-system.svc"
HOSTS = (HOST, "127.0.0.1")
DAY = dt.timedelta(days=1)
WANTED = Wanted(NAMESPACE, NAME, HOSTS, 120 * DAY, webhook=WEBHOOK)


async def made_days_ago(rig: Rig, days: float, wanted: Wanted = WANTED) -> dict[str, bytes]:
    """Have the Secret made at an earlier time; returns its entries."""
    rig.now -= days * DAY
    await tls_secret.ensure(rig.job, wanted)
    rig.now += days * DAY
    return rig.entries(NAME)


def trusts(bundle: bytes, entries: dict[str, bytes], host: str = HOST) -> bool:
    return rigs.refusal(entries, bundle, host) == ""


async def test_a_missing_one_is_made_and_clients_accept_it(rig: Rig) -> None:
    await tls_secret.ensure(rig.job, WANTED)
    made = rig.secret(NAME)
    assert made["type"] == "kubernetes.io/tls"
    assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "hami"}
    assert sorted(made["data"]) == ["ca.crt", "tls.crt", "tls.key"]
    entries = rig.entries(NAME)
    assert all(trusts(entries["ca.crt"], entries, host) for host in HOSTS)
    until = f"{rig.now + 120 * DAY:%Y-%m-%d}"
    assert rig.printed == [
        f"Secret kube-system/{NAME}: created, for {HOST}, 127.0.0.1 until {until}",
    ]


@pytest.mark.parametrize("days", [0, 79])
async def test_a_good_one_is_left_byte_for_byte(rig: Rig, days: int) -> None:
    await made_days_ago(rig, days)
    before = rig.secret(NAME)
    await tls_secret.ensure(rig.job, WANTED)
    assert rig.secret(NAME) == before
    assert rig.api.sent("PUT") == []
    assert "kept, it is valid until" in rig.printed[-1]


async def test_fewer_hosts_are_no_reason_to_renew_and_others_are(rig: Rig) -> None:
    before = await made_days_ago(rig, 0)
    await tls_secret.ensure(rig.job, WANTED._replace(hosts=[HOST]))
    assert rig.entries(NAME) == before
    await tls_secret.ensure(rig.job, WANTED._replace(hosts=["other.svc"]))
    assert trusts(rig.entries(NAME)["ca.crt"], rig.entries(NAME), "other.svc")
    assert rig.printed[-1].endswith(
        "renewed, because it has a certificate that does not cover other.svc"
    )


async def test_in_its_last_third_it_is_renewed(rig: Rig) -> None:
    before = await made_days_ago(rig, 81)
    await tls_secret.ensure(rig.job, WANTED)
    after = rig.entries(NAME)
    assert after["tls.crt"] != before["tls.crt"]
    assert after["tls.key"] != before["tls.key"]
    assert f"because it expires on {rig.now + 39 * DAY:%Y-%m-%d} already" in rig.printed[-1]


async def test_while_the_files_travel_every_trust_meets_every_certificate(rig: Rig) -> None:
    old = await made_days_ago(rig, 81)
    rig.put_webhook(old["ca.crt"])
    seen: list[bytes] = []
    rig.api.fault(
        method="PUT", path="/secrets/", on_hit=lambda: seen.extend(rig.bundles()), times=None
    )
    await tls_secret.ensure(rig.job, WANTED)
    new = rig.entries(NAME)
    [at_the_change] = seen
    # The API server, from before the Secret changed.
    assert trusts(at_the_change, old)
    assert trusts(at_the_change, new)
    # For readers of the new file, such as the job that patches.
    assert trusts(new["ca.crt"], old)
    assert trusts(new["ca.crt"], new)
    # Without any of this, the new certificate would be refused.
    assert not trusts(old["ca.crt"], new)
    assert tls_secret.SETTLE_S in rig.slept
    await webhook_trust.set_from_secret(rig.job, namespace=NAMESPACE, secret=NAME, webhook=WEBHOOK)
    assert rig.bundles() == [new["ca.crt"]]


async def test_a_deleted_one_is_created_again_and_old_trust_ends_with_the_patch(rig: Rig) -> None:
    old = await made_days_ago(rig, 0)
    rig.put_webhook(old["ca.crt"])
    rig.api.remove("secrets", NAME, NAMESPACE)
    await tls_secret.ensure(rig.job, WANTED)
    new = rig.entries(NAME)
    assert trusts(rig.bundles()[0], old)
    assert trusts(rig.bundles()[0], new)
    assert not trusts(new["ca.crt"], old)


async def test_earlier_authorities_end_and_do_not_pile_up(rig: Rig) -> None:
    await made_days_ago(rig, 130)
    for number in range(tls_secret.KEPT + 2):
        await tls_secret.ensure(rig.job, WANTED._replace(hosts=[f"host{number}.svc"]))
    blocks = pem.blocks(rig.entries(NAME)["ca.crt"])
    assert len(blocks) == 1 + tls_secret.KEPT
    assert trusts(blocks[0], rig.entries(NAME), f"host{tls_secret.KEPT + 1}.svc")


async def test_an_ended_one_is_renewed_and_its_authority_is_dropped(rig: Rig) -> None:
    await made_days_ago(rig, 130)
    await tls_secret.ensure(rig.job, WANTED)
    assert len(pem.blocks(rig.entries(NAME)["ca.crt"])) == 1
    assert "because it has expired on 20" in rig.printed[-1]


GOOD = certificates.issue(HOSTS, lifetime=120 * DAY, now=dt.datetime.now(dt.UTC))
GOOD_ENTRIES = {"tls.crt": GOOD.certificate, "tls.key": GOOD.key, "ca.crt": GOOD.authorities}
KEY_OF_ANOTHER = authorities.new_key().encode()


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"tls.crt": b"garbage", "tls.key": b"garbage", "ca.crt": b"garbage"},
        {**GOOD_ENTRIES, "tls.key": KEY_OF_ANOTHER},
        {**GOOD_ENTRIES, "ca.crt": b""},
        # As HAMi's job names it.
        {"tls.crt": GOOD.certificate, "tls.key": GOOD.key, "ca": GOOD.authorities},
    ],
)
async def test_one_that_cannot_serve_is_replaced_in_place(
    rig: Rig, entries: dict[str, bytes], ours: bool
) -> None:
    rig.put_secret(NAME, entries, ours=ours)
    uid = rig.secret(NAME)["metadata"]["uid"]
    await tls_secret.ensure(rig.job, WANTED)
    after = rig.entries(NAME)
    assert trusts(after["ca.crt"], after)
    assert rig.secret(NAME)["metadata"]["uid"] == uid
    assert rig.secret(NAME)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "hami"
    assert "renewed, because it has " in rig.printed[-1]


async def test_what_is_not_base64_counts_as_unreadable(rig: Rig) -> None:
    rig.put_secret(NAME, GOOD_ENTRIES)
    spoiled = rig.secret(NAME)
    spoiled["data"]["tls.key"] = "§§"
    rig.api.put(spoiled)
    await tls_secret.ensure(rig.job, WANTED)
    assert rig.printed[-1].endswith("renewed, because it has no tls.key")


async def test_what_others_wrote_beside_it_stays(rig: Rig) -> None:
    meta = {
        "name": NAME,
        "namespace": NAMESPACE,
        "annotations": {"team": "a"},
        "labels": {"b": "c"},
    }
    rig.put_secret(NAME, {"tls.crt": b"x", "notes": b"mine"}, metadata=meta)
    await tls_secret.ensure(rig.job, WANTED)
    after = rig.secret(NAME)["metadata"]
    assert after["annotations"] == {"team": "a"}
    assert after["labels"] == {"b": "c", "app.kubernetes.io/managed-by": "hami"}
    assert rig.entries(NAME)["notes"] == b"mine"


async def test_anothers_certificate_is_left_while_it_works_even_when_old(rig: Rig) -> None:
    old = certificates.issue(HOSTS, lifetime=120 * DAY, now=rig.now - 100 * DAY)
    entries = {"tls.crt": old.certificate, "tls.key": old.key, "ca.crt": old.authorities}
    rig.put_secret(NAME, entries, ours=False)
    await tls_secret.ensure(rig.job, WANTED)
    assert rig.entries(NAME) == entries
    assert rig.printed[-1].endswith("was not created by hami, so its owner must renew it by then")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (
            {"type": "kubernetes.io/dockerconfigjson"},
            "is of type kubernetes.io/dockerconfigjson instead of kubernetes.io/tls",
        ),
        ({"immutable": True}, "but is immutable"),
    ],
)
async def test_one_that_cannot_be_changed_is_reported_with_a_remedy(
    rig: Rig, fields: dict[str, Any], rule: str
) -> None:
    rig.put_secret(NAME, {"tls.crt": b"x"}, **fields)
    before = rig.secret(NAME)
    with pytest.raises(InstallationError) as raised:
        await tls_secret.ensure(rig.job, WANTED)
    assert str(raised.value).startswith(f"Secret kube-system/{NAME}: has a tls.crt that cannot")
    assert rule in str(raised.value)
    assert f"kubectl -n kube-system delete secret {NAME}" in str(raised.value)
    assert rig.secret(NAME) == before


async def test_a_good_one_of_any_type_is_left(rig: Rig) -> None:
    rig.put_secret(NAME, GOOD_ENTRIES, type="example.com/pair", immutable=True)
    before = rig.secret(NAME)
    await tls_secret.ensure(rig.job, WANTED)
    assert rig.secret(NAME) == before


async def test_of_two_jobs_at_once_one_makes_it_and_the_other_is_content(rig: Rig) -> None:
    held = asyncio.Event()
    gate = rig.api.fault(method="POST", path="/secrets", gate=held, times=2)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as both:
        for _ in range(2):
            both.create_task(tls_secret.ensure(rig.job, WANTED))
        while gate.hits < 2:
            await asyncio.sleep(0)
        held.set()
    assert len(rig.api.sent("POST", "/secrets")) == 2
    assert sum(": created, " in line for line in rig.printed) == 1
    assert sum(": kept, " in line for line in rig.printed) == 1
    entries = rig.entries(NAME)
    assert trusts(entries["ca.crt"], entries)


async def test_a_conflict_is_solved_by_looking_again(rig: Rig) -> None:
    await made_days_ago(rig, 81)

    def another_job_is_faster() -> None:
        rig.put_secret(NAME, GOOD_ENTRIES, type="kubernetes.io/tls")

    rig.api.fault(method="PUT", path="/secrets/", on_hit=another_job_is_faster)
    await tls_secret.ensure(rig.job, WANTED)
    assert rig.entries(NAME) == GOOD_ENTRIES
    assert "kept, it is valid" in rig.printed[-1]


@pytest.mark.parametrize("lost", list(Lost))
async def test_a_lost_answer_leaves_one_good_secret(rig: Rig, lost: Lost) -> None:
    rig.api.fault(method="POST", path="/secrets", lost=lost)
    rig.put_webhook(None)
    await tls_secret.ensure(rig.job, WANTED)
    entries = rig.entries(NAME)
    assert trusts(entries["ca.crt"], entries)
    assert trusts(rig.bundles()[0], entries)


async def test_if_the_webhook_cannot_be_changed_first_the_secret_does_not_change(rig: Rig) -> None:
    before = await made_days_ago(rig, 81)
    rig.put_webhook(before["ca.crt"])
    rig.api.fault(
        method="PUT", path="/mutatingwebhookconfigurations/", status=403, reason="Forbidden"
    )
    with pytest.raises(kube_errors.Forbidden):
        await tls_secret.ensure(rig.job, WANTED)
    assert rig.entries(NAME) == before


async def test_without_a_webhook_none_is_asked_for(rig: Rig) -> None:
    await tls_secret.ensure(rig.job, WANTED._replace(webhook=""))
    assert all("webhook" not in request.path for request in rig.api.requests)
    assert rig.slept == []
