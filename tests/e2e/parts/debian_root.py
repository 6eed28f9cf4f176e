"""Root file system of a node: Debian's packages, unpacked, not installed.

containerd 1.6 is here because it is the runtime without CDI; runc and the CNI plugins serve both
runtimes; the rest is what kubelet and kube-proxy call.
"""

from __future__ import annotations

import platform
from pathlib import Path

from hami.image import debian
from tests.e2e.parts import cache
from tests.e2e.parts.cache import Part, Say

PACKAGES = (
    "containerd=1.6.*",
    "runc",
    "containernetworking-plugins",
    "busybox-static",
    "iptables",
    "iproute2",
    "conntrack",
    "mount",
    "util-linux",
    "bash",
    "coreutils",
    "procps",
    "ca-certificates",
)

# Each machine has its own: node agents install into it, and the rest of /usr is shared.
OWN_FOLDER = "usr/local"


def debian_root() -> Part:
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    return Part(
        name="debian-root",
        version=f"{system.get('ID', 'unknown')}{system.get('VERSION_ID', '')}",
        made_from={
            "packages": repr(PACKAGES),
            "own": OWN_FOLDER,
            "machine": platform.machine(),
        },
        make=_make,
        takes="1 min",
    )


def _make(into: Path, say: Say) -> None:
    unpacked = debian.unpack(PACKAGES, into, cache=cache.packages_folder(), say=say)
    (into / OWN_FOLDER).mkdir(exist_ok=True)
    versions = {package.name: package.version for package in unpacked}
    say(f"  containerd {versions['containerd']}, runc {versions['runc']}")
