"""The built libraries, and builds of the same sources under sanitizers.

Sanitized builds are made by the host's gcc, because a sanitizer's runtime belongs to its compiler:
`sanitized("address")` (with undefined behaviour) and `sanitized("thread")`. Everything in the
process is instrumented alike: libvgpu, the stand-in driver, the probe.

How libvgpu is preloaded there: the runtime first, libvgpu second (`Sanitized.preload`). With
libvgpu alone AddressSanitizer refuses to start, since its runtime is not the first library; linked
into the program it would not be a preloaded library any more. The runtimes of both ask dlsym for
the functions that they stand in for, so they call *our* dlsym before their shadow memory exists:
what that touches on its way to the real one is not instrumented (BEFORE_SANITIZERS in intercept.c).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from native import build

Kind = Literal["address", "thread"]

_RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
_INSTRUMENTED = {
    # Sizes of objects are left to the address sanitizer: it knows them exactly.
    "address": (
        *("-fsanitize=address,undefined", "-fno-sanitize=object-size"),
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-fsanitize=thread",),
}
_FOUND_SOMETHING = 99
_OPTIONS = {
    # Leaks are not looked for: a driver keeps its tables until the process ends, and so do we.
    "ASAN_OPTIONS": f"detect_leaks=0:exitcode={_FOUND_SOMETHING}",
    "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode={_FOUND_SOMETHING}",
    # Children of a process with threads go on and are watched as well.
    "TSAN_OPTIONS": f"halt_on_error=1:die_after_fork=0:exitcode={_FOUND_SOMETHING}",
}


@functools.cache
def all_current(arch: str = build.own_arch()) -> Path:
    """Build all products for `arch`, where they are not current; give their folder."""
    compiler = build.zig(arch)
    build.build([compiler], say=lambda _: None)
    return compiler.out


@dataclasses.dataclass(frozen=True)
class Sanitized:
    """An instrumented build: the same names as in the folder of an architecture."""

    kind: Kind
    folder: Path
    #: The sanitizer's own library, which must come before libvgpu.
    runtime: Path
    #: Stands before a program's name: without it TSan cannot lay out its memory on some kernels.
    wrapper: tuple[str, ...] = ()

    def preload(self, library: Path) -> str:
        """Give LD_PRELOAD for a process that `library` (a build of libvgpu) is to watch."""
        return f"{self.runtime} {library}"

    def environment(self, reports: Path) -> dict[str, str]:
        """Give the settings with which every process writes what is wrong into `reports`.

        Only undefined behaviour is told on stderr (beside another sanitizer gcc's runtime for it
        has no file of its own); the process ends there, so whoever starts it sees both.
        """
        reports.mkdir(parents=True, exist_ok=True)
        log = f":log_path={reports}/report"
        return {name: options + log for name, options in _OPTIONS.items()}


def reports(folder: Path) -> list[str]:
    """Read what the sanitizers found, but for undefined behaviour; none is what a test wants."""
    return [path.read_text(errors="replace") for path in sorted(folder.glob("report.*"))]


@functools.cache
def sanitized(kind: Kind) -> Sanitized:
    """Build everything instrumented. Without a host compiler that can: skip, but fail in CI."""
    compiler = instrumenting(kind)
    runtime = Path(_said(*compiler.command, f"-print-file-name={_RUNTIMES[kind]}"))
    if not runtime.is_absolute():
        _cannot(f"sanitizer {kind!r} needs {_RUNTIMES[kind]}, which this gcc lacks")
    build.build([compiler], say=lambda _: None)
    made = Sanitized(kind, compiler.out, runtime.resolve())
    wrappers: list[tuple[str, ...]] = [(), ("setarch", "-R")]
    started = next((wrapper for wrapper in wrappers if _starts(made, wrapper)), None)
    if started is None:
        _cannot(f"a program under the {kind} sanitizer does not start on this machine")
    return dataclasses.replace(made, wrapper=started)


def instrumenting(kind: Kind) -> build.Toolchain:
    """Give the host's compiler, set to instrument what it compiles."""
    gcc = shutil.which("gcc")
    if gcc is None:
        _cannot(f"sanitizer {kind!r} needs gcc, which is not on the PATH")
    return build.Toolchain(
        label=f"{kind} sanitizer",
        arch=build.own_arch(),
        out=build.ROOT / "build" / f"native-{_RUNTIMES[kind][3:7]}",
        command=(gcc,),
        flags=(*("-O1", "-g", "-fPIC", "-fvisibility=hidden"), *_INSTRUMENTED[kind]),
        version=_said(gcc, "--version"),
    )


def _starts(made: Sanitized, wrapper: tuple[str, ...]) -> bool:
    if wrapper and shutil.which(wrapper[0]) is None:
        return False
    done = subprocess.run(
        [*wrapper, "/bin/true"],
        env={**os.environ, "LD_PRELOAD": str(made.runtime)},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cannot(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)
