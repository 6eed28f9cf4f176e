"""A Python root: Debian's interpreter, locked dependencies, our wheel, compiled.

Three parts, one layer each, because they change at different speeds. All files go where Debian's
Python looks by default (/usr/local/lib/pythonX.Y/dist-packages): no PYTHONPATH is needed.

The image's own interpreter compiles the byte code, started from the folder through its own loader
(no chroot, no root), as `unchecked-hash`: a container without write access never compiles, and the
times of files do not matter. With a fixed hash seed the same sources give the same bytes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from hami.image import apt, debian, oci, tree
from hami.image.errors import ImageError

PACKAGES = (
    "base-files",  # os-release, the texts of common licences
    "ca-certificates",
    "libpython3-stdlib",
    "libstdc++6",  # numpy
    "python3-minimal",
)

# Libraries of modules that no container needs: dbm, nis, sqlite3, curses, readline; and awk.
WITHOUT = debian.SCRIPT_HELPERS | {
    "libdb5.3",
    "libncursesw6",
    "libnsl2",
    "libreadline8",
    "libsqlite3-0",
    "mawk",
    "media-types",
}
_USELESS = re.compile(
    r"usr/lib/[^/]+/gconv(/|$)"  # iconv's tables, 8 MB: Python has its own codecs
    r"|usr/bin/(openssl|c_rehash)$|usr/lib/ssl/misc(/|$)|usr/sbin/"
    r"|usr/lib/python3\.\d+/(test|pydoc_data|sqlite3|curses|lib2to3|idlelib|turtledemo|ensurepip)(/|$)"
    r"|usr/lib/python3\.\d+/lib-dynload/(_sqlite3|_curses|_curses_panel|_dbm|nis|readline|_test.*"
    r"|_ctypes_test|_xxtestfuzz|xxlimited.*|ossaudiodev|audioop)\."
)
_PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
_OF_THE_INSTALLER = {"direct_url.json", "uv_cache.json", "uv_build.json", "REQUESTED", "INSTALLER"}
_WHEEL = re.compile(r"(?P<name>\w+)-(?P<version>[^-]+)-py3-none-(?P<platforms>[\w.]+)\.whl")


def useless(name: str) -> bool:
    """Return True for a file that a Python image does not need."""
    return debian.documentation(name) or _USELESS.match(name) is not None


def version(root: Path) -> str:
    """Return the version of Debian's `python3` in `root`, as in 3.11."""
    link = root / "usr/bin/python3"
    found = re.fullmatch(r"python(3\.\d+)", str(link.readlink()) if link.is_symlink() else "")
    if found is None:
        raise ImageError(f"{link}", "is no link to python3.N", "unpack python3-minimal first")
    return found[1]


def site(root: Path, of: Path) -> Path:
    """Return the folder below `root` where the Python of the root `of` looks for packages."""
    return root / f"usr/local/lib/python{version(of)}/dist-packages"


def install(root: Path, requirements: Path, *, uv: Path, interpreter: Path) -> None:
    """Install the hashed `requirements` for the Python of `interpreter` into the root `root`."""
    target = site(root, interpreter)
    tree.folder(target)
    with tempfile.TemporaryDirectory() as scratch:
        _run(
            "uv",
            [
                *(str(uv.resolve()), "pip", "install", "--quiet", "--no-progress"),
                *("--target", str(target), "--link-mode", "copy", "--no-compile-bytecode"),
                *("--python", sys.executable, "--python-version", version(interpreter)),
                *("--python-platform", _PLATFORMS[oci.architecture()]),
                *("--only-binary", ":all:", "--require-hashes", "--no-deps"),
                *("--requirement", str(requirements.resolve())),
            ],
            scratch,
        )
    _clean_up(target)


def unzip(root: Path, wheel: Path, *, interpreter: Path) -> None:
    """Install our own wheel: Python and libraries for containers, no scripts."""
    machine = _PLATFORMS[oci.architecture()].partition("-")[0]
    found = _WHEEL.fullmatch(wheel.name)
    platforms = set(found["platforms"].split(".") if found else ())
    if not platforms & {"any", f"manylinux_2_17_{machine}"}:
        raise ImageError(
            f"wheel {wheel.name!r}",
            f"is not NAME-VERSION-py3-none-PLATFORM.whl for any or manylinux_2_17_{machine}",
            f"build it with HAMI_NATIVE_ARCHES={machine}",
        )
    target = site(root, interpreter)
    tree.folder(target)
    try:
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or ".data" in path.parts[0]:
                    raise ImageError(f"wheel {wheel.name}: {name!r}", "lies outside the package")
            packed.extractall(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise ImageError(f"wheel {wheel}", f"cannot be read ({error})", "build it again") from error
    _clean_up(target)


def has_command(wheel: Path) -> bool:
    """Return True if `python3 -m hami` works with `wheel`."""
    with zipfile.ZipFile(wheel) as packed:
        return "hami/__main__.py" in packed.namelist()


def wheel_version(wheel: Path) -> str:
    found = _WHEEL.fullmatch(wheel.name)
    return found["version"] if found else "unknown"


def compile_all(folder: Path, *, interpreter: Path) -> None:
    """Byte-compile all below `folder` with the Python in the root `interpreter`."""
    python = interpreter / "usr/bin" / f"python{version(interpreter)}"
    libraries = [path.parent for path in sorted(interpreter.glob("usr/lib/*/libc.so.6"))]
    loaders = sorted(interpreter.glob("usr/lib/*/ld-linux-*.so.*"))
    if not libraries or not loaders:
        raise ImageError(f"root {interpreter}", "has no libc", "unpack libc6 into it")
    command = [
        *(str(loaders[0]), "--library-path", str(libraries[0]), str(python), "-S", "-B"),
        *("-m", "compileall", "-q", "-f", "-j1", "--invalidation-mode", "unchecked-hash"),
        *("-s", str(folder), "-p", "/", str(folder)),
    ]
    _run("compileall", command, str(folder), PYTHONHOME=str(interpreter / "usr"))


def _clean_up(target: Path) -> None:
    """Delete tests, stubs and the installer's notes; set plain modes whatever the umask."""
    for path in sorted(target.rglob("*"), reverse=True):
        parts = path.relative_to(target).parts
        for_others = "tests" in parts[1:] or path.suffix == ".pyi"
        notes = path.name in _OF_THE_INSTALLER or parts[0] in {"bin", ".lock"}
        if not for_others and not notes:
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o111 else 0o644)
        elif path.is_dir():
            path.rmdir()  # its content was deleted before it
        else:
            path.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        lines = [
            line
            for line in record.read_text().splitlines()
            if (target / line.rsplit(",", 2)[0]).exists()
        ]
        record.write_text("".join(f"{line}\n" for line in sorted(lines)))


# uv trusts the machine's certificates: a company's mirror has a company's certificate.
_UV = {"UV_SYSTEM_CERTS": "1"}


def _run(what: str, command: Sequence[str], folder: str, **environment: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        done = subprocess.run(  # noqa: S603 - our own command line, no shell
            command,
            cwd=folder,
            env={**_UV, **kept, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", **environment},
            umask=0o022,  # files must be readable for any user
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ImageError(what, f"does not start ({error})") from error
    if done.returncode:
        lines = apt.hide_hosts(done.stdout + done.stderr).strip().splitlines()[-6:]
        raise ImageError(what, "failed: " + " | ".join(lines))
