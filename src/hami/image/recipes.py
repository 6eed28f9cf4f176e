"""The images of this project, each from its parts to a checked archive.

`cache` holds Debian packages and finished layers: a second build of the same parts only writes the
archive, and a change of our code makes only the last, small layer of `hami` again. Every archive is
read back (`verify`) before it gets its name, so the file `out` is always whole.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hami.image import debian, elf, layers, oci, python, tree, verify
from hami.image.errors import ImageError, only_image_errors

NONROOT = "65532:65532"  # the user that other small images call nonroot

_USERS = """\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/usr/sbin/nologin
"""
_GROUPS = "root:x:0:\ntty:x:5:\nnobody:x:65534:\nnonroot:x:65532:\n"

_LICENCE = "usr/share/doc/busybox-static/copyright"

# PID 1 of a pod's sandbox: it ends on TERM, and `wait` reaps orphans.
_PAUSE = 'trap "exit 0" TERM INT; while :; do sleep 2147483 & wait; done'


@only_image_errors("building the image busybox")
def busybox(
    out: Path, *, names: Sequence[str], cache: Path, say: Callable[[str], None] = print
) -> verify.Image:
    """Build a shell and the usual tools in two megabytes."""
    settings = oci.Settings(command=("sh",), env={"PATH": oci.PATH})
    return _image(out, names, [_busybox(cache, say)], settings, say)


@only_image_errors("building the image pause")
def pause(
    out: Path, *, names: Sequence[str], cache: Path, say: Callable[[str], None] = print
) -> verify.Image:
    """Build the image that holds a pod's namespaces. Its layer is busybox's: no extra space."""
    settings = oci.Settings(
        entrypoint=("/bin/sh", "-c", _PAUSE), env={"PATH": oci.PATH}, user="65535:65535"
    )
    return _image(out, names, [_busybox(cache, say)], settings, say)


@only_image_errors("building the image kube_scheduler")
def kube_scheduler(
    out: Path,
    *,
    names: Sequence[str],
    binary: Path,
    version: str,
    cache: Path,
    say: Callable[[str], None] = print,
) -> verify.Image:
    """Build the given static kube-scheduler and nothing else, at its path in the upstream image."""
    elf.check_static(binary, oci.architecture())

    def write(root: Path) -> None:
        _base(root)
        tree.copy(binary, root / "usr/local/bin/kube-scheduler", 0o755)

    with binary.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    layer = layers.Store(cache / "layers").layer(f"kube-scheduler {version}", digest, write)
    settings = oci.Settings(
        entrypoint=("/usr/local/bin/kube-scheduler",),
        env={"PATH": oci.PATH},
        user=NONROOT,
        labels=_labels("kube-scheduler", version),
    )
    return _image(out, names, [layer], settings, say)


@only_image_errors("building the image hami")
def hami(
    out: Path,
    *,
    names: Sequence[str],
    wheel: Path,
    requirements: Path,
    uv: Path,
    cache: Path,
    say: Callable[[str], None] = print,
) -> verify.Image:
    """Build our wheel on Debian's Python: three layers, of which our code is the last.

    The entry point is `python3 -m hami`; for a wheel without a command line it is `python3`, so
    that arguments are a script or `-c ...`. There is no shell in it, and the user is not root.
    """
    for path, flag in ((wheel, "wheel"), (requirements, "requirements"), (uv, "uv")):
        if not path.is_file():
            raise ImageError(f"{flag} {str(path)!r}", "is no file", "build it or give its path")
    store = layers.Store(cache / "layers")
    base = _python(store, cache, say)
    with tempfile.TemporaryDirectory() as scratch:
        interpreter = Path(scratch, "python")
        layers.unpack(base, interpreter)

        def depend(root: Path) -> None:
            say("installing the locked dependencies into an image layer")
            python.install(root, requirements, uv=uv, interpreter=interpreter)
            elf.check_libraries([interpreter, root])
            python.compile_all(root, interpreter=interpreter)

        def ours(root: Path) -> None:
            python.unzip(root, wheel, interpreter=interpreter)
            python.compile_all(root, interpreter=interpreter)

        locked = hashlib.sha256(requirements.read_bytes()).hexdigest()
        dependencies = store.layer(f"python {requirements.name}", [locked, base.digest], depend)
        content = hashlib.sha256(wheel.read_bytes()).hexdigest()
        top = store.layer(f"python {wheel.name}", [content, base.digest], ours)
    runnable = python.has_command(wheel)
    settings = oci.Settings(
        entrypoint=("/usr/bin/python3", "-m", "hami") if runnable else ("/usr/bin/python3",),
        env={
            "LANG": "C.UTF-8",
            "PATH": oci.PATH,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        },
        user=NONROOT,
        labels=_labels("hami", python.wheel_version(wheel)),
    )
    return _image(out, names, [base, dependencies, top], settings, say)


def _busybox(cache: Path, say: Callable[[str], None]) -> layers.Layer:
    closure = debian.Closure(["busybox-static"], cache=cache, say=say)

    def write(root: Path) -> None:
        _base(root)
        with tempfile.TemporaryDirectory() as scratch:
            closure.extract(Path(scratch))
            tree.copy(Path(scratch, "usr/bin/busybox"), root / "bin/busybox", 0o755)
            tree.copy(Path(scratch, _LICENCE), root / _LICENCE)
        for applet in _applets(root / "bin/busybox"):
            link = root / applet
            tree.folder(link.parent)
            if not link.exists():
                link.symlink_to("../" * (len(Path(applet).parts) - 1) + "bin/busybox")

    return layers.Store(cache / "layers").layer("Debian busybox-static", closure.hashes, write)


def _applets(program: Path) -> list[str]:
    done = subprocess.run(  # noqa: S603 - a file of a package whose hash was checked
        [str(program), "--list-full"], capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout:
        raise ImageError("busybox --list-full", f"does not run here: {done.stderr.strip()!r}")
    return done.stdout.split()


def _python(store: layers.Store, cache: Path, say: Callable[[str], None]) -> layers.Layer:
    closure = debian.Closure(python.PACKAGES, cache=cache, without=python.WITHOUT, say=say)

    def write(root: Path) -> None:
        say("unpacking and compiling Debian's Python into an image layer, once")
        closure.extract(root, skip=python.useless)
        elf.check_libraries([root])
        _base(root)
        python.compile_all(root, interpreter=root)

    return store.layer("Debian " + " ".join(python.PACKAGES), closure.hashes, write)


def _base(root: Path) -> None:
    """Write the accounts, and the folders that mounts and programs expect, of any image."""
    for name in ("dev", "etc", "home/nonroot", "proc", "root", "run", "sys", "tmp", "var/tmp"):
        tree.folder(root / name)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    tree.write(root / "etc/passwd", _USERS)
    tree.write(root / "etc/group", _GROUPS)


def _labels(title: str, version: str) -> dict[str, str]:
    prefix = "org.opencontainers.image"
    return {f"{prefix}.title": title, f"{prefix}.version": version}


def _image(
    out: Path,
    names: Sequence[str],
    parts: Sequence[layers.Layer],
    settings: oci.Settings,
    say: Callable[[str], None],
) -> verify.Image:
    tree.folder(out.parent)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as scratch:
        unchecked = Path(scratch, out.name)
        oci.write(unchecked, names=names, layers=parts, settings=settings)
        image = verify.archive(unchecked)
        unchecked.replace(out)
    say(f"{out.name}: {', '.join(image.names)}, {image.size / 1e6:.1f} MB, {image.digest}")
    return image
