"""`hami image build`: our own image as an archive.

containerd, Docker and the tools of registries read it. In a checkout it needs only a file name: it
builds the wheel from the sources and takes the locked dependencies. An installed hami must be given
both. `hami.image.recipes` has the content of the image; the tests on real Kubernetes call `build`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import hami
from hami.cli import errors
from hami.image import apt, python, recipes, verify
from hami.image.errors import ImageError

_SHOWN_LINES = 6


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)
    build(
        Path(asked.output),
        names=asked.name,
        wheel=asked.wheel,
        requirements=asked.requirements,
        uv=asked.uv,
        cache=asked.cache or default_cache(),
        say=_say,
    )
    return 0


def build(
    out: Path,
    *,
    cache: Path,
    names: Sequence[str] = (),
    wheel: Path | None = None,
    requirements: Path | None = None,
    uv: Path | None = None,
    say: Callable[[str], None] = print,
) -> verify.Image:
    """Build the image; missing arguments are taken from the checkout that this code is in."""
    checkout = _checkout()
    if checkout is None and not (wheel and requirements):
        raise errors.UsageError(
            "this hami is installed, not a checkout, so there is nothing to build a wheel from; "
            "give both --wheel=FILE and --requirements=FILE, or run it from a checkout"
        )
    if requirements is None:
        assert checkout is not None
        requirements = checkout / "requirements/runtime.txt"
    with tempfile.TemporaryDirectory() as scratch:
        if wheel is None:
            assert checkout is not None
            say(f"building the wheel of {checkout}")
            wheel = _build_wheel(checkout, Path(scratch))
        try:
            return recipes.hami(
                out,
                names=names or [f"hami:{python.wheel_version(wheel)}"],
                wheel=wheel,
                requirements=requirements,
                uv=uv or _find_uv(checkout),
                cache=cache,
                say=say,
            )
        except ImageError as error:
            raise errors.CommandError(str(error)) from error


def default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hami" / "images"


def _checkout() -> Path | None:
    """Return the folder of sources that this code runs from, if it does."""
    root = Path(hami.__path__[0]).resolve().parents[1]
    needed = ("pyproject.toml", "requirements/runtime.txt")
    return root if all((root / name).is_file() for name in needed) else None


def _build_wheel(checkout: Path, into: Path) -> Path:
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)], checkout)
    [wheel] = into.glob("*.whl")
    return wheel


def _find_uv(checkout: Path | None) -> Path:
    """Return the checkout's own uv, which it may install first, or the one on the PATH."""
    if checkout is not None and (script := checkout / "scripts/find-uv").is_file():
        return Path(_run([str(script)], checkout).strip())
    if found := shutil.which("uv"):
        return Path(found)
    raise errors.UsageError(
        "uv installs the dependencies into the image and is not on the PATH; "
        "install it (pip install uv) or give --uv=FILE"
    )


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603 - our own programs, no shell
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = apt.hide_hosts(done.stdout + done.stderr).strip().splitlines()
        output = " | ".join(lines[-_SHOWN_LINES:])
        raise errors.CommandError(
            f"{' '.join(command)} in {folder} failed: {output}; "
            "run `make setup` in the checkout and use its .venv/bin/hami, or give --wheel and --uv"
        )
    return done.stdout


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - progress of a build that takes minutes


def _parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Build the image of hami as one archive: `ctr images import`, `docker load`\n"
        "and skopeo or crane read it. It needs Debian or Ubuntu (apt-get), no Docker and\n"
        "no root. From a checkout no other flag than --output is needed.",
        epilog="Exit code 0: built and checked; 1: not built; 2: wrong usage.",
    )
    made.add_argument("--output", required=True, metavar="FILE", help="archive to write")
    made.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="of the image, as [HOST/]PATH:TAG; may be repeated (default hami:VERSION)",
    )
    files = {
        "wheel": "wheel of hami (default: built from the checkout)",
        "requirements": "hashed dependencies (default: requirements/runtime.txt of the checkout)",
        "uv": "uv that installs them (default: the checkout's, else the one on the PATH)",
    }
    for name, text in files.items():
        made.add_argument(f"--{name}", type=_path, metavar="FILE", help=text)
    made.add_argument(
        "--cache",
        type=_path,
        metavar="DIR",
        help="where packages and finished layers are kept (default ~/.cache/hami/images)",
    )
    return made


def _path(text: str) -> Path | None:
    return Path(text) if text else None
