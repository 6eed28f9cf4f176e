"""Making and removing an example's objects through the API, as `kubectl apply` and `delete` do."""

from __future__ import annotations

from hami.kube import errors
from hami.kube.client import Client, PatchKind
from hami.wire import codec
from hami_sandbox.demo.manifests import Manifest

_MANAGER = "hami-demo"
_IN_BACKGROUND = codec.encode({"propagationPolicy": "Background"})


async def make(client: Client, manifest: Manifest) -> str:
    """Make an object, or change the one of this name; return why the server refused, or nothing."""
    try:
        try:
            await client.create(manifest.collection, manifest.body)
        except errors.Conflict as conflict:
            if not conflict.exists:
                raise
            await client.patch(
                manifest.path,
                manifest.body,
                kind=PatchKind.APPLY,
                query={"fieldManager": _MANAGER, "force": "true"},
            )
    except errors.ApiError as refusal:
        return refusal.message or str(refusal)
    return ""


async def remove(client: Client, manifest: Manifest) -> None:
    """Delete an object and what it owns; it may be gone already."""
    try:
        await client.delete(manifest.path, _IN_BACKGROUND, retry_busy=True)
    except errors.NotFound:
        return
