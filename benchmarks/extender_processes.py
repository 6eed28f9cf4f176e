"""Processes of `benchmarks.extender`: a stand-in API server, an extender."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import msgspec

from benchmarks import extender_fleet, extender_http, fleet
from hami.wire import codec

#: Seconds.
_START = 900.0
_LOOK_AGAIN = 0.02


class Extender(msgspec.Struct, frozen=True):
    """One that serves."""

    pid: int
    port: int
    metrics_port: int
    #: Seconds from its start until it could decide.
    start: float


class Fake(msgspec.Struct, frozen=True):
    url: str
    #: How to find it.
    kubeconfig: pathlib.Path
    #: The folder of the key that signed its pods' grants.
    grant_keys: pathlib.Path


class StartError(Exception):
    """An extender did not come up."""


@contextlib.contextmanager
def fake_api(nodes: int, placed: int) -> Iterator[Fake]:
    command = [sys.executable, "-m", "benchmarks.extender_api", str(nodes), str(placed)]
    with tempfile.TemporaryDirectory() as folder, running(command, stdout=subprocess.PIPE) as api:
        assert api.stdout is not None
        url = api.stdout.readline().decode().strip()
        yield described(url, pathlib.Path(folder))


def described(url: str, folder: pathlib.Path) -> Fake:
    """Write into a folder what a process needs to use an API server."""
    kubeconfig, grant_keys = folder / "kubeconfig", folder / "grant"
    kubeconfig.write_bytes(codec.encode(access_to(url)))
    grant_keys.mkdir()
    (grant_keys / "current").write_bytes(extender_fleet.KEY)
    return Fake(url, kubeconfig, grant_keys)


def send_events(fake: Fake, rate: int) -> None:
    """Let the API server show so many changes a second; 0 ends it."""
    with urllib.request.urlopen(f"{fake.url}/bench/events?rate={rate}", data=b""):  # noqa: S310  ours
        pass


def requests_seen(fake: Fake) -> dict[str, int]:
    with urllib.request.urlopen(f"{fake.url}/bench/requests") as answer:  # noqa: S310  ours
        counts: dict[str, int] = msgspec.json.decode(answer.read())
        return counts


@contextlib.contextmanager
def ours(fake: Fake, *flags: str) -> Iterator[Extender]:
    port, metrics_port = extender_http.free_port(), extender_http.free_port()
    command = [sys.executable, "-m", "hami", "scheduler", *_common(port, metrics_port)]
    command += [f"--kubeconfig={fake.kubeconfig}", f"--grant-key-dir={fake.grant_keys}"]
    command += ["--leader-elect=false", *flags]
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as log, running(command, stderr=log) as process:
        try:
            wait_until(process, lambda: _is_ready(port))
        except StartError as error:
            log.seek(0)
            raise StartError(f"{error}: {log.read()[-2000:].decode(errors='replace')}") from error
        start = time.perf_counter() - begin
        yield Extender(process.pid, port, metrics_port, start)


@contextlib.contextmanager
def theirs(fake: Fake, binary: str, asks: Callable[[int], bool]) -> Iterator[Extender]:
    """Start HAMi's scheduler, its own limit on requests lifted; `asks` tells if it can decide."""
    port, metrics_port = extender_http.free_port(), extender_http.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "device-config.yaml"
        config.write_bytes(codec.encode({"nvidia": _device_config()}))
        command = [binary, *_common(port, metrics_port), f"--device-config-file={config}"]
        command += ["--kube-qps=100000", "--kube-burst=100000", "-v=1"]
        environment = {**os.environ, "KUBECONFIG": str(fake.kubeconfig)}
        begin = time.perf_counter()
        with (
            pathlib.Path(os.devnull).open("wb") as nowhere,
            running(command, stdout=nowhere, stderr=nowhere, env=environment) as process,
        ):
            wait_until(process, lambda: _is_ready(port) and asks(port))
            start = time.perf_counter() - begin
            yield Extender(process.pid, port, metrics_port, start)


def _common(port: int, metrics_port: int) -> list[str]:
    return [
        f"--http_bind=127.0.0.1:{port}",
        f"--metrics-bind-address=127.0.0.1:{metrics_port}",
        "--scheduler-name=hami-scheduler",
    ]


@contextlib.contextmanager
def running(command: list[str], **how: object) -> Iterator[subprocess.Popen[bytes]]:
    process: subprocess.Popen[bytes] = subprocess.Popen(command, **how)  # type: ignore[call-overload]  # noqa: S603  ours, or named by the user
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    end = time.perf_counter() + _START
    while not ready():
        if process.poll() is not None:
            raise StartError(f"it ended with status {process.returncode}")
        if time.perf_counter() > end:
            raise StartError(f"it was not ready within {_START:.0f} s")
        time.sleep(_LOOK_AGAIN)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def access_to(url: str, **cluster: str) -> dict[str, object]:
    """Return a kubeconfig that names a server; `cluster` says more of it, as the file has it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "bench", "user": {"token": "bench"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }


def _device_config() -> dict[str, object]:
    names = fleet.NVIDIA.resources
    return {
        "resourceCountName": names.count,
        "resourceMemoryName": names.memory,
        "resourceMemoryPercentageName": names.memory_percentage,
        "resourceCoreName": names.cores,
        "resourcePriorityName": names.priority,
        "defaultGPUNum": 1,
        "memoryFactor": 1,
        "deviceSplitCount": fleet.SPLIT,
        "deviceMemoryScaling": 1,
        "deviceCoreScaling": 1,
        "gpuCorePolicy": "default",
    }
