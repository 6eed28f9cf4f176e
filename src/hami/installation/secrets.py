"""The Secrets of an installation: certificate and grant key.

The Secret with the webhook's certificate: made, kept while it is good, renewed in time.
A renewal must not make a single call fail, although servers get the new files up to two minutes
after the Secret has changed. So the authority goes first: the API server trusts it beside the old
one, then the Secret changes, and its ca.crt holds the new authority and those before it.

To have nothing old trusted any more (a key has leaked), delete the Secret and run both jobs again.
A certificate that others made is left to them as long as it works, and replaced when it does not.

The Secret with the keys that sign grants (`hami.wire.signature`): made once, never overwritten.
There is no `previous` at first: a second key that never signed would only be one more to steal.

A rotation has two halves, because files reach the nodes minutes apart and an agent starts nothing
whose key it does not know. First the new key is written as `previous`, by which everybody knows
it and nobody signs; when every node has it, the two change places. An interrupted rotation leaves
a cluster that works, and can be begun again.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hami.installation import certificates, secret_objects, webhook_trust
from hami.installation.certificates import Judgement, Pair
from hami.installation.job import InstallationError, Job
from hami.installation.secret_objects import Secret
from hami.wire import errors as wire_errors
from hami.wire import signature

TYPE = "kubernetes.io/tls"
CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"

#: Earlier authorities that stay trusted; hosts that change every week must not fill the Secret.
KEPT = 3
#: Seconds for every API server to hear of the new authority.
SETTLE_S = 3.0


class Wanted(NamedTuple):
    namespace: str
    name: str
    hosts: Sequence[str]
    lifetime: dt.timedelta
    #: The MutatingWebhookConfiguration that must trust it; empty: none.
    webhook: str = ""

    def __str__(self) -> str:
        return f"Secret {self.namespace}/{self.name}"


async def ensure_certificate(job: Job, wanted: Wanted) -> None:
    """Have a Secret whose certificate is good for these hosts, and for a while yet."""
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
    job.say(f"{wanted}: kept, it is good until {judged.ends:%Y-%m-%d}")
    if judged.old:
        job.say(f"{wanted}: was not made by hami, so its owner must renew it by then")


def _why_renew(secret: Secret, judged: Judgement) -> str:
    if judged.fault or not judged.old or not secret.ours:
        return judged.fault
    return f"ends on {judged.ends:%Y-%m-%d} already"


def _check_changeable(secret: Secret, wanted: Wanted, why: str) -> None:
    remedy = (
        f"delete it (kubectl -n {wanted.namespace} delete secret {wanted.name}), or name another"
    )
    # A Secret keeps its type for life. HAMi's job makes opaque ones, which serve as well.
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
        AUTHORITIES: certificates.joined(made.authorities, *kept),
    }
    at = (job.client, wanted.namespace, wanted.name)
    if before is not None:
        await secret_objects.replace(*at, before, entries)
        return
    await secret_objects.create(*at, kind=TYPE, entries=entries)
    hosts = ", ".join(wanted.hosts)
    job.say(f"{wanted}: made, for {hosts} until {now + wanted.lifetime:%Y-%m-%d}")


def _pair(secret: Secret) -> Pair:
    return Pair(*(secret.entry(name) for name in (CERTIFICATE, KEY, AUTHORITIES)))


CURRENT, PREVIOUS = "current", "previous"


async def ensure_grant_key(job: Job, *, namespace: str, name: str) -> None:
    """Have a Secret with a key; one that is there is only checked."""
    what = f"Secret {namespace}/{name}"

    async def step() -> None:
        found = await secret_objects.read(job.client, namespace, name)
        if found is not None:
            keys = _keys(found, what)
            job.say(f"{what}: kept, key {signature.key_id(keys.current)} signs")
            return
        key = secrets.token_bytes(signature.KEY_BYTES)
        kind = secret_objects.OPAQUE
        await secret_objects.create(job.client, namespace, name, kind=kind, entries={CURRENT: key})
        job.say(f"{what}: made, key {signature.key_id(key)} signs")

    await job.persist(step)


async def rotate(job: Job, *, namespace: str, name: str, wait: float) -> None:
    """Sign with a new key, after `wait` seconds in which the new one reaches every node."""
    what = f"Secret {namespace}/{name}"
    new = secrets.token_bytes(signature.KEY_BYTES)

    async def write(
        entries: Callable[[signature.GrantKeys], Mapping[str, bytes]],
    ) -> signature.GrantKeys:
        found = await secret_objects.read(job.client, namespace, name)
        if found is None:
            raise InstallationError(what, "there is none", "make it with `hami certs create`")
        if not found.ours:
            raise InstallationError(
                what, "was not made by hami", "change the key where it is managed"
            )
        keys = _keys(found, what)
        wanted = entries(keys)
        if any(found.entry(entry) != content for entry, content in wanted.items()):
            await secret_objects.replace(job.client, namespace, name, found, wanted)
        return keys

    old = await job.persist(lambda: write(lambda _: {PREVIOUS: new}))
    job.say(f"{what}: key {signature.key_id(new)} is told to every node; this takes {wait:g} s")
    await job.sleep(wait)

    def exchanged(keys: signature.GrantKeys) -> Mapping[str, bytes]:
        if new not in (keys.current, keys.previous):
            raise InstallationError(what, "was changed meanwhile", "begin the rotation again")
        return {CURRENT: new, PREVIOUS: old.current}

    await job.persist(lambda: write(exchanged))
    job.say(
        f"{what}: key {signature.key_id(new)} signs; "
        f"what {signature.key_id(old.current)} signed stays good"
    )


def _keys(secret: Secret, what: str) -> signature.GrantKeys:
    remedy = (
        f"write {signature.KEY_BYTES} random bytes there, "
        "or delete the Secret and run `hami certs create`"
    )
    if not secret.entry(CURRENT):
        raise InstallationError(what, f"has no entry {CURRENT} with a key", remedy)
    try:
        return signature.GrantKeys(secret.entry(CURRENT), secret.entry(PREVIOUS) or None)
    except wire_errors.WireError as error:
        raise InstallationError(
            what, f"{error.what} is {error.value} {error.rule}", remedy
        ) from None
