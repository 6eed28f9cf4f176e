"""Compile everything below native/: libvgpu, the stand-in driver, the probe.

One way for all who need it: the wheel (hatch_build.py), `make native` and the tests. The compiler
is the pinned `ziglang` from PyPI: it brings headers and stubs of every glibc, so one machine builds
for both architectures and for images as old as glibc 2.17, and no host compiler is needed.

What a product is made from (sources, headers, flags, compiler) is kept beside it as a digest:
nothing happens when it is current. Files come into place by rename: a running process keeps
the library that it has mapped, and two builds at once do each other no harm.

    python -m native.build                      # both architectures
    python -m native.build --arch x86_64 libvgpu.so
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native"
LIBRARIES = SOURCES / "lib"
ARCHES = ("x86_64", "aarch64")
GLIBC = "2.17"  # of CentOS 7: the oldest that CUDA images have

WARNINGS = (
    *("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror"),
)  # fmt: skip
LANGUAGE = ("-std=c11", "-D_GNU_SOURCE")
# Stripped of debugging, because zig's own part of glibc brings some, with paths of this machine.
_OPTIMISED = ("-O2", "-g0", "-Wl,--strip-debug", "-fPIC", "-fvisibility=hidden")
# Read-only relocations, but bound lazily: a symbol that some image's libc should lack then ends
# only the program that calls it, not every process that the library is preloaded into.
_LINKED = ("-Wl,-z,relro", "-Wl,-z,lazy", "-Wl,-z,noexecstack", "-Wl,--no-undefined")
_SYSTEM = ("-ldl", "-lpthread")

_STAND_IN = ("store*.c", "faults*.c")


@dataclass(frozen=True)
class Product:
    """A file to make: `name` is its path in the folder of its architecture."""

    name: str
    folder: str
    sources: tuple[str, ...]
    #: Version script in `folder`: what a library exports. Programs have none.
    exports: str = ""
    defines: tuple[str, ...] = ()
    #: Names of products that it is linked to.
    linked_to: tuple[str, ...] = ()
    #: The package whose wheel has it; the rest are tools of the tests.
    package: str = ""

    @property
    def shared(self) -> bool:
        return ".so" in self.name

    @property
    def soname(self) -> str:
        return Path(self.name).name


LIBVGPU = Product(
    "libvgpu.so", "libvgpu", ("*.c", "dlsym_{arch}.S"), "libvgpu.map", package="hami"
)  # fmt: skip
# The agent's files are beside it: for tests, and for containers without a root of their own.
LIBVGPU_BESIDE = Product(
    "libvgpu-beside.so",
    LIBVGPU.folder,
    LIBVGPU.sources,
    LIBVGPU.exports,
    ("-DVGPU_BESIDE",),
    package="hami_sandbox",
)
LIBVGPU_TEST = Product(
    "libvgpu-test.so",
    LIBVGPU.folder,
    LIBVGPU.sources,
    LIBVGPU.exports,
    ("-DVGPU_BESIDE", "-DVGPU_TEST_POINTS"),
)
LIBCUDA = Product(
    "fakegpu/libcuda.so.1", "fakegpu", ("cuda*.c", *_STAND_IN), "cuda.map", package="hami_sandbox"
)
LIBNVML = Product(
    "fakegpu/libnvidia-ml.so.1",
    "fakegpu",
    ("nvml*.c", *_STAND_IN),
    "nvml.map",
    package="hami_sandbox",
)
PROBE = Product("probe", "probe", ("*.c",), package="hami")
PROBE_LINKED = Product(
    "probe-linked", "probe", ("*.c",), defines=("-DPROBE_LINKED",), linked_to=(LIBCUDA.name,)
)
#: In an order in which each can be linked to those before it.
PRODUCTS = (LIBVGPU, LIBVGPU_BESIDE, LIBVGPU_TEST, LIBCUDA, LIBNVML, PROBE, PROBE_LINKED)


class BuildError(Exception):
    """A product cannot be made; the message says which and why."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler and where its products go."""

    #: Names the products, for messages: an architecture, or a kind of sanitizer.
    label: str
    arch: str
    out: Path
    command: tuple[str, ...]
    flags: tuple[str, ...]
    #: Distinguishes compilers in the digest.
    version: str

    def make(self, product: Product, say: Callable[[str], None]) -> Path:
        """Make `product` unless it is current; give its path."""
        target = self.out / product.name
        stamp = self.out / ".made-from" / product.name.replace("/", "+")
        command = self._command(product)
        digest = self._digest(product, command)
        if target.is_file() and stamp.is_file() and stamp.read_text() == digest:
            return target
        say(f"native: {self.label}: compiling {product.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}.so")
        try:
            self.run(product.name, [*command, "-o", str(fresh)])
            fresh.chmod(0o755)
            stamp.unlink(missing_ok=True)  # never a new file with an old digest
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
        stamp.write_text(digest)
        return target

    def _command(self, product: Product) -> list[str]:
        folder = SOURCES / product.folder
        command = [*self.command, *self.flags, *LANGUAGE, *WARNINGS, *product.defines]
        command += ["-I", str(SOURCES / "include"), "-I", str(folder)]
        if product.shared:
            command += ["-shared", *_LINKED, f"-Wl,-soname,{product.soname}"]
            if (script := folder / product.exports).is_file():
                command.append(f"-Wl,--version-script={script}")
        command += [str(path) for path in self._sources(product)]
        command += [str(self.out / name) for name in product.linked_to]
        return [*command, *_SYSTEM]

    def _sources(self, product: Product) -> list[Path]:
        folder = SOURCES / product.folder
        patterns = [pattern.format(arch=self.arch) for pattern in product.sources]
        found = {path for pattern in patterns for path in folder.glob(pattern)}
        if not any(path.suffix == ".c" for path in found):
            raise BuildError(f"{product.name}: no {' or '.join(patterns)} in native/{folder.name}")
        return sorted(found)

    def _digest(self, product: Product, command: Sequence[str]) -> str:
        """Tell apart all that can change the product. The checkout's own path cannot."""
        state = hashlib.sha256()
        for word in (self.version, *command):
            state.update(word.replace(str(ROOT), "").encode() + b"\0")
        folders = (SOURCES / "include", SOURCES / product.folder)
        for path in sorted(path for folder in folders for path in folder.iterdir()):
            if path.is_file() and (path.suffix in {".h", ".def", ".map"} or str(path) in command):
                state.update(path.name.encode() + b"\0" + path.read_bytes())
        for name in product.linked_to:
            state.update((self.out / name).read_bytes())
        return state.hexdigest()

    def run(self, what: str, command: Sequence[str]) -> None:
        cache = ROOT / ".cache/zig"
        done = subprocess.run(  # noqa: S603 - our own compiler, no shell
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "ZIG_GLOBAL_CACHE_DIR": str(cache / "global"),
                "ZIG_LOCAL_CACHE_DIR": str(cache / "local"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            told = done.stdout.replace(f"{ROOT}/", "").strip()
            raise BuildError(f"{what} for {self.label} does not compile:\n{told}")


def zig(arch: str, out: Path | None = None) -> Toolchain:
    """Give the pinned compiler for `arch`."""
    if arch not in ARCHES:
        raise BuildError(f"architecture {arch!r} is none of {', '.join(ARCHES)}")
    try:
        version = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError("the compiler is not installed: run make setup") from error
    return Toolchain(
        label=arch,
        arch=arch,
        out=out or LIBRARIES / arch,
        command=(sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.{GLIBC}"),
        flags=_OPTIMISED,
        version=f"ziglang {version}",
    )


def own_arch() -> str:
    """Name this machine's architecture as compilers do."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())


def wanted_arches(default: Sequence[str]) -> tuple[str, ...]:
    """Read HAMI_NATIVE_ARCHES, as in `x86_64,aarch64`."""
    text = os.environ.get("HAMI_NATIVE_ARCHES", "")
    return tuple(name.strip() for name in text.split(",") if name.strip()) or tuple(default)


def build(
    toolchains: Sequence[Toolchain],
    products: Sequence[Product] = PRODUCTS,
    *,
    say: Callable[[str], None] = print,
) -> None:
    """Make all `products`, two at a time; raise one error that tells all that failed."""
    problems: list[str] = []
    with _one_at_a_time(), concurrent.futures.ThreadPoolExecutor(2) as pool:
        waves = (
            [product for product in products if not product.linked_to],
            [product for product in products if product.linked_to],
        )
        for wave in waves:
            jobs = [
                pool.submit(toolchain.make, product, say)
                for toolchain in toolchains
                for product in wave
                if all((toolchain.out / name).is_file() for name in product.linked_to)
            ]
            for job in jobs:
                try:
                    job.result()
                except BuildError as error:
                    problems.append(str(error))
    if problems:
        raise BuildError("\n".join(problems))


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for another build of this checkout: it probably makes what is wanted here."""
    lock = ROOT / ".cache/native.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m native.build", description=__doc__)
    parser.add_argument("--arch", help="x86_64, aarch64 or both with a comma (default: both)")
    parser.add_argument("product", nargs="*", help="only these, for example libvgpu.so")
    asked = parser.parse_args(arguments)
    arches = asked.arch.split(",") if asked.arch else wanted_arches(ARCHES)
    known = {product.name: product for product in PRODUCTS}
    if unknown := [name for name in asked.product if name not in known]:
        parser.error(f"product {unknown[0]!r} is none of {', '.join(known)}")
    products = [known[name] for name in asked.product] or PRODUCTS
    try:
        build([zig(arch) for arch in arches], products)
    except BuildError as error:
        sys.stderr.write(f"native: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
