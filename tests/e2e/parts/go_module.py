"""Parts that are Go programs, built from the module proxy by our go.sum.

Each folder beside this file has a go.mod that names the programs as tools. Nothing of their sources
is committed. The key of the cache holds both files, the flags and Go's own version, so a new pin or
a new toolchain builds anew.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.parts.cache import Part, PartError, Say

HERE = Path(__file__).parent
OLDEST_GO = (1, 21)  # from here on, Go fetches the toolchain that a go.mod asks for
ENVIRONMENT = {
    "CGO_ENABLED": "0",  # static: the programs run in any root file system
    "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly",
    "GOWORK": "off",
}
HEARTBEAT_S = 30
LAST_LINES = 30


def go_part(
    name: str,
    folder: str,
    programs: Mapping[str, str],
    *,
    stamps: Sequence[str] = (),
    takes: str,
) -> Part:
    """Describe programs (name to package) of one go.mod; stamps are the linker's `-X` settings."""
    where = HERE / folder
    version = _required_version(where / "go.mod", next(iter(programs.values())))
    numbers = version.removeprefix("v").split(".")
    settings = [s.format(version=version, major=numbers[0], minor=numbers[1]) for s in stamps]
    linker = " ".join(["-s", "-w", *(f"-X {setting}" for setting in settings)])

    def make(into: Path, say: Say) -> None:
        for program, package in programs.items():
            _build(where, package, into / program, linker, say)

    return Part(
        name=name,
        version=version.removeprefix("v"),
        made_from={
            "go.mod": (where / "go.mod").read_text(),
            "go.sum": (where / "go.sum").read_text(),
            "programs": repr(sorted(programs.items())),
            "linker": linker,
            "environment": repr(sorted(ENVIRONMENT.items())),
            "go": _go_version(where),
        },
        make=make,
        takes=takes,
    )


def _required_version(go_mod: Path, package: str) -> str:
    """Read the pinned version of the module that holds the package."""
    pin = re.compile(r"^(?:require)?\s+(\S+\.\S+/\S+) (v\S+)", re.MULTILINE)
    pins = {str(found[1]): str(found[2]) for found in pin.finditer(go_mod.read_text())}
    holders = [module for module in pins if f"{package}/".startswith(f"{module}/")]
    if not holders:
        raise PartError(f"{go_mod} requires no module that holds {package}; add it with `go get`")
    return pins[max(holders, key=len)]


@functools.cache
def _go_version(folder: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise PartError(
            "there is no `go` on the PATH; the real Kubernetes of the tests is built with Go "
            f">= {OLDEST_GO[0]}.{OLDEST_GO[1]}: install it and run this again"
        )
    done = subprocess.run(
        [go, "env", "GOVERSION"],
        cwd=folder,
        env=os.environ | {"GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    version = done.stdout.strip()
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    if done.returncode or numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_GO:
        raise PartError(
            f"`go env GOVERSION` says {version or done.stderr.strip()!r}; Go >= "
            f"{OLDEST_GO[0]}.{OLDEST_GO[1]} is needed, which fetches newer toolchains by itself"
        )
    return version


def _build(where: Path, package: str, out: Path, linker: str, say: Say) -> None:
    log = out.with_name(f".{out.name}.log")
    started = time.monotonic()
    with log.open("w+") as output:
        building = subprocess.Popen(
            ["go", "build", "-ldflags", linker, "-o", str(out), package],  # noqa: S607 - whichever Go is installed
            cwd=where,
            env=os.environ | ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while True:
            try:
                code = building.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  {out.name}: building, {(time.monotonic() - started) / 60:.1f} min so far")
            except BaseException:
                building.kill()
                raise
        output.seek(0)
        lines = output.read().splitlines()[-LAST_LINES:]
    if code:
        raise PartError(
            f"`go build {package}` in {where.name} failed with exit {code}; its last lines:\n  "
            + "\n  ".join(lines)
        )
    log.unlink()
    say(f"  {out.name}: {(time.monotonic() - started) / 60:.1f} min")
