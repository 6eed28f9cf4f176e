"""Real kubectl on the sandbox's API server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import pathlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.e2e.parts import catalogue
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import nodes, pods

_TIMEOUT_S = 30.0
READY = {
    "phase": "Running",
    "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    ],
}


class KubectlError(Exception):
    """It ended with another code than 0; the text is what it said."""


@functools.cache
def program() -> pathlib.Path:
    return catalogue.provide(catalogue.client_tools()) / "kubectl"


class Kubectl:
    def __init__(self, kubeconfig: pathlib.Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def inside(self, namespace: str) -> Kubectl:
        return Kubectl(self.kubeconfig, namespace)

    def __call__(self, *arguments: str, given: object = None) -> str:
        """Run it, with an object or a text on its standard input; return what it printed."""
        text = given if isinstance(given, str) or given is None else json.dumps(given)
        done = subprocess.run(
            self._command(arguments),
            input=text,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise KubectlError(done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def rows(self, *arguments: str) -> list[list[str]]:
        """Return the words of a table without its head."""
        return [line.split() for line in self(*arguments).splitlines()[1:] if line.strip()]

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Iterator[list[str]]]:
        """Run it beside the test, and end it; give the words of its lines as they come."""
        process = subprocess.Popen(
            self._command(arguments),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Whoever waits for a line that never comes sees the end of the output instead.
        alarm = threading.Timer(_TIMEOUT_S, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None
            yield (line.split() for line in process.stdout)
        finally:
            alarm.cancel()
            process.kill()
            process.communicate()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(program()), "--namespace", self.namespace, *arguments]

    def _environment(self) -> dict[str, str]:
        folder = str(self.kubeconfig.parent)
        return {
            **os.environ,
            "HOME": folder,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": f"{folder}/cache",
        }


class HollowKubelet:
    """Lets every pod of a namespace that no node has run at once, for as long as a block lasts."""

    def __init__(self, api: Client, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            listed = self._api.get(pods(self._namespace), fieldSelector="status.phase=Pending")
            for pod in listed["items"]:
                path = pods(self._namespace, pod["metadata"]["name"], "status")
                with contextlib.suppress(ApiError):  # it may be gone
                    self._api.patch(path, {"status": READY})


Answer = tuple[int, str]


class LogKubelet:
    """The part of a kubelet that answers for logs, for one node."""

    def __init__(self, token: str, answer: Callable[[str, dict[str, str]], Answer]) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                query = dict(parse_qsl(address.query))
                kubelet.asked.append((address.path, query))
                code, text = answer(address.path, query)
                if self.headers.get("Authorization") != f"Bearer {token}":
                    code, text = 401, "Unauthorized"
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def status(self) -> Object:
        """Return what its node tells about it."""
        return {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def make_node(api: Client, name: str, **status: Any) -> None:
    api.create(nodes(), {"metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    told = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}, "conditions": [ready], **status}
    api.patch(nodes(name, "status"), {"status": told})


def make_pod(api: Client, namespace: str, name: str, node: str = "", **labels: str) -> None:
    container = {"name": "main", "image": "registry.invalid/none:1"}
    spec: Object = {"containers": [container]}
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "labels": labels}
    api.create(pods(namespace), {"metadata": metadata, "spec": spec})
