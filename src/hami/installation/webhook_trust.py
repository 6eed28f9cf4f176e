"""The authorities that the API server trusts when it calls our webhook.

They are the caBundle of the webhook's configuration. `set_from_secret` makes it equal to the
Secret's ca.crt. `add` is for a renewal: the new authority is trusted beside the old ones before the
first server uses its certificate.

A merge patch cannot address items of a list. So the configuration is read, changed and written back
in the version that was read; policies, selectors and rules in it stay.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from hami.installation import job as installation_job
from hami.installation import pem, secret_objects
from hami.installation.job import Job
from hami.kube import errors as kube_errors
from hami.kube import paths
from hami.wire import codec

#: Seconds that a job waits for its objects: the chart creates them at the same time.
WAIT_S = 30.0


async def set_from_secret(job: Job, *, namespace: str, secret: str, webhook: str) -> None:
    """Let every webhook of the configuration trust the Secret's ca.crt, and nothing else."""

    async def step() -> None:
        bundle = await _bundle(job, namespace, secret)
        if not await _change(job, webhook, lambda _: bundle):
            raise installation_job.NotThereYet(
                f"MutatingWebhookConfiguration {webhook}",
                "does not exist",
                "install the chart with the webhook enabled, or correct --webhook",
            )

    await job.persist(step, patience=WAIT_S)


async def add(job: Job, webhook: str, authorities: bytes) -> bool:
    """Let every webhook trust these as well; False: the configuration does not exist yet."""

    def extended(bundle: bytes) -> bytes:
        # An unreadable bundle is dropped: no call succeeds with it.
        return pem.joined(bundle if pem.readable(bundle) else b"", authorities)

    return await job.persist(lambda: _change(job, webhook, extended))


async def _bundle(job: Job, namespace: str, name: str) -> bytes:
    secret = await secret_objects.read(job.client, namespace, name)
    if secret is None:
        raise installation_job.NotThereYet(
            f"Secret {namespace}/{name}", "does not exist", "run `hami certs create` first"
        )
    bundle = secret.entry("ca.crt")
    if not pem.readable(bundle):
        raise installation_job.InstallationError(
            f"Secret {namespace}/{name}",
            "has no entry ca.crt with certificates in PEM form",
            "write there the authority that signed its tls.crt, "
            "or delete the Secret and run `hami certs create`",
        )
    return bundle


async def _change(job: Job, name: str, change: Callable[[bytes], bytes]) -> bool:
    """Change the authorities that each webhook trusts; False: no such configuration."""
    path = paths.mutating_webhooks(name)
    what = f"MutatingWebhookConfiguration {name}"
    try:
        body = await job.client.get(path)
    except kube_errors.NotFound:
        return False
    document = codec.decode(body, dict[str, Any], what=what)
    hooks = document.get("webhooks") or []
    changed = [_trusting(hook, change) for hook in hooks]
    if changed == hooks:
        job.say(f"{what}: trusts the right authorities already")
        return True
    await job.client.replace(path, codec.encode({**document, "webhooks": changed}))
    names = ", ".join(str(hook.get("name")) for hook in changed)
    job.say(f"{what}: trusts new authorities, for {names}")
    return True


def _trusting(hook: dict[str, Any], change: Callable[[bytes], bytes]) -> dict[str, Any]:
    target = hook.get("clientConfig") or {}
    bundle = base64.b64encode(change(_decoded(target.get("caBundle")))).decode()
    return {**hook, "clientConfig": {**target, "caBundle": bundle}}


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return b""
