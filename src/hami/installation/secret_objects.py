"""Read, create and replace Secrets through the API server.

Secrets that hami creates carry the label `app.kubernetes.io/managed-by: hami`. It separates them
from a Secret that a user or cert-manager wrote under the same name, which no job may delete. All
other fields of an object, also labels and annotations of others, are written back unchanged.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from hami.kube import errors as kube_errors
from hami.kube import paths
from hami.kube.client import Client
from hami.wire import codec

MANAGED_BY = "app.kubernetes.io/managed-by"
US = "hami"

OPAQUE = "Opaque"


class _Meta(codec.Object, frozen=True):
    uid: str | None = None
    labels: dict[str, str | None] | None = None


class _Fields(codec.Object, frozen=True):
    metadata: _Meta | None = None
    type: str | None = None
    immutable: bool | None = None
    data: dict[str, str | None] | None = None


class Secret:
    """A Secret as it was read. Its content never appears in a message or a repr."""

    def __init__(self, body: bytes) -> None:
        fields = codec.decode(body, _Fields, what="Secret")
        meta = fields.metadata or _Meta()
        self.uid = meta.uid or ""
        self.ours = (meta.labels or {}).get(MANAGED_BY) == US
        self.type = fields.type or OPAQUE
        self.immutable = bool(fields.immutable)
        self._data = fields.data or {}
        self._document = codec.decode(body, dict[str, Any], what="Secret")

    def entry(self, name: str) -> bytes:
        """Return the bytes of an entry; empty if it is missing or cannot be read."""
        try:
            return base64.b64decode(self._data.get(name) or "", validate=True)
        except (binascii.Error, ValueError):
            return b""

    def with_entries(self, entries: Mapping[str, bytes]) -> bytes:
        """Return the whole object with these entries and our label, in the version read."""
        meta = self._document.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), MANAGED_BY: US}
        changed = {
            **self._document,
            "metadata": {**meta, "labels": labels},
            "data": {**self._data, **_encoded(entries)},
        }
        return codec.encode(changed)


async def read(client: Client, namespace: str, name: str) -> Secret | None:
    try:
        return Secret(await client.get(paths.secrets(namespace, name)))
    except kube_errors.NotFound:
        return None


async def create(
    client: Client, namespace: str, name: str, *, kind: str, entries: Mapping[str, bytes]
) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: US}},
        "type": kind,
        "data": _encoded(entries),
    }
    await client.create(paths.secrets(namespace), codec.encode(document))


async def replace(
    client: Client, namespace: str, name: str, secret: Secret, entries: Mapping[str, bytes]
) -> None:
    """Write entries into a Secret; raises a conflict if it has changed since it was read."""
    await client.replace(paths.secrets(namespace, name), secret.with_entries(entries))


def _encoded(entries: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in entries.items()}
