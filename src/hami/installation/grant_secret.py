"""The Secret with the keys that sign grants: created once, rotated on demand.

It is never overwritten. At first it has no `previous` key: one that never signed would only be one
more to steal.

A rotation has two halves, because files reach the nodes minutes apart and an agent starts no
container whose grant has an unknown key. First the new key is written as `previous`: every node
knows it, and the scheduler still signs with the old one. Then the two change places. A rotation
that is interrupted leaves a working cluster and can be run again. `hami.wire.signature` signs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from hami.installation import secret_objects
from hami.installation.job import InstallationError, Job
from hami.installation.secret_objects import Secret
from hami.wire import errors as wire_errors
from hami.wire import signature

CURRENT, PREVIOUS = "current", "previous"


async def ensure(job: Job, *, namespace: str, name: str) -> None:
    """Create the Secret with a key; an existing one is only checked."""
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
        job.say(f"{what}: created, key {signature.key_id(key)} signs")

    await job.persist(step)


async def rotate(job: Job, *, namespace: str, name: str, wait: float) -> None:
    """Sign with a new key, after the `wait` seconds in which it reaches every node."""
    what = f"Secret {namespace}/{name}"
    new = secrets.token_bytes(signature.KEY_BYTES)

    async def write(
        entries: Callable[[signature.GrantKeys], Mapping[str, bytes]],
    ) -> signature.GrantKeys:
        found = await secret_objects.read(job.client, namespace, name)
        if found is None:
            raise InstallationError(what, "does not exist", "create it with `hami certs create`")
        if not found.ours:
            raise InstallationError(
                what, "was not created by hami", "change the key where it is managed"
            )
        keys = _keys(found, what)
        wanted = entries(keys)
        if any(found.entry(entry) != content for entry, content in wanted.items()):
            await secret_objects.replace(job.client, namespace, name, found, wanted)
        return keys

    old = await job.persist(lambda: write(lambda _: {PREVIOUS: new}))
    job.say(f"{what}: key {signature.key_id(new)} goes to every node; this takes {wait:g} s")
    await job.sleep(wait)

    def exchanged(keys: signature.GrantKeys) -> Mapping[str, bytes]:
        if new not in (keys.current, keys.previous):
            raise InstallationError(what, "was changed meanwhile", "run the rotation again")
        return {CURRENT: new, PREVIOUS: old.current}

    await job.persist(lambda: write(exchanged))
    job.say(
        f"{what}: key {signature.key_id(new)} signs; "
        f"grants signed by {signature.key_id(old.current)} stay valid"
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
