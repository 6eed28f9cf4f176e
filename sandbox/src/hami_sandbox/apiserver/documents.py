"""Documents of the server: health, version, discovery, OpenAPI."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping

import msgspec

from hami_sandbox.api_objects import KUBERNETES
from hami_sandbox.apiserver.kinds import Catalogue
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import discovery, openapi

_AGGREGATED = "apidiscovery.k8s.io"
_HEALTH = frozenset(["/healthz", "/livez", "/readyz"])
#: Helm takes the older document in this form only. An empty one, "2.0" of "hami" at "1", is enough:
#: Helm skips kinds without a schema, and the server checks them.
_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_NO_SCHEMAS = b"\x0a\x032.0\x12\x09\x0a\x04hami\x12\x011\x42\x00\x4a\x00"
_PARTS_OF_GROUP, _PARTS_OF_VERSION = 2, 3


class Document(msgspec.Struct, frozen=True):
    """An answer that is no object."""

    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


def find(catalogue: Catalogue, path: str, query: Mapping[str, str], accept: str) -> Document | None:
    """Return the document at a path; None where there is none."""
    if path in _HEALTH:
        return _health(path, query)
    if path == "/version":
        return _json(_version())
    if path.startswith("/openapi/"):
        return _openapi(catalogue, path, accept)
    if path in {"/api", "/apis"} and _AGGREGATED in accept:
        return _aggregated(catalogue, core=path == "/api", accept=accept)
    found = _discovered(catalogue, path)
    return None if found is None else _json(found)


def _discovered(catalogue: Catalogue, path: str) -> Object | None:
    parts = path.strip("/").split("/")
    if parts == ["api"]:
        return discovery.core_versions()
    if parts == ["apis"]:
        return discovery.groups(catalogue.all)
    if parts[0] == "api" and len(parts) == _PARTS_OF_GROUP:
        return discovery.resources(catalogue.all, "", parts[1])
    if parts[0] == "apis" and len(parts) == _PARTS_OF_GROUP:
        return discovery.group(catalogue.all, parts[1])
    if parts[0] == "apis" and len(parts) == _PARTS_OF_VERSION:
        return discovery.resources(catalogue.all, parts[1], parts[2])
    return None


def _aggregated(catalogue: Catalogue, *, core: bool, accept: str) -> Document:
    version = "v2" if "v=v2;" in f"{accept};".replace(",", ";") else "v2beta1"
    body, tag = discovery.aggregated(catalogue.all, core=core, version=version)
    form = f"application/json;g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"
    return Document(msgspec.json.encode(body), form, {"ETag": tag, "Vary": "Accept"})


def _openapi(catalogue: Catalogue, path: str, accept: str) -> Document | None:
    if path == "/openapi/v3":
        return _json(openapi.index(catalogue.all))
    if path == "/openapi/v2" and _PROTOBUF in accept:
        return Document(_NO_SCHEMAS, _PROTOBUF.replace("@", "."))
    if path == "/openapi/v2":
        return _json(openapi.version_two(catalogue.all))
    found = openapi.document(catalogue.all, path.removeprefix("/openapi/v3/"))
    if found is None:
        return None
    body = msgspec.json.encode(found)
    return Document(body, headers={"ETag": f'"{hashlib.sha256(body).hexdigest()}"'})


def _health(path: str, query: Mapping[str, str]) -> Document:
    if "verbose" not in query:
        return Document(b"ok", "text/plain; charset=utf-8")
    text = f"[+]ping ok\n[+]store ok\n{path.strip('/')} check passed\n"
    return Document(text.encode(), "text/plain; charset=utf-8")


def _version() -> Object:
    _, minor, _ = KUBERNETES.removeprefix("v").split(".")
    return {
        "major": "1",
        "minor": minor,
        "gitVersion": KUBERNETES,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"none: Python {platform.python_version()}",
        "compiler": "hami-sandbox",
        "platform": f"linux/{platform.machine()}",
    }


def _json(body: object) -> Document:
    return Document(msgspec.json.encode(body))
