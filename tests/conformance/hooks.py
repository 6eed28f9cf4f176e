"""An admission webhook that a test starts: HTTPS with its own certificate.

The target learns of a webhook some time after its configuration was written. So every
configuration begins with one more webhook, for objects that only `installed` makes, and a test goes
on once that one was called.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import http.server
import ipaddress
import json
import pathlib
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.conformance.objects import config_map
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import config_maps, group

CONFIGURATIONS = group("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
PROBE = "conformance-probe"

Answer = Callable[[Object], Object]


def allow(**fields: object) -> Object:
    return {"allowed": True, **fields}


def patching(*operations: Object) -> Object:
    """Allow with a JSON patch."""
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return allow(patchType="JSONPatch", patch=patch)


class Hooks:
    """The server: `answers` maps a path to what is answered there; `reviews` is what came."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.answers: dict[str, Answer] = {}
        self.reviews: list[tuple[str, Object]] = []
        #: Path and query of every call.
        self.calls: list[tuple[str, str]] = []
        certificate, key = _self_signed(host)
        self.ca = base64.b64encode(certificate).decode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pathlib.Path(pem.name).write_bytes(certificate + key)
            context.load_cert_chain(pem.name)
        hooks = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                path, _, query = self.path.partition("?")
                hooks.calls.append((path, query))
                self._send(hooks._answer(path, review))

            def _send(self, answer: Object) -> None:
                body = json.dumps(answer).encode()
                self.send_response(http.HTTPStatus.OK)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay silent: a failed test prints what it asked for."""

        # Loopback where that is enough; otherwise whatever the target's route ends at.
        bound = host if _is_loopback(host) else ""
        self._server = _QuietServer((bound, 0), Handler)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        # It looks this often whether it shall stop.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def requests(self, path: str) -> list[Object]:
        """Return the admission requests that arrived at a path, in their order."""
        return [review["request"] for where, review in self.reviews if where == path]

    def url(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self._server.server_address[1]}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, path: str, review: Object) -> Object:
        self.reviews.append((path, review))
        request = review["request"]
        answer = self.answers.get(path)
        response = answer(request) if answer else allow()
        return {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": request["uid"], **response},
        }

    def webhook(self, path: str, namespace: str, **fields: Any) -> Object:
        """Return a webhook for config maps created in this namespace, unless told otherwise."""
        return {
            "name": f"{path.strip('/')}.conformance.hami.io",
            "clientConfig": {"url": self.url(path), "caBundle": self.ca},
            "rules": [rule("configmaps")],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
            **fields,
        }

    @contextlib.contextmanager
    def installed(self, api: Client, namespace: str, *webhooks: Object) -> Iterator[None]:
        """Configure these webhooks for as long as the block lasts."""
        probe = self.webhook(
            f"/{PROBE}",
            namespace,
            objectSelector={"matchLabels": {PROBE: "true"}},
            failurePolicy="Ignore",
        )
        made = api.create(
            CONFIGURATIONS,
            {"metadata": {"generateName": "conformance-"}, "webhooks": [probe, *webhooks]},
        )
        try:
            wait_for("the target to call webhooks", lambda: self._probed(api, namespace), 30)
            self.reviews.clear()
            yield
        finally:
            api.delete(f"{CONFIGURATIONS}/{made['metadata']['name']}")

    def _probed(self, api: Client, namespace: str) -> bool:
        # Whatever the webhooks under test say to this one: it was asked, and nothing is stored.
        api.request(
            "POST",
            config_maps(namespace),
            body=config_map(PROBE, labels={PROBE: "true"}),
            query={"dryRun": "All"},
        )
        return bool(self.requests(f"/{PROBE}"))


def rule(resource: str, *operations: str) -> Object:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations) or ["CREATE"],
        "resources": [resource],
    }


class _QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that hangs up: that is what a timeout of the target looks like."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _self_signed(host: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hami conformance")])
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
