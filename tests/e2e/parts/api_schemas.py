"""The OpenAPI document of each Kubernetes release.

It lies in the module of the release, which Go fetches and checks in seconds. For the chart, whose
output must fit old releases as well as new ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.parts.cache import Part, PartError, Say

MODULE = "k8s.io/kubernetes"
#: Minor -> release, and Go's checksum of its module.
RELEASES: Mapping[str, tuple[str, str]] = {
    "1.18": ("v1.18.20", "h1:y09UE3cZyAgZeKkswkrDO0+HKKuo+p+P8w7xtGWblYQ="),
    "1.22": ("v1.22.17", "h1:RwbUxcpDoy8LSj/o7Mj4qhF2GPavzony4GkxVlQVNrA="),
    "1.25": ("v1.25.16", "h1:pdtEdre7aInDvXas+mWzpTiK/7cpcaGRyYB+Bedr2+Q="),
    "1.28": ("v1.28.15", "h1:d91N2Znk+E8REIJZlrD6za2JtIwvEypa0DB1IoU4fJ0="),
    "1.36": ("v1.36.3", "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o="),
}


def api_schemas() -> Part:
    return Part(
        name="api-schemas",
        version="-".join(RELEASES),
        made_from={"releases": repr(sorted(RELEASES.items()))},
        make=_make,
        takes="20 s",
    )


def _make(into: Path, say: Say) -> None:
    for minor, (version, checksum) in RELEASES.items():
        say(f"  the API of Kubernetes {version}")
        told = _download(version)
        if told["Sum"] != checksum:
            raise PartError(
                f"{MODULE}@{version} has the checksum {told['Sum']}, not {checksum}: what was "
                "fetched is not the release; look into it before anything else is built"
            )
        source = Path(told["Dir"]) / "api/openapi-spec/swagger.json"
        shutil.copyfile(source, into / f"{minor}.json")


def _download(version: str) -> Mapping[str, str]:
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{version}"],  # noqa: S607 - whichever Go is installed
        env=os.environ | {"GOWORK": "off", "GOFLAGS": ""},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PartError(f"`go mod download {MODULE}@{version}` failed: {done.stderr.strip()}")
    told: Mapping[str, str] = json.loads(done.stdout)
    return told
