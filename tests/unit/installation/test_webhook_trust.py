"""Authorities that the API server trusts: set from a Secret, and extended."""

from __future__ import annotations

import copy
import datetime as dt

import pytest

from hami.installation import certificates, pem, webhook_trust
from hami.installation.job import InstallationError, NotThereYet
from tests.unit.installation.rig import NAMESPACE, WEBHOOK, Rig

NAME = "hami-scheduler-tls"
ONE, TWO = (
    certificates.issue(
        ["a.svc"], lifetime=dt.timedelta(days=9), now=dt.datetime.now(dt.UTC)
    ).authorities
    for _ in range(2)
)


async def patched(rig: Rig) -> None:
    await webhook_trust.set_from_secret(rig.job, namespace=NAMESPACE, secret=NAME, webhook=WEBHOOK)


async def test_every_webhook_trusts_what_the_secret_says_and_nothing_else_changes(
    rig: Rig,
) -> None:
    rig.put_secret(NAME, {"ca.crt": ONE + TWO})
    rig.put_webhook(None, TWO)
    wanted = copy.deepcopy(rig.webhook()["webhooks"])
    await patched(rig)
    assert rig.bundles() == [ONE + TWO] * 2
    after = rig.webhook()["webhooks"]
    for hook in (*wanted, *after):
        hook["clientConfig"].pop("caBundle", None)
    assert after == wanted
    [printed] = rig.printed
    assert printed.endswith(f"{WEBHOOK}: trusts new authorities, for 0.hami.io, 1.hami.io")


async def test_a_second_time_nothing_is_written(rig: Rig) -> None:
    rig.put_secret(NAME, {"ca.crt": ONE})
    rig.put_webhook(ONE)
    await patched(rig)
    assert rig.api.sent("PUT") == []
    assert rig.printed[-1].endswith("trusts the right authorities already")


async def test_a_change_by_another_is_not_overwritten(rig: Rig) -> None:
    rig.put_secret(NAME, {"ca.crt": ONE})
    rig.put_webhook(None)

    def another_job_is_faster() -> None:
        changed = rig.webhook()
        changed["webhooks"][0]["failurePolicy"] = "Ignore"
        rig.api.put(changed)

    rig.api.fault(method="PUT", on_hit=another_job_is_faster)
    await patched(rig)
    assert rig.bundles() == [ONE]
    assert rig.webhook()["webhooks"][0]["failurePolicy"] == "Ignore"


async def test_a_configuration_that_comes_a_little_later_is_awaited(rig: Rig) -> None:
    rig.put_secret(NAME, {"ca.crt": ONE})
    asked = "/mutatingwebhookconfigurations/"
    late = rig.api.fault(path=asked, status=404, reason="NotFound", times=3)
    rig.put_webhook(None)
    await patched(rig)
    assert late.hits == 3
    assert rig.bundles() == [ONE]


async def test_what_never_comes_is_named(rig: Rig) -> None:
    with pytest.raises(
        NotThereYet, match=f"Secret kube-system/{NAME}: does not exist; run `hami certs create`"
    ):
        await patched(rig)
    rig.put_secret(NAME, {"ca.crt": ONE})
    with pytest.raises(
        NotThereYet, match=f"{WEBHOOK}: does not exist; install the chart with the webhook enabled"
    ):
        await patched(rig)
    assert sum(rig.slept) <= 2 * webhook_trust.WAIT_S


@pytest.mark.parametrize(
    "bundle",
    [b"", b"garbage", b"\xff", ONE[:99] + b"\xff" + ONE[99:], b"-----BEGIN CERTIFICATE-----\nx\n"],
)
async def test_a_secret_without_a_usable_authority_is_refused_at_once(
    rig: Rig, bundle: bytes
) -> None:
    rig.put_secret(NAME, {"ca.crt": bundle})
    rig.put_webhook(ONE)
    with pytest.raises(InstallationError, match=r"has no entry ca\.crt with certificates in PEM"):
        await patched(rig)
    assert rig.bundles() == [ONE]
    assert rig.slept == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TWO),
        (ONE, ONE + TWO),
        (ONE + TWO, ONE + TWO),
        (TWO + ONE, TWO + ONE),
        (b"garbage", TWO),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", TWO),
    ],
)
async def test_adding_keeps_what_is_trusted(rig: Rig, before: bytes | None, after: bytes) -> None:
    rig.put_webhook(before)
    assert await webhook_trust.add(rig.job, WEBHOOK, TWO)
    assert rig.bundles() == [after]


async def test_adding_to_what_does_not_exist_is_no_error(rig: Rig) -> None:
    assert not await webhook_trust.add(rig.job, WEBHOOK, TWO)
    assert rig.slept == []


def test_certificates_are_joined_once_each_without_the_words_between() -> None:
    assert pem.joined(b"subject=x\n" + ONE.strip(), TWO, ONE) == ONE + TWO
