"""Baselines of `hami webhook`, each a process of its own.

    python -m benchmarks.webhook_baselines floor   PORT CERTIFICATE KEY
    python -m benchmarks.webhook_baselines listing PORT CERTIFICATE KEY API-SERVER AUTHORITY

`floor` is the same HTTP server with a handler that answers every review with the same bytes: what
is left of a review's time is ours. `listing` is a webhook as one writes it first, with nothing but
the standard library: a thread for each connection, and for each review a list of all nodes, from
which it learns which profiles exist. The webhook that ours follows (seed 003) works like that.
"""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import ssl
import sys
import urllib.request
from typing import Any

import uvloop

from benchmarks import webhook_fleet
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Request, Response, Route, Server

_CHAIN = [f"nvidia.com/mig-{name}" for name in ("3g.40gb", "2g.20gb", "1g.10gb")]
_GPU = "nvidia.com/gpu"


async def _floor(port: int, certificate: str, key: str) -> None:
    constant = _patched(
        {"uid": "00000000-0000-4000-8000-000000000000"},
        [_operation("add", _GPU, "1"), _operation("remove", webhook_fleet.MISSING)],
    )

    async def answer(_: Request) -> Response:
        return Response(body=constant)

    server = Server([Route("POST", "/webhook", answer)], tls=LiveCertificate(certificate, key))
    await server.start("127.0.0.1", port)
    await asyncio.Event().wait()


class _Listing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: str
    tls: ssl.SSLContext

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self._review(json.loads(body)["request"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass

    def _review(self, request: dict[str, Any]) -> bytes:
        offered = self._offered()
        operations = []
        for container in request["object"]["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            for asked in [name for name in _CHAIN if name in limits and name not in offered]:
                after = _CHAIN[_CHAIN.index(asked) + 1 :]
                given = next((name for name in after if name in offered), _GPU)
                operations += [_operation("remove", asked), _operation("add", given, "1")]
        return _patched(request, operations)

    def _offered(self) -> set[str]:
        with urllib.request.urlopen(f"{self.api}/api/v1/nodes", context=self.tls) as answer:  # noqa: S310  ours
            nodes = json.load(answer)["items"]
        return {name for node in nodes for name in node["status"]["allocatable"]}


def _operation(kind: str, resource: str, *value: str) -> dict[str, str]:
    path = f"/spec/containers/0/resources/limits/{resource.replace('/', '~1')}"
    return {"op": kind, "path": path, **({"value": value[0]} if value else {})}


def _patched(request: dict[str, Any], operations: list[dict[str, str]]) -> bytes:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    answer = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": answer}
    return json.dumps(review).encode()


def _listing(port: int, certificate: str, key: str, api: str, authority: str) -> None:
    _Listing.api = api
    _Listing.tls = ssl.create_default_context(cafile=authority)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Listing)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


def main() -> None:
    kind, port, certificate, key, *api = sys.argv[1:]
    if kind == "floor":
        uvloop.run(_floor(int(port), certificate, key))
    else:
        _listing(int(port), certificate, key, *api)


if __name__ == "__main__":
    main()
