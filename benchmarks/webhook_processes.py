"""Processes of `benchmarks.webhook`, client and server on cores of their own.

The webhook has one core for itself; the API server and this process, which sends the reviews, have
another. A process inherits the core that its parent is bound to when it starts it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks import extender_http, extender_processes
from benchmarks.webhook_load import Webhook
from hami.wire import codec
from tests.authority import Authority

_LOCAL = "127.0.0.1"


class Cluster(msgspec.Struct, frozen=True):
    """An API server with nodes, and the certificates of all."""

    url: str
    folder: pathlib.Path
    authority: str

    def file(self, name: str) -> str:
        return str(self.folder / name)


def cores() -> tuple[int, int]:
    """Return the core for the webhook and the one for all else; the same where there is one."""
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Bind what is started here to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def cluster(nodes: int, *, pages: bool) -> Iterator[Cluster]:
    authority = Authority("bench")
    issued = authority.issue("webhook")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = {"ca": authority.pem, "crt": issued.certificate, "key": issued.key}
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="ascii")
        command = [sys.executable, "-m", "benchmarks.webhook_api", str(nodes)]
        command += [str(folder / "crt"), str(folder / "key"), *(["pages"] if pages else [])]
        with extender_processes.running(command, stdout=subprocess.PIPE) as api:
            assert api.stdout is not None
            url = api.stdout.readline().decode().strip()
            made = Cluster(url, folder, authority.pem)
            config = {"certificate-authority": made.file("ca")}
            kubeconfig = extender_processes.access_to(url, **config)
            (folder / "kubeconfig").write_bytes(codec.encode(kubeconfig))
            yield made


@contextlib.contextmanager
def ours(cluster: Cluster) -> Iterator[Webhook]:
    """Start `hami webhook`, and wait until it knows the nodes."""
    flags = [f"--kubeconfig={cluster.file('kubeconfig')}", *_serving(cluster)]
    with _started(cluster, ["hami", "webhook", *flags], ready="/readyz") as webhook:
        yield webhook


@contextlib.contextmanager
def scheduler(cluster: Cluster, fake: extender_processes.Fake) -> Iterator[Webhook]:
    """Start `hami scheduler`, which has a webhook within it, in front of the extender's fleet."""
    flags = [f"--kubeconfig={fake.kubeconfig}", *_serving(cluster)]
    flags += ["--leader-elect=false", "--grant-key-dir="]
    with _started(cluster, ["hami", "scheduler", *flags], ready="/readyz?webhook") as webhook:
        yield webhook


def _serving(cluster: Cluster) -> list[str]:
    return [
        "--http_bind=127.0.0.1:{port}",
        "--metrics-bind-address=",
        f"--cert_file={cluster.file('crt')}",
        f"--key_file={cluster.file('key')}",
    ]


@contextlib.contextmanager
def baseline(cluster: Cluster, kind: str, *more: str) -> Iterator[Webhook]:
    files = [cluster.file("crt"), cluster.file("key")]
    command = ["benchmarks.webhook_baselines", kind, "{port}", *files, *more]
    with _started(cluster, command, ready="/") as webhook:
        yield webhook


@contextlib.contextmanager
def _started(cluster: Cluster, command: Sequence[str], *, ready: str) -> Iterator[Webhook]:
    """Start a module with arguments, on the core and port that it has for itself."""
    port = extender_http.free_port()
    line = [sys.executable, "-m", *(part.replace("{port}", str(port)) for part in command)]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        with on_core(cores()[0]):
            process = stack.enter_context(extender_processes.running(line, stderr=log))
        try:
            extender_processes.wait_until(process, lambda: _answers(cluster, port, ready))
        except extender_processes.StartError as error:
            log.seek(0)
            output = log.read()[-2000:].decode(errors="replace")
            raise extender_processes.StartError(f"{error}: {output}") from error
        yield Webhook(process.pid, port, cluster.authority)


def _answers(cluster: Cluster, port: int, path: str) -> bool:
    """Tell whether it answers; one that does not know the path serves, too, but is not unready."""
    tls = ssl.create_default_context(cadata=cluster.authority)
    try:
        with urllib.request.urlopen(f"https://{_LOCAL}:{port}{path}", context=tls, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 503
    except (urllib.error.URLError, OSError):
        return False
