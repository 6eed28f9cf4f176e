"""The Secrets with the keys of grants: created once, rotated on demand.

| Secret | entries | mounted into |
|---|---|---|
| signing | `signing-current`, `signing-previous`: 32 random bytes | schedulers |
| public | `public-current`, `public-previous`: their Ed25519 public keys | agents |
| of form v1 | `current`, `previous`: 32 random bytes | both, where an older release made it |

A signing key is never overwritten. At first there is no `previous` one: one that never signed would
only be one more to steal. The public keys are written again if they are not those of the signing
keys.

A rotation has two halves, because files reach the nodes minutes apart and an agent starts no
container whose grant has an unknown key. First the new key is written as `previous`: every node
knows it, and the scheduler still signs with the old one. Then the two change places. A node that
does not have the new public key by then says so, and its grants are signed with the old key. A
rotation that is interrupted leaves a working cluster and can be run again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hami.installation import secret_objects
from hami.installation.job import InstallationError, Job
from hami.installation.secret_objects import Secret
from hami.serving import grant_keys
from hami.serving.grant_signature import SigningKey
from hami.wire import errors as wire_errors
from hami.wire import signature


class _Kind(NamedTuple):
    """A pair of keys that sign, in one Secret."""

    current: str
    previous: str
    #: Id of a key; WireError: not a key.
    key_id: Callable[[bytes], str]


class _Pair(NamedTuple):
    current: bytes
    previous: bytes | None


def _key_id_v1(key: bytes) -> str:
    signature.GrantKeys(key)
    return signature.key_id(key)


_V1 = _Kind(grant_keys.CURRENT, grant_keys.PREVIOUS, _key_id_v1)
_V3 = _Kind(grant_keys.SIGNING_CURRENT, grant_keys.SIGNING_PREVIOUS, lambda key: SigningKey(key).id)


async def ensure_v1(job: Job, *, namespace: str, name: str) -> None:
    """Create the Secret of form v1 with a key; an existing one is only checked."""
    await job.persist(lambda: _ensure(job, namespace, name, _V1))


async def ensure(job: Job, *, namespace: str, signing: str, public: str) -> None:
    """Create the Secret with a signing key; write its public key into the other one."""

    async def step() -> None:
        keys = await _ensure(job, namespace, signing, _V3)
        await _publish(job, namespace, public, keys)

    await job.persist(step)


async def rotate_v1(job: Job, *, namespace: str, name: str, wait: float) -> None:
    """Sign with a new key, after the `wait` seconds in which it reaches every node."""
    await _rotate(job, namespace, name, _V1, wait, public="")


async def rotate(job: Job, *, namespace: str, signing: str, public: str, wait: float) -> None:
    """Sign with a new key, after the `wait` seconds in which its public key reaches every node."""
    await _rotate(job, namespace, signing, _V3, wait, public=public)


async def _ensure(job: Job, namespace: str, name: str, kind: _Kind) -> _Pair:
    what = f"Secret {namespace}/{name}"
    found = await secret_objects.read(job.client, namespace, name)
    if found is not None:
        keys = _keys(found, what, kind)
        job.say(f"{what}: kept, key {kind.key_id(keys.current)} signs")
        return keys
    key = secrets.token_bytes(signature.KEY_BYTES)
    opaque = secret_objects.OPAQUE
    await secret_objects.create(
        job.client, namespace, name, kind=opaque, entries={kind.current: key}
    )
    job.say(f"{what}: created, key {kind.key_id(key)} signs")
    return _Pair(key, None)


async def _publish(job: Job, namespace: str, name: str, keys: _Pair) -> None:
    """Write the public keys of a pair; what is right already is not written."""
    what = f"Secret {namespace}/{name}"
    entries = _public(keys)
    found = await secret_objects.read(job.client, namespace, name)
    if found is None:
        opaque = secret_objects.OPAQUE
        await secret_objects.create(job.client, namespace, name, kind=opaque, entries=entries)
        job.say(f"{what}: created")
    elif any(found.entry(entry) != content for entry, content in entries.items()):
        if not found.ours:
            raise InstallationError(
                what,
                "was not created by hami, and has other keys than those of the signing keys",
                "write the public keys there, or delete it",
            )
        await secret_objects.replace(job.client, namespace, name, found, entries)
        job.say(f"{what}: written")


async def _rotate(
    job: Job, namespace: str, name: str, kind: _Kind, wait: float, *, public: str
) -> None:
    what = f"Secret {namespace}/{name}"
    new = secrets.token_bytes(signature.KEY_BYTES)

    async def write(change: Callable[[_Pair], _Pair]) -> _Pair:
        found = await secret_objects.read(job.client, namespace, name)
        if found is None:
            raise InstallationError(what, "does not exist", "create it with `hami certs create`")
        if not found.ours:
            raise InstallationError(
                what, "was not created by hami", "change the key where it is managed"
            )
        keys = _keys(found, what, kind)
        wanted = change(keys)
        if public:
            await _publish(job, namespace, public, wanted)
        entries = {kind.current: wanted.current, kind.previous: wanted.previous or b""}
        if any(found.entry(entry) != content for entry, content in entries.items()):
            await secret_objects.replace(job.client, namespace, name, found, entries)
        return keys

    old = await job.persist(lambda: write(lambda keys: keys._replace(previous=new)))
    job.say(f"{what}: key {kind.key_id(new)} goes to every node; this takes {wait:g} s")
    await job.sleep(wait)

    def exchanged(keys: _Pair) -> _Pair:
        if new not in keys:
            raise InstallationError(what, "was changed meanwhile", "run the rotation again")
        return _Pair(new, old.current)

    await job.persist(lambda: write(exchanged))
    job.say(
        f"{what}: key {kind.key_id(new)} signs; "
        f"grants signed by {kind.key_id(old.current)} stay valid"
    )


def _public(keys: _Pair) -> Mapping[str, bytes]:
    return {
        grant_keys.PUBLIC_CURRENT: SigningKey(keys.current).public.content,
        # An empty entry is no key.
        grant_keys.PUBLIC_PREVIOUS: SigningKey(keys.previous).public.content
        if keys.previous
        else b"",
    }


def _keys(secret: Secret, what: str, kind: _Kind) -> _Pair:
    remedy = (
        f"write {signature.KEY_BYTES} random bytes there, "
        "or delete the Secret and run `hami certs create`"
    )
    current, previous = secret.entry(kind.current), secret.entry(kind.previous) or None
    if not current:
        raise InstallationError(what, f"has no entry {kind.current} with a key", remedy)
    for entry, key in ((kind.current, current), (kind.previous, previous)):
        try:
            if key is not None:
                kind.key_id(key)
        except wire_errors.WireError as error:
            raise InstallationError(
                what, f"entry {entry} is {error.value} {error.rule}", remedy
            ) from None
    return _Pair(current, previous)
