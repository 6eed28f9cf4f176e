"""Manifests of an example: read, apply, delete.

Only the kinds that examples need are known here, as a table: no discovery before the first pod.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import yaml

from hami.kube import errors
from hami.kube.client import Client, PatchKind
from hami.wire import codec
from hami_sandbox.errors import SandboxError
from hami_sandbox.fleet.nodes import MARK

DEFAULT_NAMESPACE = "default"

_WITH_TEMPLATE = ("Deployment", "Job")
_NOT_SIMULATED = {"key": MARK, "operator": "DoesNotExist"}


class _Place(msgspec.Struct, frozen=True):
    base: str
    resource: str
    namespaced: bool = True


_PLACES = {
    ("v1", "ConfigMap"): _Place("/api/v1", "configmaps"),
    ("v1", "Namespace"): _Place("/api/v1", "namespaces", namespaced=False),
    ("v1", "Pod"): _Place("/api/v1", "pods"),
    ("v1", "ResourceQuota"): _Place("/api/v1", "resourcequotas"),
    ("apps/v1", "Deployment"): _Place("/apis/apps/v1", "deployments"),
    ("batch/v1", "Job"): _Place("/apis/batch/v1", "jobs"),
    ("scheduling.k8s.io/v1", "PriorityClass"): _Place(
        "/apis/scheduling.k8s.io/v1", "priorityclasses", namespaced=False
    ),
}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    #: Empty for what belongs to no namespace.
    namespace: str
    name: str
    #: Paths to create it, and of the object itself.
    collection: str
    path: str
    #: As JSON.
    body: bytes

    @property
    def short(self) -> str:
        """As kubectl names it, for example pod/share-a."""
        return f"{self.kind.lower()}/{self.name}"

    def on_real_nodes(self) -> Manifest:
        """Return the manifest for nodes that run containers; without pods it is unchanged."""
        document = json.loads(self.body)
        spec = document.get("spec", {})
        if self.kind in _WITH_TEMPLATE:
            spec = spec["template"]["spec"]
        elif self.kind != "Pod":
            return self
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
        for term in required.setdefault("nodeSelectorTerms", [{}]):
            term.setdefault("matchExpressions", []).append(_NOT_SIMULATED)
        return msgspec.structs.replace(self, body=json.dumps(document).encode())


def read(path: Path) -> list[Manifest]:
    """Read all objects of a file, in their order."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SandboxError(
            str(path), f"cannot be read ({error.strerror})", "name a file that is there"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise SandboxError(str(path), f"is no YAML: {why}", "correct that place") from error
    found = [
        _manifest(document, f"{path}, object {number}")
        for number, document in enumerate(documents, start=1)
        if document is not None
    ]
    if not found:
        raise SandboxError(str(path), "has no object", "write one, or leave the file out")
    return found


def _manifest(document: object, place: str) -> Manifest:
    if not isinstance(document, dict):
        raise SandboxError(place, "is no object", "begin with apiVersion, kind and metadata")
    version, kind = document.get("apiVersion"), document.get("kind")
    known = _PLACES.get((str(version), str(kind)))
    if known is None:
        kinds = ", ".join(f"{each} ({of})" for of, each in _PLACES)
        raise SandboxError(
            f"{place}, {kind} of {version}", "is no kind that the demo applies", f"take {kinds}"
        )
    given = document.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise SandboxError(
            f"{place}, {kind}", "has no metadata.name", "name it: the demo must find it again"
        )
    namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE) if known.namespaced else ""
    above = f"/namespaces/{namespace}" if namespace else ""
    collection = f"{known.base}{above}/{known.resource}"
    return Manifest(
        kind=str(kind),
        namespace=namespace,
        name=name,
        collection=collection,
        path=f"{collection}/{name}",
        body=json.dumps(document, default=str).encode(),
    )


_MANAGER = "hami-demo"
_IN_BACKGROUND = codec.encode({"propagationPolicy": "Background"})


async def make(client: Client, manifest: Manifest) -> str:
    """Create or change an object; return why the server refused it, or empty."""
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
    """Delete an object and what it owns; it may be deleted already."""
    try:
        await client.delete(manifest.path, _IN_BACKGROUND, retry_busy=True)
    except errors.NotFound:
        return
