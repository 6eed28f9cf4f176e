"""The Secret with the webhook's certificate: created, checked, renewed in time.

A renewal must not make a single call fail, although servers get the new files up to two minutes
after the Secret has changed. So the authority goes first: the API server trusts it beside the old
one, then the Secret changes, and its ca.crt holds the new authority and those before it.

If a key has leaked, delete the Secret and run both jobs again: then nothing old is trusted. A valid
certificate that others made is kept, and replaced only once it no longer works.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from hami.installation import certificates, pem, secret_objects, webhook_trust
from hami.installation.certificates import Judgement, Pair
from hami.installation.job import InstallationError, Job
from hami.installation.secret_objects import Secret

TYPE = "kubernetes.io/tls"
CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"

#: Earlier authorities that stay trusted; frequent changes of hosts must not fill the Secret.
KEPT = 3
#: Seconds in which every API server learns of the new authority.
SETTLE_S = 3.0


class Wanted(NamedTuple):
    """The Secret and the certificate that it must hold."""

    namespace: str
    name: str
    hosts: Sequence[str]
    lifetime: dt.timedelta
    #: The MutatingWebhookConfiguration that must trust it; empty: none.
    webhook: str = ""

    def __str__(self) -> str:
        return f"Secret {self.namespace}/{self.name}"


async def ensure(job: Job, wanted: Wanted) -> None:
    """Create or renew the Secret, so that its certificate covers the hosts and lasts a while."""
    await job.persist(lambda: _step(job, wanted))


async def _step(job: Job, wanted: Wanted) -> None:
    found = await secret_objects.read(job.client, wanted.namespace, wanted.name)
    if found is None:
        await _write(job, wanted, None)
        return
    judged = certificates.judge(_pair(found), wanted.hosts, now=job.now())
    if why := _why_renew(found, judged):
        _check_changeable(found, wanted, why)
        await _write(job, wanted, found)
        job.say(f"{wanted}: renewed, because it {why}")
        return
    job.say(f"{wanted}: kept, it is valid until {judged.ends:%Y-%m-%d}")
    if judged.old:
        job.say(f"{wanted}: was not created by hami, so its owner must renew it by then")


def _why_renew(secret: Secret, judged: Judgement) -> str:
    if judged.fault or not judged.old or not secret.ours:
        return judged.fault
    return f"expires on {judged.ends:%Y-%m-%d} already"


def _check_changeable(secret: Secret, wanted: Wanted, why: str) -> None:
    remedy = (
        f"delete it (kubectl -n {wanted.namespace} delete secret {wanted.name}), or name another"
    )
    # A Secret's type cannot change. HAMi's job creates opaque ones, which work as well.
    if secret.type not in (TYPE, secret_objects.OPAQUE):
        raise InstallationError(
            str(wanted), f"{why}, and is of type {secret.type} instead of {TYPE}", remedy
        )
    if secret.immutable:
        raise InstallationError(str(wanted), f"{why}, but is immutable", remedy)


async def _write(job: Job, wanted: Wanted, before: Secret | None) -> None:
    now = job.now()
    made = certificates.issue(wanted.hosts, lifetime=wanted.lifetime, now=now)
    if wanted.webhook and await webhook_trust.add(job, wanted.webhook, made.authorities):
        await job.sleep(SETTLE_S)
    earlier = before.entry(AUTHORITIES) if before else b""
    kept = certificates.still_valid(earlier, now=now)[:KEPT]
    entries = {
        CERTIFICATE: made.certificate,
        KEY: made.key,
        AUTHORITIES: pem.joined(made.authorities, *kept),
    }
    at = (job.client, wanted.namespace, wanted.name)
    if before is not None:
        await secret_objects.replace(*at, before, entries)
        return
    await secret_objects.create(*at, kind=TYPE, entries=entries)
    hosts = ", ".join(wanted.hosts)
    job.say(f"{wanted}: created, for {hosts} until {now + wanted.lifetime:%Y-%m-%d}")


def _pair(secret: Secret) -> Pair:
    return Pair(*(secret.entry(name) for name in (CERTIFICATE, KEY, AUTHORITIES)))
