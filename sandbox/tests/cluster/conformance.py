"""Run tests/conformance on the sandbox's API server.

    python -m sandbox.tests.cluster.conformance [pytest ...]

It is started in a folder of its own and judged by tests/conformance, the tests that a real
kube-apiserver passes. Left out is only what its list of differences names.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from hami_sandbox import access, apiserver
from tests.conformance import target

ROOT = pathlib.Path(__file__).parents[3]
SUITE = "tests/conformance"
NEEDS = "needs:"
_START_S = 30.0


def differences() -> list[dict[str, Any]]:
    """Return where the server knowingly differs."""
    listed = pathlib.Path(apiserver.__file__).with_name("differences.toml")
    found: list[dict[str, Any]] = tomllib.loads(listed.read_text()).get("difference", [])
    return found


def environment(kubeconfig: pathlib.Path) -> dict[str, str]:
    """Return what the suite needs to know about the server."""
    lacking = [
        test.removeprefix(NEEDS)
        for difference in differences()
        for test in difference["tests"]
        if test.startswith(NEEDS)
    ]
    return {
        **os.environ,
        target.KUBECONFIG: str(kubeconfig),
        target.COMPACT: f"{sys.executable} -m sandbox.tests.cluster.compact {{revision}}",
        target.LACKS: ",".join(lacking),
    }


def left_out() -> list[str]:
    """Return arguments that leave out single tests that are known to differ."""
    return [
        f"--deselect={SUITE}/{test}"
        for difference in differences()
        for test in difference["tests"]
        if not test.startswith(NEEDS)
    ]


@contextlib.contextmanager
def served(folder: pathlib.Path, *more: str) -> Iterator[pathlib.Path]:
    """Run the server; give the kubeconfig of its administrator."""
    access.make(folder)
    kubeconfig = folder / "admin.kubeconfig"
    command = [sys.executable, "-m", "hami_sandbox.apiserver", "--folder", str(folder)]
    log = folder / "apiserver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig), *more],
            stdout=output,
            stderr=output,
            cwd=ROOT,
        )
    try:
        _wait(process, kubeconfig, log)
        yield kubeconfig
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(arguments: list[str], variables: Mapping[str, str]) -> int:
    """Run the suite."""
    command = [sys.executable, "-m", "pytest", SUITE, *left_out(), *arguments]
    return subprocess.run(command, env=variables, cwd=ROOT, check=False).returncode


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hami-conformance-") as folder:
        place = pathlib.Path(folder)
        with served(place) as kubeconfig:
            code = run(sys.argv[1:], environment(kubeconfig))
        if code:
            sys.stderr.write((place / "apiserver.log").read_text()[-20_000:])
        return code


def _wait(process: subprocess.Popen[bytes], kubeconfig: pathlib.Path, log: pathlib.Path) -> None:
    until = time.monotonic() + _START_S
    while not kubeconfig.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the API server does not serve: {log.read_text()[-4000:]}")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
